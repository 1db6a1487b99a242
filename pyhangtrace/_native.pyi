"""Typed stub of the extension. Every value is plain (dict, list, tuple, int, str, bytes, None) or a numpy array, so
it can be pickled and cross a pipe. Blocking work runs without the GIL.

Sizes are bytes, times nanoseconds unless the name says otherwise, addresses are as the target sees them, thread
ids as the reader of `proc_root` sees them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

class SamplesCapture(TypedDict):
    """Of a running thread: what its samples have in common."""

    count: int
    same_leaf: bool
    same_stack: bool
    leaves: list[str]

# (kind "python" | "native" | "kernel", function, file, line, module, address,
#  found_by "leaf" | "cfi" | "prologue" | "scan" | "python" | "call_site").
# `function` is "" for a native frame nobody can name; `file` and `line` only for Python, `module` and `address`
# only for native frames; `found_by` is "cfi" for kernel frames.
FrameTuple = tuple[str, str, str | None, int | None, str | None, int | None, str]

class PythonObject(TypedDict, total=False):
    """A Python value that is not plain. `length` of bytes, list, tuple and dict; `items` of the latter three, of a
    dict keys and values in turn: [] if there are many, or deep inside. `held` of everything else: address of the
    C++ object that a pybind11 object wraps.
    """

    type: str
    address: int
    length: int
    items: list[PythonValue]
    held: int | None

PythonValue = None | bool | int | float | str | PythonObject

class LockCapture(TypedDict):
    # mutex_normal, mutex_recursive, mutex_errorcheck, mutex_adaptive, mutex_robust, mutex_pi, mutex_timed,
    # rwlock_read, rwlock_write, join, condition, semaphore, python_lock, python_rlock, gil, barrier, future, once,
    # openmp, atomic, futex
    kind: str
    address: int  # of the object (mutex, thread, semaphore, …); uaddr where it is not known
    uaddr: int
    op: int  # futex operation without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME
    value: int  # the futex word as read now
    expected: int  # the value the thread went to sleep on
    timeout: bool  # a timed wait: ends by itself
    # Who is recorded in memory, translated from the target's pid namespace. If no such thread exists (any more, or
    # in this process: inherited through fork) it is still named, not exact, and `problem` says so.
    owner_tid: int | None
    owner_from: str | None  # "pthread_mutex_t.__owner", "futex word", "__cur_writer", "pd->tid", …
    owner_exact: bool
    readers: int | None  # rwlock: holders for reading
    mutex: int | None  # condition: the mutex given to pthread_cond_wait, where found on the waiter's stack
    # (device as st_dev, inode, byte offset) of a futex in a shared mapping
    shared_key: tuple[int, int, int] | None
    shared_file: str | None  # name of that mapping's file; None: it can only be inherited or sent
    owner_age_s: float | None  # since the thread of that id was started
    unseen_owner: (
        int | None
    )  # thread id that a shared lock records, of a process of which nothing was captured
    python_lock_address: int | None
    owner_function: str | None  # python_lock: function whose `with` block holds it
    problem: str | None

class ThreadCapture(TypedDict):
    tid: int
    comm: str
    state: str  # one letter of /proc/PID/stat; "?" if unreadable
    wchan: str | None  # None: not asked for (asleep in a futex call), not visible, or nothing
    syscall: int | None  # None: running or unreadable; -1: blocked, but not in a system call (a page fault)
    args: tuple[int, ...]  # six, or none
    sp: int | None
    pc: int | None
    run_ns: int | None
    slices: int | None
    start_ticks: int
    cpu: int  # the last one it ran on
    utime: int  # ticks
    stime: int  # ticks
    minflt: int
    majflt: int
    moved: bool  # it ran while this picture was taken
    running: bool
    frames: list[FrameTuple]  # innermost first
    unmerged_python: list[FrameTuple]  # [] when merged into frames
    stack_from: str  # "pc_sp" | "repaired" | "bpf" | "perf" | "stop" | "none"
    complete: bool
    stack_problem: str | None
    python_problem: str | None  # why Python's frames are not whole
    samples: SamplesCapture | None  # of a thread that ran while it was looked at
    python_name: str | None
    ident: int | None
    holds_gil: bool
    lock: LockCapture | None
    kernel_stack: list[str]  # innermost first; only threads in state D
    # (function, name, value) of the locals asked for with `named_locals`; None also where there is none
    named_values: list[tuple[str, str, PythonValue]]
    nap_loop: list[str]  # functions that the loop around a nap of a program in C calls
    lets_go: str | None  # of a Python thread that naps: the word by which its code could let others go on

class GilCapture(TypedDict):
    address: int
    locked: bool
    holder_tid: int | None

class PythonCapture(TypedDict):
    version: str
    layout_from: str
    free_threaded: bool
    gil: GilCapture | None  # of the first interpreter
    problem: str | None
    thread_count: int

class TaskObjectCapture(TypedDict):
    """The object of asyncio in one of whose methods a task is suspended."""

    kind: str  # "lock", "semaphore", "event", "condition", "barrier", "queue"
    method: str  # "get", "join", …
    address: int
    count: int | None  # permits or items that are there, unfinished pieces of work, or how many have come
    limit: int | None  # of how many, where it knows that; 0: without a limit

class TaskCapture(TypedDict):
    """An asyncio task, or a suspended greenlet."""

    kind: str  # "asyncio" | "greenlet"
    address: int
    name: str
    tid: int | None  # thread whose event loop it belongs to; None: no thread runs that loop, or unknown
    current: bool  # it runs, or its thread is blocked inside of it
    done: bool
    moved: bool  # its thread ran while this picture was taken: nothing here is sure
    exception: str | None  # done: type of the exception that ended it
    awaits: (
        str | None
    )  # "Queue.get", "sleep", "task 'reader'", "gather of 3, 2 pending", "Future", "ready", …
    awaits_address: int | None  # of the awaited future or task
    object: TaskObjectCapture | None
    # tasks, and futures that threads work on, by address, all of which have to be done before it goes on
    needs: list[int]
    needs_known: bool  # nothing else would let it go on, but for a timer or an exception
    lock: int | None  # the asyncio.Lock that it waits for
    holds: list[int]  # those in whose `async with` it is suspended
    computes: int | None  # the future of concurrent.futures that is done when it is
    # seconds from the picture on until a timer of its own ends the wait: sleep, wait_for, asyncio.timeout
    wakes_in_s: float | None
    lets_go: str | None
    frames: list[FrameTuple]  # innermost first, Python only
    named_values: list[tuple[str, str, PythonValue]]  # as of a thread
    problem: str | None  # why the frames are not whole

class ProcessCapture(TypedDict):
    pid: int
    # None, or why there is nothing or not everything: "gone", "not_permitted", "mmap_lock_held", "kernel_thread",
    # "zombie", "32bit", "unreadable", "no_time". Threads are listed with what could be read without touching memory.
    error: str | None
    error_tid: int | None  # mmap_lock_held: the thread that sleeps with it or waits for it
    exec_changed: bool  # it called execve while this picture was taken: frames are left out
    threads: list[ThreadCapture]
    python: PythonCapture | None
    tasks: list[TaskCapture]
    tasks_left_out: int  # more than are looked at
    notes: list[str]
    # (source, "used" | "refused" | "absent" | "failed" | "limited", reason) of further ways to registers that this
    # process needed: "ebpf registers", "perf samples", "thread stop".
    rungs: list[tuple[str, str, str]]
    stopped_us: int  # by us, its threads together

class Engine:
    """Keeps modules, symbols and Python code objects between looks. Not for use by two threads at once."""

    def __init__(self, proc_root: str = "/proc") -> None: ...
    def capture(
        self,
        pids: Sequence[int],
        *,
        python: bool = True,
        stacks: bool = True,
        bpf: bool = True,
        running: bool = True,
        stop: Sequence[int] = (),
        named_locals: Mapping[str, Sequence[str]] | None = None,
        on_process: Callable[[int], None] | None = None,
        budget_s: float | None = None,
        workers: int = 0,
    ) -> list[ProcessCapture]:
        """One picture of all processes, in the order given. Never raises for what a process does.

        `named_locals` maps a Python function's qualified name to names of its locals to read; "self.path" reads an
        attribute of a local in its instance dictionary or a slot, as deep as there are dots. `bpf` False: no eBPF for
        registers; `running` False: no samples of threads that run, which then have no stack. Of the processes in `stop` a thread without a complete stack is stopped for a moment, unless it
        would notice. `on_process` is called before a process is looked at, by the thread that does, so
        that a watcher knows which one it got stuck on. Up to `workers` threads look at processes, 0: as many as there
        are CPUs that nobody else wants just now, four at most. After `budget_s` no further memory is read and no
        further stack unwound: what is there comes back, and the others have the error "no_time".
        """

    def python_environ(self, pid: int, names: Sequence[str]) -> dict[str, str]:
        """The program's own os.environ, only the asked names; {} if it is no Python program or unreadable."""

    def python_globals(
        self, pid: int, module: str, names: Sequence[str], *, most_items: int, most_values: int
    ) -> list[PythonValue]:
        """Globals of an imported module; "a.b" reads an attribute as in `named_locals`. None: it is not there. Of a
        container at most `most_items` elements are read, in all at most `most_values` values.
        """

    def symbol_addresses(self, pid: int, library: str, names: Sequence[str]) -> list[int | None]:
        """Where the first loaded library whose file's name begins with `library` has these symbols (mangled names,
        exported or local).
        """

    def recorders(self, pid: int, *, all: bool = False, frames: bool = False) -> list[RecorderCapture]:
        """Flight recorders of torch.distributed, one for each loaded library of torch that can have one. Without `all`
        only what has not ended of each group, and its last operations. `frames`: where each was begun.
        """

    def python_argv(self, pid: int) -> list[str]:
        """The program's own sys.argv; [] if it is no Python program or unreadable."""

    def code_names(self, pid: int, addresses: Sequence[int]) -> list[tuple[str | None, str | None]]:
        """(function, file) at each address of code, named as the innermost frames of stacks are."""

    def source_lines(
        self, pid: int, addresses: Sequence[int], *, budget_s: float
    ) -> tuple[list[list[tuple[str, str | None, int | None]]], list[str]]:
        """(function, file, line) at each address of code, functions inlined there first, innermost first; and why some
        are missing. From debug information (DWARF 2 to 5) in the file or a separate debug file; [] without.

        For a return address ask for the byte before it. `function` is "" where debug information has no name.
        """

