"""The closed vocabularies of evidence and report. Values are what JSON shows; members may be added, never
renamed.
"""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """What is going on, in one word."""

    HUNG = "hung"
    BUSY = "busy"
    SLOW = "slow"
    RUNNING = "running"
    IDLE = "idle"
    ENDED = "ended"
    UNKNOWN = "unknown"


WELL = frozenset({State.RUNNING, State.IDLE})
"""Of these there is nothing to tell: the job is well."""


class Confidence(str, Enum):
    """How much the verdict rests on."""

    PROVEN = "proven"  # follows from kernel or memory state alone, all threads on the chain unmoved
    LIKELY = "likely"  # needs one rule about frames
    POSSIBLE = "possible"  # a heuristic


class Part(str, Enum):
    """What a named process has to do with the hang."""

    CULPRIT = "culprit"
    PARTY = "party"
    ABSENT = "absent"


class Kind(str, Enum):
    """Symptoms and causes: what a person would act on differently."""

    COLLECTIVE_MISSING_RANK = "collective.missing_rank"
    COLLECTIVE_OP_MISMATCH = "collective.op_mismatch"
    COLLECTIVE_SIZE_MISMATCH = "collective.size_mismatch"
    COLLECTIVE_ROOT_MISMATCH = "collective.root_mismatch"
    COLLECTIVE_GROUP_CYCLE = "collective.group_cycle"
    COLLECTIVE_NONE_COMPLETES = "collective.none_completes"
    P2P_UNMATCHED = "p2p.unmatched"
    P2P_CYCLE = "p2p.cycle"
    RENDEZVOUS_MISSING_RANK = "rendezvous.missing_rank"
    RENDEZVOUS_UNREACHABLE = "rendezvous.unreachable"
    PEER_EXITED = "peer.exited"
    PEER_OOM_KILLED = "peer.oom_killed"
    PEER_STOPPED = "peer.stopped"
    LOCK_CYCLE = "lock.cycle"
    LOCK_HELD = "lock.held"
    LOCK_OWNER_GONE = "lock.owner_gone"
    LOCK_AFTER_FORK = "lock.after_fork"
    LOCK_GIL = "lock.gil"
    LOCK_IMPORT = "lock.import"
    LOCK_HANDOFF_LOST = "lock.handoff_lost"
    LOCK_TEARDOWN = "lock.teardown"
    FILE_LOCK_HELD = "file_lock.held"
    FILE_LOCK_STALE = "file_lock.stale"
    COMPILE_RUNNING = "compile.running"
    IPC_CYCLE = "ipc.cycle"
    IPC_PIPE_FULL = "ipc.pipe_full"
    IPC_NO_EOF = "ipc.no_eof"
    IPC_PEER_SILENT = "ipc.peer_silent"
    WORKER_STUCK = "worker.stuck"
    WORKER_DEAD = "worker.dead"
    CHILD_STUCK = "child.stuck"
    TIMER = "timer"
    CPU_SPIN = "cpu.spin"
    CPU_BUSY = "cpu.busy"
    CPU_THROTTLED = "cpu.throttled"
    MEMORY_THRASH = "memory.thrash"
    MEMORY_PRESSURE = "memory.pressure"
    MEMORY_OOM = "memory.oom"
    MEMORY_SHM_FULL = "memory.shm_full"
    IO_STALLED = "io.stalled"
    GPU_KERNEL_SPIN = "gpu.kernel_spin"
    GPU_STREAM_STALLED = "gpu.stream_stalled"
    GPU_IMPLICIT_SYNC = "gpu.implicit_sync"
    GPU_GRAPH_CAPTURE = "gpu.graph_capture"
    GPU_FAULT = "gpu.fault"
    FABRIC_FAULT = "fabric.fault"
    DRIVER_BLOCKED = "driver.blocked"
    OBSERVER_STUCK = "observer.stuck"
    IDLE = "idle"
    UNKNOWN = "unknown"


class TaskObjectKind(str, Enum):
    """Objects of asyncio that tasks wait for."""

    LOCK = "lock"
    SEMAPHORE = "semaphore"
    EVENT = "event"
    CONDITION = "condition"
    BARRIER = "barrier"
    QUEUE = "queue"


