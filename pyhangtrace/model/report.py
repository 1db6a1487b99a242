"""What it means: the object that `--json` prints. Field names and meanings are a contract; fields may be
added.

Unknown facts are `None` and have a reason in `coverage`. Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pyhangtrace.model.gpu import GpuState
from pyhangtrace.model.kinds import (
    Confidence,
    Edge,
    Kind,
    MemoryMode,
    MemoryVerdict,
    Part,
    Role,
    SourceState,
    StackFrom,
    State,
    TaskKind,
    WaitKind,
)
from pyhangtrace.model.ras import RasAnswer
from pyhangtrace.model.stacks import Frame

SCHEMA = "hangtrace.report/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A named process. `pid` is None for a rank that never started (`part` absent)."""

    rank: int | None = None
    pid: int | None = None
    tid: int | None = None
    thread: str | None = None
    wait: str | None = None
    part: Part = Part.CULPRIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Somebody who waits and has no part in the cause."""

    rank: int | None = None
    pid: int
    tid: int
    wait: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a divergence: these ranks go on with this frame."""

    ranks: tuple[int, ...]
    frame: Frame | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Lowest common frame of ranks that part ways, and what follows on each side."""

    common: Frame | None
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A suspect that is not the cause, with the numbers that say so."""

    suspect: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Something that will soon destroy the evidence."""

    what: str
    in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer."""

    state: State
    symptom: Kind | None = None
    cause: Kind | None = None
    confidence: Confidence = Confidence.POSSIBLE
    summary: str = ""
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[Victim, ...] = ()
    chain: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()
    other_cycles: tuple[tuple[str, ...], ...] = ()
    diverged_at: Divergence | None = None
    cleared: tuple[Cleared, ...] = ()
    next_steps: tuple[str, ...] = ()
    deadline: Deadline | None = None


PHASE_ENDED = "done"


