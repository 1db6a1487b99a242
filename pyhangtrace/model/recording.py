"""What happened in a window: plain data, so that a saved recording gives the same tables and graphs anywhere.

Times are seconds; `at_s` counts from the moment the probes began to count. Addresses are as the target sees them. What
was not asked for or could not be had is empty, and has a line in `coverage`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.probes import WakerCount
from pyhangtrace.model.stacks import Frame

SCHEMA = "hangtrace.recording/1"


class Metric(str, Enum):
    """What a stack is weighed by."""

    FUTEX = "futex"
    OFFCPU = "offcpu"
    FAULTS = "faults"


class OffState(str, Enum):
    """How a thread left the CPU."""

    SLEEPING = "sleeping"
    UNINTERRUPTIBLE = "uninterruptible"
    RUNNABLE = "runnable"


class EventKind(str, Enum):
    """What is on the time line."""

    FUTEX_WAIT = "futex wait"
    MAJOR_FAULT = "major fault"
    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    UNINTERRUPTIBLE = "uninterruptible"
    CALL = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProcess:
    """One member of the job. `rank` as the evidence of the window's end says it."""

    pid: int
    rank: int | None = None
    role: Role = Role.OTHER
    title: str = ""
    wakers: tuple[WakerCount, ...] = ()
    block_requests: int = 0
    block_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedThread:
    """One thread, with its sums over the window.

    `cpu_s` is by the scheduler's own counter, between the first and the last snapshot, which are `seen_s` apart; None
    for a thread that was not in both. `open_wait_s` is a futex wait that began in the window and goes on; `stood_s` how
    long it stayed at the beginning of the window in a call that it had entered before.
    """

    pid: int
    tid: int
    name: str
    service: str | None = None
    waits: int = 0
    wait_s: float = 0.0
    longest_wait_s: float = 0.0
    timed_out: int = 0
    wake_calls: int = 0
    woken: int = 0
    open_wait_s: float | None = None
    open_address: int | None = None
    minor_faults: int = 0
    major_faults: int = 0
    cpu_s: float | None = None
    seen_s: float = 0.0
    stood_s: float = 0.0
    stood_address: int | None = None  # futex word; None: not a futex call


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWaits:
    """Finished waits of one thread on one futex word. `slots[n]` counts those of 2^n to 2^(n+1) units of 1.024 µs."""

    pid: int
    tid: int
    address: int
    operation: str
    waits: int
    wait_s: float
    longest_s: float
    timed_out: int = 0
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffCpu:
    """Time of one thread off the CPU at one place of the kernel (`kernel`: functions, innermost first)."""

    pid: int
    tid: int
    state: OffState
    kernel: tuple[str, ...]
    times: int
    off_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFaults:
    """Page faults of one thread in 2 MiB of addresses, and what is mapped there: a path, "[heap]", "" for anonymous
    memory, None if that is not known or more than one thing. `gone`: nothing is mapped there any more.

    `code` is the address of the instruction, with its function and file where they are known; 0: one of the kernel's,
    in a system call; None: not counted.
    """

    pid: int
    tid: int
    address: int
    mapping: str | None
    minor: int
    major: int
    gone: bool = False
    code: int | None = None
    function: str | None = None
    module: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """One thing that happened. `number` is the futex word, the address of a fault or the signal; `waker` who ended a
    wait, None if not known; `text` what is called or raised.
    """

    kind: EventKind
    pid: int
    tid: int
    at_s: float
    took_s: float = 0.0
    number: int | None = None
    waker: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSample:
    """Where a thread was in one snapshot. `stack` is an index of `Recording.stacks`; `slices` the scheduler's count of
    how often it has run: while that stays, it has not. `whole`: the stack is complete and of one moment. `on_cpu`: the
    stack was sampled while the thread ran.
    """

    at_s: float
    pid: int
    tid: int
    stack: int
    state: str = "?"
    syscall: int | None = None
    wchan: str | None = None
    address: int | None = None  # the futex word it waits on
    slices: int | None = None
    whole: bool = True
    on_cpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSums:
    """Calls of one function by one thread that returned within the window. `object` is what they worked on: the address
    of a mutex, a communicator's handle, a stream; 0 where that is not an argument of its own.
    """

    pid: int
    tid: int
    function: str
    family: str
    object: int
    calls: int
    call_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCount:
    """What the kernel had counted for a process at that moment."""

    at_s: float
    pid: int
    minor: int
    major: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCount:
    """How far a process had come in one group at two moments around the window, `passed_s` apart, and what it did last
    there.
    """

    pid: int
    group: str
    before: int
    after: int
    passed_s: float
    last: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCost:
    """What recording did: seconds from the start until the probes counted, how long they were attached, our CPU."""

    ready_s: float = 0.0
    attached_s: float = 0.0
    cpu_s: float = 0.0
    snapshots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything one window saw on one host. `lost` are events that found no room, by what they are missing from."""

    schema: str = SCHEMA
    tool_version: str
    taken_at: str  # RFC 3339
    host: str
    attached_to: tuple[int, ...]
    metric: Metric
    window_s: float
    processes: tuple[RecordedProcess, ...] = ()
    threads: tuple[RecordedThread, ...] = ()
    words: tuple[WordWaits, ...] = ()
    off_cpu: tuple[OffCpu, ...] = ()
    places: tuple[PlaceFaults, ...] = ()
    calls: tuple[CallSums, ...] = ()
    events: tuple[TimedEvent, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()  # innermost first
    samples: tuple[StackSample, ...] = ()
    fault_counts: tuple[FaultCount, ...] = ()
    collectives: tuple[CollectiveCount, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    coverage: tuple[SourceStatus, ...] = ()
    cost: RecordingCost = field(default_factory=RecordingCost)