class WaitKind(str, Enum):
    """What sort of thing a thread waits for."""

    COLLECTIVE = "collective"
    P2P = "p2p"
    RENDEZVOUS = "rendezvous"
    MUTEX = "mutex"
    RWLOCK = "rwlock"
    CONDITION = "condition"
    SEMAPHORE = "semaphore"
    BARRIER = "barrier"
    ONCE = "once"  # what another thread initialises
    GIL = "gil"
    PYTHON_LOCK = "python_lock"
    IMPORT_LOCK = "import_lock"
    JOIN = "join"
    FILE_LOCK = "file_lock"
    LOCK_FILE = "lock_file"
    PIPE = "pipe"
    SOCKET = "socket"
    QUEUE = "queue"
    CHILD = "child"
    TIMER = "timer"
    POLL = "poll"
    IO = "io"
    PAGE_FAULT = "page_fault"
    GPU = "gpu"
    STOPPED = "stopped"
    THROTTLED = "throttled"
    RUNNING = "running"


class Edge(str, Enum):
    """Whether every target must act to end the wait (`all`) or any one of them is enough (`any`)."""

    ALL = "all"
    ANY = "any"


class Role(str, Enum):
    """What a process is to the job."""

    RANK = "rank"
    LAUNCHER = "launcher"
    DATA_WORKER = "data_worker"
    ENGINE = "engine"
    SCHEDULER = "scheduler"
    DETOKENIZER = "detokenizer"
    COMPILER = "compiler"
    OUTSIDER = "outsider"
    OTHER = "other"


class SourceState(str, Enum):
    """What became of one source of evidence."""

    USED = "used"
    ABSENT = "absent"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


class MemoryVerdict(str, Enum):
    """Whether memory has anything to do with it."""

    NORMAL = "normal"
    RSS_ILLUSION = "rss_illusion"
    PRESSURE = "pressure"
    THRASH = "thrash"
    OOM_KILLED = "oom_killed"
    SHM_FULL = "shm_full"
    SWAP = "swap"


class MemoryMode(str, Enum):
    """How the group's memory was determined."""

    BRACKET = "bracket"
    ROLLUP = "rollup"
    PFN_UNION = "pfn_union"


class FrameKind(str, Enum):
    """The language of a stack frame."""

    PYTHON = "python"
    NATIVE = "native"
    KERNEL = "kernel"


class TaskKind(str, Enum):
    """What switches between pieces of work inside of one thread."""

    ASYNCIO = "asyncio"
    GREENLET = "greenlet"


class FoundBy(str, Enum):
    """How a frame was found. `leaf` is the program counter itself; `call_site` a frame named through its
    caller; `inlined` a function without a frame of its own, inside the next one outwards.
    """

    LEAF = "leaf"
    CFI = "cfi"
    PROLOGUE = "prologue"
    SCAN = "scan"
    PYTHON = "python"
    CALL_SITE = "call_site"
    INLINED = "inlined"


class StackFrom(str, Enum):
    """The rung of the ladder a thread's registers came from."""

    PC_SP = "pc_sp"
    REPAIRED = "repaired"
    BPF = "bpf"
    PERF = "perf"
    STOP = "stop"
    NONE = "none"


class PolledThing(str, Enum):
    """What a loop of a program's own asks for again and again, between its naps."""

    FILE = "file"  # that is there, or is not
    LOCK = "lock"
    FILE_LOCK = "file_lock"
    CHILD = "child"  # has it ended?
    THREAD = "thread"  # or a process of multiprocessing: does it live?
    FUTURE = "future"  # is it done?
    MPI_REQUEST = "mpi_request"  # is it complete?


class StoreAnswer(str, Enum):
    """What comes of a try to reach a store."""

    NOBODY_LISTENS = "nobody listens"
    NO_ANSWER = "no answer"


class FdKind(str, Enum):
    """What a file descriptor refers to."""

    FILE = "file"
    DIRECTORY = "directory"
    PIPE = "pipe"
    SOCKET = "socket"
    EVENTFD = "eventfd"
    EPOLL = "epoll"
    TIMERFD = "timerfd"
    SIGNALFD = "signalfd"
    INOTIFY = "inotify"
    PIDFD = "pidfd"
    DEVICE = "device"
    TTY = "tty"
    MEMFD = "memfd"
    IO_URING = "io_uring"
    USERFAULTFD = "userfaultfd"
    MQUEUE = "mqueue"
    OTHER = "other"