class Phase(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """What the workload is doing; `detail` PHASE_ENDED: it has done that, and what it does now is not known.

    (A struct, since the contract's name `from` cannot be a field's name.)
    """

    name: str
    detail: str | None = None
    rate_bytes_per_s: float | None = None
    eta_s: float | None = None
    source: str = "stack"

    @property
    def words(self) -> str:
        """As a person says it: `weight loading (2 of 4 shards)`, `weight loading done`."""
        name = self.name.replace("_", " ")
        if self.detail is None or self.detail == PHASE_ENDED:
            return f"{name} {self.detail or ''}".rstrip()
        return f"{name} ({self.detail})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the group is."""

    framework: str | None = None
    world_size: int | None = None
    ranks_seen: tuple[int, ...] = ()
    ranks_missing: tuple[int, ...] = ()
    phase: Phase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMemory:
    """Memory of one process in bytes."""

    rss: int | None = None
    pss: int | None = None
    uss: int | None = None
    anon: int | None = None
    file: int | None = None
    shmem: int | None = None
    swap: int | None = None
    hugetlb: int | None = None
    page_tables: int | None = None
    major_faults_per_s: float | None = None
    unique: int | None = None  # pages that no other member has
    driver: int | None = None  # mappings of device memory, which RSS does not count
    read_bytes_per_s: float | None = None  # from disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Waker:
    """`tid` woke `woke` `count` times while the probes were attached."""

    tid: int
    woke: int | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the probes counted; None in the report without eBPF."""

    window_s: float
    futex_waits: int
    futex_wait_s: float
    longest_wait_s: float
    wakers: tuple[Waker, ...]
    minor_faults: int
    major_faults: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSamples:
    """What the samples of a thread that ran in the last look have in common: `same_leaf` means all in the same
    innermost function, `same_stack` that all return addresses are equal, too.
    """

    count: int
    same_leaf: bool
    same_stack: bool
    leaves: tuple[str, ...]


class ReportThread(msgspec.Struct, frozen=True, kw_only=True):
    """One thread as of the last look.

    `stack_problem` says why the native stack ends before the start of the thread; None if it does not. So does
    `python_problem` of Python's frames ("9000 frames left out between the innermost and the outermost ones").
    `unmerged_from` is the index in `stack` from which on frames are those of the other language, where native and
    Python frames could not be proven to fit together; None where they are one stack.
    """

    tid: int
    name: str | None
    comm: str
    state: str
    wait: str | None = None
    asleep_for_s: float | None = None
    moved: bool = False
    cpu_s_in_window: float | None = None
    switches_in_window: int | None = None
    holds_gil: bool = False
    service: str | None = None
    stack_from: StackFrom = StackFrom.NONE
    stack: tuple[Frame, ...] = ()
    stack_problem: str | None = None
    python_problem: str | None = None
    unmerged_from: int | None = None
    samples: ReportSamples | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTask:
    """An asyncio task, or a suspended greenlet, as of the last look.

    `thread` is the id of the thread whose event loop it belongs to, None if no thread runs that loop. `current`:
    it runs, or its thread is blocked inside of it. `awaits` is what it waits for, None if not known; "ready": for
    its turn only. `wakes_in_s`: until a timer of its own ends the wait (a sleep, a timeout). `exception`: type of the
    exception that ended it. `moved`: its thread ran meanwhile, so that nothing here is sure.
    """

    thread: int | None
    name: str
    kind: TaskKind
    current: bool = False
    done: bool = False
    moved: bool = False
    awaits: str | None = None
    wakes_in_s: float | None = None
    exception: str | None = None
    stack: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProcess:
    """One process. `exit_code` is that of a zombie, negative for the signal that ended it."""

    pid: int
    ppid: int
    host: str
    rank: int | None
    local_rank: int | None
    coords: dict[str, int | None]
    rank_from: tuple[str, ...]
    role: Role
    title: str
    state: str
    exit_code: int | None
    asleep_for_s: float | None
    memory: ReportMemory
    probe: Probe | None
    threads: tuple[ReportThread, ...]
    tasks: tuple[ReportTask, ...] = ()


#: How the name of what a server's event loop owes its clients begins.
ANSWERS = "answers to"

#: What a loop that looks for a file waits for that is not there.
APPEARS = "a file to appear"

#: What is waited for of workers of a cluster.
RESULTS = "results of tasks"


class WaitObject(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for; only what is known is set. `collective` is a collective's id."""

    address: str | None = None  # hexadecimal
    path: str | None = None
    name: str | None = None
    fd: int | None = None
    inode: int | None = None
    collective: str | None = None
    peer_rank: int | None = None
    remaining_s: float | None = None


class ReportHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Who is recorded as holding the object. `alive` False: recorded, but that thread or process is gone."""

    pid: int
    tid: int | None = None
    alive: bool = True


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's wait, with what proves it."""

    id: str
    pid: int
    tid: int
    kind: WaitKind
    object: WaitObject = msgspec.field(default_factory=WaitObject)
    holder: ReportHolder | None = None
    candidates: tuple[ReportHolder, ...] = ()
    edge: Edge = Edge.ALL
    ends_by_itself: bool = False
    since_s: float | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatched:
    """A rank whose call differs from the others'."""

    rank: int
    op: str | None = None
    count: int | None = None
    dtype: str | None = None
    frame: Frame | None = None


class Collective(msgspec.Struct, frozen=True, kw_only=True, rename={"sources": "from"}):
    """One collective operation, matched over the ranks. All ranks are global ranks."""

    id: str
    group: str
    backend: str
    op: str
    seq: int | None = None
    count: int | None = None
    dtype: str | None = None
    root: int | None = None
    expected: tuple[int, ...] = ()
    entered: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    mismatched: tuple[Mismatched, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """A file, or shared segment, that members map. `resident` is what memory holds of it, `mapped_by` whose mappings
    have how many bytes, `in_rss` how much of it is in the RSS of all of them together (where page tables were read).
    """

    path: str
    kind: str  # file, shmem, hugetlb
    size: int | None
    resident: int | None
    mapped_by: dict[str, int]
    in_rss: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OomVictim:
    """A process that was killed for want of memory: when, at whose limit, and how that is known."""

    pid: int
    rank: int | None
    name: str
    ago_s: float | None
    limit_of: str  # "the machine", or the path of a control group
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BookEntry:
    """One line of the books of a control group. `remark` says what it is, or where it may come from."""

    name: str
    size: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupBooks:
    """What a control group is charged with, in parts that add up to `usage` but for `residue`. `others` are processes
    in it that do not belong to the job.
    """

    path: str
    version: int
    usage: int
    limit: int | None
    entries: tuple[BookEntry, ...]
    residue: int
    others: int | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A set of files that is being read. `done` is what the page cache has of them, or, where it has had them before,
    how far their readers are in those that they read; None in the rate: nothing tells.
    """

    files: str  # "/models/x/model-*.safetensors"
    count: int
    current: tuple[str, ...]
    readers: tuple[int, ...]
    total: int
    done: int | None
    rate_bytes_per_s: float | None
    eta_s: float | None
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Whether memory has anything to do with it, in numbers.

    `explanation` is one line about the sum of RSS. `shared` and `unique` are parts of what the group holds that several
    members or a single one have, `outsiders` what processes outside of the job are counted for in PSS; they are known
    where page tables were read, and `complete` says whether of all members. `merged` is anonymous memory that is in
    RSS often and may be there once, since its pages are alike (KSM).
    """

    verdict: MemoryVerdict
    rss_sum: int | None = None
    group_low: int | None = None
    group_high: int | None = None
    mode: MemoryMode = MemoryMode.BRACKET
    illusion_factor: float | None = None
    host_total: int | None = None
    host_available: int | None = None
    host_mapped: int | None = None
    cgroup_limit: int | None = None
    cgroup_current: int | None = None
    oom_kills: int | None = None
    summary: str = ""
    explanation: str = ""
    complete: bool = True
    shared: int | None = None
    unique: int | None = None
    outsiders: int | None = None
    pss_sum: int | None = None
    hugetlb: int | None = None
    page_tables: int | None = None
    merged: int | None = None
    files: tuple[MemoryFile, ...] = ()
    oom: tuple[OomVictim, ...] = ()
    books: CgroupBooks | None = None
    loading: tuple[Loading, ...] = ()
    evidence: tuple[str, ...] = ()
    cleared: tuple[Cleared, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(GpuState[dict[str, int]]):
    """One GPU. Clocks in MHz, temperature in °C; `memory_of` by process; what the fields mean: see `GpuState`."""

    memory_of: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What one source gave, and how to get it if it gave nothing."""

    source: str
    state: SourceState
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCost:
    """What we did to the machine. Left out of byte-for-byte comparison."""

    wall_s: float
    cpu_s: float
    stopped_us: dict[str, int]
    probe_attached_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report."""

    schema: str = SCHEMA
    tool_version: str
    host: str
    taken_at: str
    attached_to: tuple[int, ...]
    window_s: float
    verdict: Verdict
    workload: Workload
    processes: tuple[ReportProcess, ...]
    waits: tuple[Wait, ...]
    collectives: tuple[Collective, ...]
    memory: MemoryReport
    gpus: tuple[Gpu, ...]
    coverage: tuple[Coverage, ...]
    cost: ReportCost
    ras: RasAnswer | None = None  # NCCL's own view of the job, where it was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProcess:
    """One process in the answer of `hangtrace memory`. `problem`: why page tables of it were not, or not all, read."""

    pid: int
    rank: int | None
    role: Role
    name: str
    memory: ReportMemory
    problem: str | None = None
    problem_tid: int | None = None


MEMORY_SCHEMA = "hangtrace.memory/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    """What `hangtrace memory --json` prints; `memory` is the same object as in a report."""

    schema: str = MEMORY_SCHEMA
    tool_version: str
    host: str
    taken_at: str
    attached_to: tuple[int, ...]
    window_s: float
    memory: MemoryReport
    processes: tuple[MemoryProcess, ...]
    coverage: tuple[Coverage, ...]
    cost: ReportCost
