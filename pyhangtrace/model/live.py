"""What the live view shows: one tick is one look at the cheap counters, together with the last whole look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pyhangtrace.model.kinds import Confidence, Role, State
from pyhangtrace.model.pace import ProcessCounters

SCHEMA = "hangtrace.live/1"

ThreadKey = tuple[int, int]  # pid, tid


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadMark:
    """Where one thread is. `slices` and `run_ns` are the scheduler's counters; `moved_s` is when they were last seen to
    change, by the clock of the reading, and `seen_s` since when the thread is followed.
    """

    state: str
    slices: int
    run_ns: int
    moved_s: float
    seen_s: float
    syscall: str | None = None
    wchan: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A process of the job. `rank` is None where nothing but its place says one; `works`: its work is the job's."""

    pid: int
    rank: int | None
    role: Role
    title: str
    works: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that was read at one moment, by a steady clock. `processes` is empty once the job has ended."""

    at_s: float
    processes: Mapping[int, Followed]
    counters: Mapping[int, ProcessCounters]
    threads: Mapping[ThreadKey, ThreadMark]


@dataclass(frozen=True, slots=True, kw_only=True)
class Woken:
    """How often one thread was seen to wake another one, both of the job, before the job stood still."""

    waker: int
    woken: int
    count: int


class Doing(str, Enum):
    """What a process does, by its counters."""

    RUNS = "runs"  # most of the time since the last tick
    MOVES = "moves"
    WAITS = "waits"  # it has not run since the last tick
    DISK = "disk"  # in a wait that nothing interrupts
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """One process. `cpu` is a share of a CPU; `blocked_on` of the thread that counts; sizes in bytes.

    `pss` and `gpu_percent` are those of the last look; `since_s` is at least so long, where the wait was not looked at.
    """

    pid: int
    rank: int | None
    role: Role
    title: str
    doing: Doing
    collective: str | None = None
    blocked_on: str | None = None
    since_s: float | None = None
    cpu: float | None = None
    faults_per_s: float | None = None
    rss: int | None = None
    pss: int | None = None
    gpu_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveVerdict:
    """The verdict that stands. `looked_s_ago` is how old it is; `moved_on`: who it is about has moved since.

    `settled`: False while the wait at the end of the chain is so young that it may yet end: a second look follows.
    """

    state: State
    title: str
    summary: str
    confidence: Confidence
    since_s: float | None
    looked_s_ago: float
    moved_on: bool
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WakerNote:
    """Who woke a thread that now waits, as counted before: `thread` of `pid` was woken `count` times by `waker`."""

    pid: int
    tid: int
    thread: str
    waker_pid: int | None
    waker_tid: int
    waker: str
    count: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one line of the stream, or one second of the screen, shows."""

    schema: str = SCHEMA
    number: int
    at: str  # RFC 3339
    framework: str | None
    rows: tuple[LiveRow, ...]
    verdict: LiveVerdict | None
    looking: bool
    still_s: float | None  # how long somebody of whom that is unusual has not moved
    counts_wakers: bool = False
    wakers: tuple[WakerNote, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    @property
    def moving(self) -> int:
        """How many processes do something."""
        return sum(row.doing in (Doing.RUNS, Doing.MOVES) for row in self.rows)