class OperationCapture(TypedDict):
    """As `pyhangtrace.model.recorders.RecordedOperation`."""

    id: int
    pg_id: int
    group: str
    description: str
    collective: int
    p2p: int
    op_id: int
    name: str
    created_ns: int
    timeout_ms: int
    is_p2p: bool
    duration_ms: float | None
    started_ns: int | None
    completed_ns: int | None
    inputs: list[list[int]]
    outputs: list[list[int]]
    input_dtypes: list[str]
    output_dtypes: list[str]
    thread_id: int
    thread_name: str
    retired: bool
    frames: list[tuple[str, str, int]]  # function, file, line (0: unknown)

class RecorderCapture(TypedDict):
    library: str
    # "read" | "off" | "never_made" | "unreadable" | "unknown_layout" | "moving" | "no_symbol"
    outcome: str
    layout: str  # releases of torch that have it
    most: int
    recorded: int
    resets: int
    whole: bool
    operations: list[OperationCapture]  # oldest first
    # Only if all was asked for: (pg_id, enqueued, started, completed); (name, description, ranks)
    status: list[tuple[int, int, int, int]]
    ranks: list[tuple[str, str, list[int]]]
    library_version: str

class OpenFileStates(TypedDict):
    # (pid, fd, inode, seconds that receiving may take, sending, and TCP for what is sent to be taken; None: for ever)
    sockets: list[tuple[int, int, int, float | None, float | None, float | None]]
    pipes: list[tuple[int, int, int, int, int]]  # (pid, fd, inode, bytes in it, bytes it takes)
    status: tuple[str, str]  # of sockets, as in `rungs`

