"""What was seen. Plain, frozen, ordered data: analysis needs nothing else, so a saved bundle gives the same
report.

Everything that could not be read is `None` (or an empty tuple where a list was asked for) and has a line in
`coverage`. All times are seconds unless the name says otherwise; all sizes are bytes; addresses are as the
target sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyhangtrace.model.gpu import CudaProcess, DriverFacts, GpuFacts
from pyhangtrace.model.kinds import FdKind, FoundBy, FrameKind, Role, SourceState, StackFrom, TaskKind
from pyhangtrace.model.nccl import NcclPicture
from pyhangtrace.model.ras import RasAnswer

SCHEMA = "hangtrace.evidence/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One source of evidence and what became of it; `fix` is a command or setting a person can apply."""

    source: str
    state: SourceState
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One stack frame. `file` and `line` for Python (and native with line tables), `module` for native
    code.
    """

    kind: FrameKind
    function: str
    file: str | None = None
    line: int | None = None
    module: str | None = None
    address: int | None = None
    found_by: FoundBy = FoundBy.CFI


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Where in its source a function is. `function` is "" if debug information has no name for it."""

    function: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """What debug information says of one address of code in a process (`code_addresses`).

    `positions`: the functions inlined there, innermost first, and last the function itself.
    """

    pid: int
    address: int
    positions: tuple[SourcePosition, ...]


