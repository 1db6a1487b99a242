"""What eBPF probes counted while they were attached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WakerCount:
    """`tid` woke `woke` (None: which thread is not known) `count` times within the window."""

    tid: int
    woke: int | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEvidence:
    """What the probes counted for one process while they were attached."""

    window_s: float
    futex_waits: int = 0
    futex_wait_s: float = 0.0
    longest_wait_s: float = 0.0
    wakers: tuple[WakerCount, ...] = ()
    minor_faults: int = 0
    major_faults: int = 0
    lost: int = 0