class OpenFileReader:
    """What only the kernel knows of sockets and pipes, by BPF; opens and keeps nothing of the target. Loaded at the
    first question. Not for use by two threads at once.
    """

    def __init__(self, btf_path: str = "/sys/kernel/btf/vmlinux") -> None: ...
    def read(self, wanted: Mapping[int, Sequence[int]]) -> OpenFileStates:
        """Of the descriptors wanted of each pid; what is neither, or closed by now, is left out."""

class AlarmStates(TypedDict):
    left_s: dict[int, float]  # seconds until SIGALRM, of those that have an alarm set
    status: tuple[str, str]  # as in `rungs`

class AlarmReader:
    """When alarm(2) and setitimer(2) are to send SIGALRM, by BPF. Loaded at the first question, when it sets an alarm
    of our own for a moment. Not for use by two threads at once.
    """

    def __init__(self, btf_path: str = "/sys/kernel/btf/vmlinux") -> None: ...
    def read(self, pids: Sequence[int]) -> AlarmStates:
        """Of these processes."""

class NcclTaskCapture(TypedDict):
    """Numbers as in nccl.h; -1: it has none, or it is not recorded."""

    function: int
    count: int
    dtype: int
    op: int
    root: int
    algorithm: int
    protocol: int
    p2p: bool