def code_addresses(frames: Sequence[Frame]) -> tuple[int | None, ...]:
    """For each frame of a stack an address within the instruction it is at; `None` for what is no native frame.

    A caller's address is where it goes on, behind the call. The innermost frame is at its own program counter.
    """
    addresses: list[int | None] = []
    innermost = True
    for frame in frames:
        if frame.kind is not FrameKind.NATIVE or frame.address is None:
            addresses.append(None)
            continue
        exact = innermost and frame.found_by in (FoundBy.LEAF, FoundBy.CALL_SITE)
        addresses.append(frame.address if exact else frame.address - 1)
        innermost = False
    return tuple(addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFacts:
    """A futex-based object, decoded from the target's memory in the same instant as the thread's stack.

    `kind`: mutex_normal, mutex_recursive, mutex_errorcheck, mutex_adaptive, mutex_robust, mutex_pi,
    mutex_timed, rwlock_read, rwlock_write, join, condition, semaphore, python_lock, python_rlock, gil,
    barrier, future, once, openmp, atomic, futex. `owner_tid` is what is recorded, also if that thread no longer
    exists (`problem` says so). `shared_key` is (device, inode, byte offset) for a futex in a shared
    mapping: equal keys are one object. `shared_file` is the file it lies in, None if it can only be inherited or sent.
    `owner_age_s` is the time since the thread of the recorded id was started.
    """

    kind: str
    address: int
    uaddr: int
    op: int
    value: int
    timeout: bool = False
    owner_tid: int | None = None
    owner_from: str | None = None
    owner_exact: bool = False
    readers: int | None = None
    shared_key: tuple[int, int, int] | None = None
    shared_file: str | None = None
    owner_age_s: float | None = None
    python_lock_address: int | None = None
    problem: str | None = None
    expected: int | None = None  # the value the thread went to sleep on
    mutex: int | None = None  # condition: the mutex its waiter gave up and will want back
    owner_function: str | None = None  # python_lock: the function whose `with` block holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """A local of a well-known wait frame that identifies the object waited for (a lock file's path, a peer
    rank).

    `function` is the Python frame's qualified name. Only names listed in the collectors' tables are ever
    read. Of an object there are its type and address, of a container also how many are in it, and of those
    that were asked for the addresses (of a dict keys and values in turn; ints are themselves).
    """

    function: str
    name: str
    value: str | int | None
    type: str | None = None
    address: int | None = None
    length: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSamples:
    """What several samples of a running thread, some milliseconds apart, have in common.

    `same_leaf`: all are in the same innermost function; `same_stack`: and all return addresses are equal, too.
    `leaves` are the innermost functions, in the order they were first seen, at most eight.
    """

    count: int
    same_leaf: bool
    same_stack: bool
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSample:
    """One thread in one look.

    `syscall` is the number of the system call the thread is blocked in, `None` while it runs or if
    unreadable; a restarted call is already decoded back. `moved` says that the thread ran while this look
    was taken (its schedstat changed), so its stack may mix two moments. `run_ns` and `slices` are
    schedstat's run time and number of time slices: equal in two looks means the thread did not run in
    between. `unmerged_python` are Python frames that do not fit between the native `frames`; of a running
    thread, whose Python frames were read at another moment, the native ones stand apart. `io_fds` are the
    descriptors a read/write/poll/select/epoll waits on, `timeout_s` the requested duration of a timed call,
    `remaining_s` what is left of it. `asleep_for_s` is the time since the thread last ran. `path` is the file or the
    address ("/run/x", "127.0.0.1:80") that the call names, `semaphores` are the pairs (number in its set, change)
    of a semop, `tracer_pid` is who has stopped a thread in state t. `polls_for` are the words by which the source of a
    loop that naps says that it looks for a file ("except FileExistsError", "while exists()"), `path_mount` is the file
    system of `path` ("nfs4 mounted at /data from nas:/data"), where the thread sleeps on its account, and
    `fuse_connection` the number of the connection to its server, if it is a FUSE one. In a page fault `path` is the
    file of the only mapping that a file server has to provide.
    """

    pid: int
    tid: int
    comm: str
    name: str | None = None
    state: str = "?"
    wchan: str | None = None
    syscall: int | None = None
    args: tuple[int, ...] = ()
    run_ns: int | None = None
    slices: int | None = None
    utime_ticks: int = 0
    stime_ticks: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    moved: bool = False
    running: bool = False
    asleep_for_s: float | None = None
    holds_gil: bool = False
    frames: tuple[Frame, ...] = ()
    unmerged_python: tuple[Frame, ...] = ()
    unmerged_native: tuple[Frame, ...] = ()
    samples: StackSamples | None = None
    stack_from: StackFrom = StackFrom.NONE
    stack_complete: bool = False
    stack_problem: str | None = None
    python_problem: str | None = None  # why Python's frames are not whole
    lock: LockFacts | None = None
    named_values: tuple[NamedValue, ...] = ()
    io_fds: tuple[int, ...] = ()
    timeout_s: float | None = None
    remaining_s: float | None = None
    path: str | None = None
    semaphores: tuple[tuple[int, int], ...] = ()
    tracer_pid: int | None = None
    polls_for: str | None = None
    path_mount: str | None = None
    fuse_connection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSample:
    """An asyncio task, or a suspended greenlet, in one look.

    `tid` is the thread whose event loop it belongs to, None if no thread runs that loop. `current`: it runs, or
    its thread is blocked inside of it. `moved`: its thread ran while the look was taken, so that nothing here is
    sure. `awaits` is what it waits for ("Queue.get", "sleep", "task 'reader'", "gather of 3, 2 pending",
    "Future", "ready": for its turn only), None if that is not known; `awaits_address` the future or task,
    which is the `address` of another sample where that is a task. `wakes_in_s` is what is left of a
    sleep, or until a timeout of its own ends the wait. `needs` are the addresses of tasks, and of futures that other
    threads work on, all of which have to be done before it goes on; with `needs_known` nothing else would let it.
    `lock` is the asyncio.Lock that it waits for, `holds` are those in whose `async with` it is suspended. `computes`
    is the future by which another thread waits for its end.
    `frames` are innermost first, from what it awaits out to the task's own coroutine; `problem` says why they
    are not whole. `exception` is the type of the exception that ended it.
    """

    pid: int
    tid: int | None = None
    kind: TaskKind = TaskKind.ASYNCIO
    name: str = ""
    address: int = 0
    current: bool = False
    done: bool = False
    moved: bool = False
    exception: str | None = None
    awaits: str | None = None
    awaits_address: int | None = None
    needs: tuple[int, ...] = ()
    needs_known: bool = False
    lock: int | None = None
    holds: tuple[int, ...] = ()
    computes: int | None = None
    wakes_in_s: float | None = None
    frames: tuple[Frame, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has something open; `mode` is "r", "w" or "rw" as opened."""

    pid: int
    fd: int | None = None
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFacts:
    """A socket as the kernel's tables describe it.

    `family`: unix, tcp, tcp6, udp, netlink, …; `state` in the kernel's words (LISTEN, ESTABLISHED,
    SYN_SENT, …). `peer_inode` joins both ends on this host; of a socket that is not connected yet it is the
    listener it asks. `rx_queue`/`tx_queue` in bytes, `peer_rx_queue` what lies unread at the other end.
    """

    family: str
    state: str = ""
    local: str = ""
    remote: str = ""
    peer_inode: int | None = None
    rx_queue: int | None = None
    tx_queue: int | None = None
    peer_rx_queue: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FdFacts:
    """One descriptor of one process that matters (a thread blocks on it, or a lock or wait leads to it).

    `others` are all other holders of the same pipe, socket, message queue or event counter (also this process' other
    descriptors), `peers` the holders of the other end of a socket, or the servers of a FUSE file system. `watches`
    are the descriptors in an epoll set. `queued` is the number of unread bytes in a socket or message queue. Of
    a pipe the kernel tells it only to those who have it open, and having it open would change what it does.
    `info` are the numbers that the kernel shows of the object (fdinfo), `mount` is where its file system is mounted,
    and from what ("/data from nas:/data").
    """

    pid: int
    fd: int
    kind: FdKind
    target: str
    inode: int | None = None
    device: int | None = None
    mode: str = ""
    nonblocking: bool = False
    others: tuple[Holder, ...] = ()
    peers: tuple[Holder, ...] = ()
    socket: SocketFacts | None = None
    watches: tuple[int, ...] = ()
    queued: int | None = None
    capacity: int | None = None
    fs_type: str | None = None
    mount: str | None = None
    info: tuple[tuple[str, int], ...] = ()
    holders_complete: bool = True  # every process on the host could be searched for the other holders


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLock:
    """One line of the kernel's lock table. `waiters` are pids queued behind it; `path` if a holder's fd
    names it.
    """

    kind: str  # flock, posix, ofd, lease
    access: str  # read, write
    pid: int  # -1 for OFD locks, which belong to an open file, not to a process
    device: int
    inode: int
    waiters: tuple[int, ...] = ()
    openers: tuple[int, ...] = ()  # processes that have this inode open
    path: str | None = None
    # Descriptors that carry the lock (fdinfo): who really holds a flock whose taker has died or passed it on.
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """A file whose mere existence is a lock, polled by path. Ages in seconds at the time of the look."""

    path: str
    exists: bool
    pid: int | None = None  # whose view of the file system the path was resolved in
    inode: int | None = None
    age_s: float | None = None
    openers: tuple[int, ...] = ()
    openers_complete: bool = True  # every process on the host could be searched for openers
    older_than_job: bool | None = None  # older than every process of the job
    fs_type: str | None = None
    owner_pid: int | None = None  # pid written in the file, if it holds nothing but a number
    owner_alive: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcFacts:
    """A semaphore or message queue of System V that a thread waits for. Pids are 0 if they cannot be seen from here.

    `kind`: sem, msg. `id` and `key` as ipcs shows them, in the IPC namespace of `pid`. Of a semaphore: its
    `number` in the set, its `value`, how many wait for it to grow (`waiting`), and who changed it last (`last_pid`). Of
    a queue: `messages` and `queued` bytes in it, who sent and who received last. Neither records an owner.
    """

    pid: int
    kind: str
    id: int
    key: int = 0
    number: int | None = None
    value: int | None = None
    waiting: int | None = None
    last_pid: int | None = None
    messages: int | None = None
    queued: int | None = None
    last_sender: int | None = None
    last_receiver: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClaim:
    """One source's word on who a process is; claims are compared, never trusted alone."""

    source: str  # "environ RANK", "program environ RANK", "title", "start order", …
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    coords: tuple[tuple[str, int], ...] = ()  # (("tp", 0), ("pp", 1))
    framework: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process in bytes; from status (cheap) and, where read, smaps."""

    rss: int | None = None
    anon: int | None = None
    file: int | None = None
    shmem: int | None = None
    swap: int | None = None
    hugetlb: int | None = None
    page_tables: int | None = None
    pss: int | None = None
    uss: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file (or shared segment) mapped by members of the job; `resident` is what the page cache holds of
    it.
    """

    path: str
    device: int
    inode: int
    size: int | None
    resident: int | None
    mappers: tuple[int, ...]
    kind: str = "file"  # file, shmem, hugetlb


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFacts:
    """The memory cgroup of the job (the nearest with a limit) and its CPU quota, as far as visible from
    here.
    """

    version: int
    path: str
    limit: int | None = None
    usage: int | None = None
    oom_kills: int | None = None
    cache: int | None = None
    anon: int | None = None
    nr_throttled: int | None = None
    throttled_s: float | None = None
    frozen: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureFacts:
    """Pressure stall information: share of time in percent over 10 s."""

    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None
    cpu_some: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKill:
    """One OOM kill known from the kernel log."""

    pid: int
    comm: str
    text: str
    age_s: float | None = None  # before the evidence was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The machine at the time of the evidence."""

    name: str
    kernel: str = ""
    machine: str = ""  # x86_64, aarch64
    cpus: int = 0
    page_size: int = 4096
    ticks_per_s: int = 100
    uptime_s: float | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    memory_mapped: int | None = None
    memory_shmem: int | None = None
    memory_cached: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    pressure: PressureFacts | None = None
    oom_kills: int | None = None  # since boot, vmstat oom_kill
    oom_log: tuple[OomKill, ...] = ()
    xids: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """The interpreter inside a process."""

    version: str
    layout_from: str
    free_threaded: bool = False
    gil_address: int | None = None
    gil_locked: bool | None = None
    gil_holder_tid: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process: a member of the job, or an outsider that a wait leads to (`role` outsider).

    `problem` says why nothing more could be read ("mmap_lock_held", "not_permitted", "gone", "zombie",
    "kernel_thread", "32bit"; "timed_out", "no_time": not this time); `problem_tid` the thread that causes it, where
    known. `exit_code` is the wait status of a zombie as /proc shows it to those who may see it.
    """

    pid: int
    ppid: int = 0
    role: Role = Role.OTHER
    comm: str = ""
    title: str = ""
    exe: str = ""
    uid: int | None = None
    state: str = "?"
    started_s_ago: float | None = None
    start_ticks: int = 0
    pgid: int | None = None
    sid: int | None = None
    tracer_pid: int | None = None
    signals_caught: tuple[int, ...] | None = None  # numbers of the signals it has handlers for
    exit_code: int | None = None
    python: PythonFacts | None = None
    modules: tuple[str, ...] = ()  # frameworks seen loaded: torch, vllm, sglang, ray, mpi, nccl, gloo …
    claims: tuple[RankClaim, ...] = ()
    identity: tuple[tuple[str, str], ...] = ()  # the few environment values that identify a rank or a job
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    cgroup: str | None = None
    frozen_by: str | None = None  # the control group that keeps it frozen
    cpu_cgroup: str | None = None  # the nearest one with a CPU quota, by its path below the controller
    throttled_s_in_window: float | None = None  # how long that quota kept its members off the CPU
    container: bool = False  # another PID namespace than ours
    gone: bool = False  # disappeared between the first and the last look
    cpu_s_in_window: float | None = None
    read_bytes_in_window: int | None = None
    problem: str | None = None
    problem_tid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One picture of all threads. `at_s` counts from the first look."""

    at_s: float
    threads: tuple[ThreadSample, ...]
    fds: tuple[FdFacts, ...] = ()
    file_locks: tuple[FileLock, ...] = ()
    lock_files: tuple[LockFile, ...] = ()
    tasks: tuple[TaskSample, ...] = ()
    ipc: tuple[IpcFacts, ...] = ()
    mpi: tuple[MpiFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOperation:
    """An operation that a process group was given and that has not ended. `inputs` and `outputs` are shapes of tensors.

    `sequence` counts the collectives of the group, or its point-to-point operations, from 1 on.
    """

    op: str
    backend: str = ""
    sequence: int = 0
    is_p2p: bool = False
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroupFacts:
    """A process group of torch.distributed, as the memory of one of its members describes it.

    `name` is torch's own ("0", "1", a hash), `description` what the program calls it ("default_pg", "tp"), `address`
    that of the Python object, `ranks` are the global ranks in order of their ranks in the group, `rank` is the own
    global one. `recorded`: its operations are known; `begun` is the number of the last collective (0: none yet).
    Of a communicator of MPI `awaits` are (rank, tag) of messages expected; -1 is any rank, tags below -1 are those of
    collectives.
    """

    pid: int
    name: str
    ranks: tuple[int, ...]
    address: int | None = None
    description: str = ""
    rank: int | None = None
    is_default: bool = False
    recorded: bool = False
    begun: int = 0
    pending: tuple[PendingOperation, ...] = ()
    awaits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiFacts:
    """What the memory of a process says of MPI. `communicators` are () if not all of them make sense.

    `messages` is a digest of the counters of its messages: while it stays, none was matched. None: it has no such ones.
    """

    pid: int
    communicators: tuple[ProcessGroupFacts, ...] = ()
    messages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """How the group was found and what it is. `observers` are the processes that run us, from our parent up, as far as
    they are no members: what they do meanwhile is to wait for us.
    """

    root_pid: int
    members: tuple[int, ...]
    found_by: str  # a sentence: "torchrun agent 4200 and its descendants"
    framework: str | None = None
    world_size: int | None = None
    observers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What collecting did to the machine. `stopped_us` has pairs (pid, microseconds stopped)."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    stopped_us: tuple[tuple[int, int], ...] = ()
    probe_attached_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything one run saw on one host. `source` is for showing the last look's stacks, and no part of what they
    mean.
    """

    schema: str = SCHEMA
    tool_version: str
    taken_at: str  # RFC 3339
    attached_to: tuple[int, ...]
    host: HostFacts
    job: JobFacts
    processes: tuple[ProcessFacts, ...]
    looks: tuple[Look, ...]  # at least one, in order of time
    probes: tuple[tuple[int, ProbeEvidence], ...] = ()
    mapped_files: tuple[MappedFile, ...] = ()
    cgroup: CgroupFacts | None = None
    gpus: tuple[GpuFacts, ...] = ()
    gpu_driver: DriverFacts | None = None
    cuda: tuple[CudaProcess, ...] = ()
    coverage: tuple[SourceStatus, ...] = ()
    cost: Cost = field(default_factory=Cost)
    source: tuple[SourcePlace, ...] = ()
    groups: tuple[ProcessGroupFacts, ...] = ()
    ras: RasAnswer | None = None
    nccl: tuple[NcclPicture, ...] = ()  # in order of time; empty where nobody has libnccl loaded

    @property
    def window_s(self) -> float:
        """Seconds between the first and the last look."""
        return self.looks[-1].at_s - self.looks[0].at_s
