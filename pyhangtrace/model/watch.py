"""What a watch over a job has come to so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyhangtrace.model.kinds import State
from pyhangtrace.model.pace import Pace

Still = frozenset[tuple[int, Pace]]  # who has done no work, and whether he spins


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """A stall is `stall_s` without work. Between two reports lie `rate_limit_s` at least."""

    stall_s: float
    rate_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Where a watch stands. `still` is empty while all goes well; times by any steady clock.

    `looked`, `reported`: at and of this very stall. `gap_s` is the least time from one look to the next, `again_s` that
    to another look at the same stall.
    """

    still: Still = frozenset()
    looked: bool = False
    reported: bool = False
    well_since_s: float | None = None
    last_look_s: float | None = None
    last_report_s: float | None = None
    gap_s: float = 0.0
    again_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedProcess:
    """One process as the metrics show it. `quiet_s` is how long it has done no work."""

    pid: int
    rank: int | None
    pace: Pace
    quiet_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """All that the metrics show. Times of day in seconds since 1970; None: not yet."""

    tool_version: str
    host: str
    asked: tuple[int, ...]
    framework: str | None
    up: bool
    processes: tuple[WatchedProcess, ...]
    verdict: State | None
    verdict_cause: str | None
    stalls: Mapping[State, int] = field(default_factory=dict)
    reports: int = 0
    failures: int = 0
    last_look_at: float | None = None
    last_report_at: float | None = None
    cpu_s: float = 0.0