class NcclTransferCapture(TypedDict):
    peer: int
    steps: int
    posted: int
    received: int
    transmitted: int
    done: int

class NcclCommunicatorCapture(TypedDict):
    """As `pyhangtrace.model.nccl.NcclCommunicator`; None: its release does not record it, or it cannot be read."""

    address: int
    found_by: str  # "list" | "magic" | "fingerprint"
    comm_hash: int
    rank: int
    n_ranks: int
    cuda_device: int
    bus_id: int | None
    n_nodes: int | None
    name: str | None
    init_state: int | None
    async_result: int | None
    proxy_result: int | None
    peers_known: bool | None
    aborted: bool | None
    finalizing: bool | None
    destroyed: bool | None
    revoked: bool | None
    in_group: bool | None
    split: bool | None
    op_count: int | None
    coll_op_count: int | None
    launched: list[int] | None  # by function: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce
    waiting: int | None
    captured: bool | None
    # (kernel, number of collectives, operations), newest last
    plans: list[tuple[str | None, int | None, list[NcclTaskCapture]]]
    last_task: NcclTaskCapture | None
    transfers: list[NcclTransferCapture]

class NcclCallCapture(TypedDict):
    tid: int
    function: int
    name: str
    count: int
    dtype: int
    op: int
    root: int
    communicator: int
    stream: int

class NcclFound(TypedDict):
    library: str
    build_id: str
    layout_from: str  # "dwarf" | "table" | "disassembly" | "fingerprint"
    communicators: list[NcclCommunicatorCapture]
    calls: list[NcclCallCapture]
    # (address, pid, bits of CUDA devices, hash of the host, hash of the process)
    peers: list[tuple[str, int, int, int, int]]
    # As asked for: (rank, CUDA device, bus id, hash of the host, hash of the process)
    members: list[list[tuple[int, int, int | None, int, int]]]
    searched: bool
    problem: str | None

class NcclInspector:
    """Reads NCCL's communicators in other processes. Keeps libraries and their layouts between calls. Not for use by
    two threads at once.
    """

    def __init__(self, proc_root: str = "/proc") -> None: ...
    def inspect(
        self,
        pid: int,
        *,
        callers: Sequence[tuple[int, int]] = (),
        search: bool = False,
        members: Sequence[tuple[int, Sequence[int]]] = (),
        libraries: Sequence[str] = (),
        budget_s: float = 1.0,
    ) -> NcclFound | None:
        """What NCCL knows in a process, None if it is not loaded. `callers` are (thread, stack pointer) of those in a call
        of NCCL; `search`: memory, too, where the library lists its communicators; `members`: communicators by address,
        and ranks of whom each is to say what it knows; `libraries`: files that have NCCL inside, beside those known.
        """

class NcclLayout(TypedDict):
    layout_from: str
    build_id: str
    comm_size: int
    sub_size: int
    peer_size: int
    offsets: dict[str, int]  # "structure.member" -> bytes
    row: list[int]  # all offsets in the order of the table of published builds; -1: none

def nccl_layout(path: str, *, source: str = "best", budget_s: float = 5.0) -> NcclLayout | None:
    """Where a libnccl keeps what is read, from "dwarf", "table" or "disassembly", or the best source it has."""

def thread_counters(pids: Sequence[int], proc_root: str = "/proc") -> list[tuple[int, int, int, int]]:
    """(pid, tid, run_ns, slices) of every thread, from schedstat alone: cheap, touches no memory."""

def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Raw memory of a process, at most 64 MiB; None if any byte of it is unreadable."""

def maps(pid: int, proc_root: str = "/proc") -> list[tuple[int, int, str, int, int, int, int, str, bool]]:
    """(start, end, "rwxp", offset, device major, device minor, inode, path, deleted). Raises OSError."""

def map_records(pid: int, proc_root: str = "/proc") -> tuple[NDArray[np.void], list[str]]:
    """Records of MAP_FIELDS as a structured array of uint64, and the paths that the field `path` indexes. Walks no page
    table. Raises OSError.
    """

class PageUnion:
    """The physical pages of several processes, each counted once, from pagemap. `add` may be called by several threads.

    All counts are pages; they are 0 without CAP_SYS_ADMIN.
    """

    def __init__(self) -> None: ...
    def add(self, pid: int, ranges: NDArray[np.uint64], *, budget_s: float, proc_root: str = "/proc") -> bool:
        """Reads the pages mapped in rows of start, end and whether hardly anything is there, once a process; False:
        time was over before the last row. The kernel lets go of the mmap lock every 2 MiB, and keeps it for a search of
        4 GiB where hardly anything is there. Raises OSError.
        """

    @property
    def counts(self) -> NDArray[np.void]:
        """One record for each `add`: pid, present, swapped, file (also shared and anonymous), exclusive (mapped once, by
        this process), numbered (as present; 0 without CAP_SYS_ADMIN), frames (different ones), complete. Pages of zeros
        that nobody wrote to are left out.
        """

    def unique_of(self, pid: int) -> int | None:
        """Pages that this process alone has; None if it was not added, or there were too many to remember whose."""

    @property
    def frames(self) -> int:
        """Different pages of all."""

    @property
    def unique(self) -> int:
        """Pages that only one process has, whichever."""

def smaps(pid: int, proc_root: str = "/proc") -> tuple[NDArray[np.void], list[str]]:
    """Records of SMAPS_FIELDS as a structured array of uint64, and the paths that the field `path` indexes.

    Walks the target's page tables and keeps its mmap lock meanwhile: ask once, never poll. Raises OSError.
    """

def smaps_rollup(pid: int, proc_root: str = "/proc") -> dict[str, int]:
    """Sums over all mappings, in bytes, keys as in SMAPS_FIELDS (those the kernel prints). Raises OSError."""

def rollup_records(pids: Sequence[int], proc_root: str = "/proc") -> NDArray[np.void]:
    """The same of several processes as a structured array of uint64: pid, and the sizes of SMAPS_FIELDS, 0 what this
    kernel does not print; who cannot be read is left out. Loads numpy, which takes longer than to read a few of them.
    """

def status(pid: int, proc_root: str = "/proc") -> dict[str, int | str | list[int]]:
    """Selected fields of /proc/PID/status, sizes in bytes; what the kernel does not print is absent. Raises OSError.

    name, state, tgid, ppid, tracer_pid, uid, threads, ns_pids, vm_peak, vm_size, vm_hwm, vm_rss, rss_anon, rss_file,
    rss_shmem, vm_swap, vm_pte, vm_lck, vm_pin, hugetlb, voluntary_switches, involuntary_switches, kernel_thread.
    """

def mmap_lock_writers(btf_path: str = "/sys/kernel/btf/vmlinux") -> dict[int, int]:
    """Of each process whose memory map is locked to be changed, the thread that has the lock, by the kernel's own word
    (a BPF iterator; no lock is taken). Empty where that cannot be had: no privilege, an id namespace, before Linux 5.8.
    """

# Names of the fields of a record of maps, and of smaps, which has them all; `path` indexes the list of paths, `flags` is a sum of the FLAG_ constants.
MAP_FIELDS: tuple[str, ...]
SMAPS_FIELDS: tuple[str, ...]
FLAG_READ: int
FLAG_WRITE: int
FLAG_EXEC: int
FLAG_SHARED: int
FLAG_DELETED: int
FLAG_PFNMAP: int  # driver pages that RSS does not count
FLAG_IO: int
FLAG_HUGETLB: int
