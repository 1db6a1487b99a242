"""What a stack waits for, by the names of its frames. The rules are data: one line a place in a library.

Python names are those of CPython 3.8 to 3.14 and PyTorch 2.0 to 2.13, native names those of c10d, gloo and the
MPI profiling interface. A rule never stands on a user's function name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache

import msgspec

from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

# By a name of its own: before Python 3.12 each look-up of a member costs as much as the rest of a walk's step.
_PYTHON_FRAME = FrameKind.PYTHON


class Meaning(Enum):
    """What a recognised frame is doing."""

    COLLECTIVE = "collective"
    SEND = "send"
    RECV = "recv"
    RENDEZVOUS = "rendezvous"
    STORE = "store"
    SHARED_BARRIER = "shared barrier"  # of multiprocessing: over processes
    BARRIER = "barrier"  # of threading: inside one process
    CONDITION = "condition"
    EVENT = "event"
    SEMAPHORE = "semaphore"
    QUEUE_GET = "queue get"
    QUEUE_PUT = "queue put"
    SHARED_QUEUE_GET = "shared queue get"
    SHARED_QUEUE_PUT = "shared queue put"
    JOIN_THREAD = "join thread"
    JOIN_PROCESS = "join process"
    FUTURE = "future"
    POOL_RESULT = "pool result"
    TASK_RESULT = "result of a task"  # of another process: which worker gives it is not known in this one
    LOADER = "data loader"
    CHILD = "child"
    LOCK_FILE = "lock file"
    IMPORT_LOCK = "import lock"
    EVENT_LOOP = "event loop"
    SERVING = "serves others until they end"
    LAUNCHER = "launcher"
    RING_READ = "read from a queue in shared memory"
    RING_READY = "the other side of a queue in shared memory"
    RING_WRITE = "write to a queue in shared memory"
    WORKER_LOOP = "worker loop"  # a data or pool worker that waits for its next task


class Call(msgspec.Struct, frozen=True):
    """A recognised wait. `op` names a collective as its caller wrote it, `caller` is the first frame that is
    not part of the library that waits. `later`: the frame waits for something that was begun before, and names no
    operation.
    """

    meaning: Meaning
    op: str
    backend: str | None
    frame: Frame
    caller: Frame | None
    spins: bool = False
    later: bool = False


_OPS = (
    "all_reduce all_reduce_coalesced all_gather all_gather_coalesced all_gather_into_tensor all_gather_single"
    " _all_gather_base all_gather_object broadcast broadcast_object_list barrier monitored_barrier reduce"
    " reduce_scatter reduce_scatter_tensor reduce_scatter_single _reduce_scatter_base gather gather_object"
    " scatter scatter_object_list all_to_all all_to_all_single"
)

# file (end of its path), functions, meaning. An empty list of functions: any function of that file is part of
# the library and is walked through.
_PYTHON: tuple[tuple[str, str, Meaning | None], ...] = (
    ("torch/distributed/distributed_c10d.py", _OPS, Meaning.COLLECTIVE),
    ("torch/distributed/distributed_c10d.py", "send isend send_object_list", Meaning.SEND),
    ("torch/distributed/distributed_c10d.py", "recv irecv recv_object_list", Meaning.RECV),
    (
        "torch/distributed/distributed_c10d.py",
        "init_process_group new_group new_subgroups new_subgroups_by_enumeration split_group"
        " _new_group_with_tag _new_process_group_helper _store_based_barrier",
        Meaning.RENDEZVOUS,
    ),
    ("torch/distributed/rendezvous.py", "", Meaning.RENDEZVOUS),
    ("torch/distributed/_functional_collectives.py", "wait_tensor _wait_tensor", Meaning.COLLECTIVE),
    ("torch/distributed/utils.py", "_verify_param_shape_across_processes", Meaning.COLLECTIVE),
    ("torch/distributed/utils.py", "_sync_module_states _sync_params_and_buffers", Meaning.COLLECTIVE),
    ("torch/distributed/elastic/", "", Meaning.LAUNCHER),
    ("torch/distributed/launcher/", "", Meaning.LAUNCHER),
    ("torch/distributed/run.py", "", Meaning.LAUNCHER),
    ("torch/multiprocessing/spawn.py", "join spawn start_processes", Meaning.LAUNCHER),
    ("torch/utils/file_baton.py", "wait try_acquire", Meaning.LOCK_FILE),
    ("filelock/_api.py", "acquire", Meaning.LOCK_FILE),
    ("filelock/_core/_acquire.py", "_poll_until_acquired", Meaning.LOCK_FILE),
    ("filelock/_core/_lock.py", "acquire", Meaning.LOCK_FILE),
    ("filelock/_soft.py", "_acquire", Meaning.LOCK_FILE),
    (
        "torch/utils/data/dataloader.py",
        "_try_get_data _get_data _next_data __next__",
        Meaning.LOADER,
    ),
    ("torch/utils/data/_utils/worker.py", "_worker_loop", Meaning.WORKER_LOOP),
    ("multiprocessing/pool.py", "worker", Meaning.WORKER_LOOP),
    ("concurrent/futures/process.py", "_process_worker", Meaning.WORKER_LOOP),
    ("multiprocessing/pool.py", "get wait next map", Meaning.POOL_RESULT),
    ("multiprocessing/pool.py", "join", Meaning.POOL_RESULT),
    ("torch/distributed/rpc/api.py", "rpc_sync", Meaning.TASK_RESULT),
    # At its end each serves the others until all have come there, for as long as they like.
    ("torch/distributed/rpc/api.py", "_all_gather _barrier _wait_all_workers shutdown", Meaning.SERVING),
    ("ray/_private/worker.py", "get wait get_objects", Meaning.TASK_RESULT),
    ("ray/_private/worker.py", "main_loop", Meaning.WORKER_LOOP),
    ("concurrent/futures/_base.py", "result exception wait as_completed", Meaning.FUTURE),
    ("concurrent/futures/thread.py", "shutdown", Meaning.JOIN_THREAD),
    ("concurrent/futures/process.py", "shutdown _python_exit", Meaning.POOL_RESULT),
    ("threading.py", "join _shutdown _wait_for_tstate_lock", Meaning.JOIN_THREAD),
    ("multiprocessing/process.py", "join", Meaning.JOIN_PROCESS),
    ("multiprocessing/popen_fork.py", "poll wait", Meaning.JOIN_PROCESS),
    ("multiprocessing/popen_spawn_posix.py", "poll wait", Meaning.JOIN_PROCESS),
    ("multiprocessing/queues.py", "get", Meaning.SHARED_QUEUE_GET),
    ("multiprocessing/queues.py", "put", Meaning.SHARED_QUEUE_PUT),
    ("queue.py", "get join", Meaning.QUEUE_GET),
    ("queue.py", "put", Meaning.QUEUE_PUT),
    ("multiprocessing/synchronize.py", "wait wait_for", Meaning.CONDITION),
    ("threading.py", "_wait _enter", None),  # of Barrier: `wait` around it says so
    ("threading.py", "wait wait_for", Meaning.CONDITION),
    ("threading.py", "acquire", Meaning.SEMAPHORE),
    (
        "subprocess.py",
        "wait _wait _try_wait communicate _communicate run call check_call check_output",
        Meaning.CHILD,
    ),
    (
        "<frozen importlib._bootstrap>",
        "acquire __enter__ _get_module_lock _lock_unlock_module",
        Meaning.IMPORT_LOCK,
    ),
    # Of vLLM, which SGLang has too: looks again and again, later sleeps until the other side pings it.
    ("device_communicators/shm_broadcast.py", "acquire_read", Meaning.RING_READ),
    ("device_communicators/shm_broadcast.py", "acquire_write", Meaning.RING_WRITE),
    ("device_communicators/shm_broadcast.py", "wait_until_ready", Meaning.RING_READY),
    ("asyncio/base_events.py", "_run_once run_forever run_until_complete", Meaning.EVENT_LOOP),
    ("socketserver.py", "serve_forever", Meaning.EVENT_LOOP),
)

RINGS = (Meaning.RING_READ, Meaning.RING_WRITE, Meaning.RING_READY)

# Frames of these files belong to the wait of the frame inside them and say nothing themselves.
_TRANSPARENT = (
    "threading.py",
    "queue.py",
    "selectors.py",
    "subprocess.py",
    "contextlib.py",
    "functools.py",
    "zmq/sugar/poll.py",
    "device_communicators/shm_broadcast.py",
    "typing_extensions.py",
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
    "multiprocessing/",
    "concurrent/futures/",
    "asyncio/",
    "filelock/",
    "torch/distributed/",
    "torch/multiprocessing/",
    "torch/nn/parallel/distributed.py",
    "torch/utils/data/dataloader.py",
    "torch/utils/data/_utils/",
    "torch/utils/file_baton.py",
    "torch/_tensor.py",
    "torch/_ops.py",
    "torch/_library/",
    "torch/utils/_contextlib.py",
    "torch/autograd/",
    "jax/_src/",
    "ray/_private/",
    "jax/experimental/",
)

# Of what was begun before: a message, or an operation of all.
MPI_WAIT = "wait"
# One-sided: until another one has given a window back, or has come to the end of its part.
WINDOW = "window"
# Calls of MPI that all members of a communicator make together, beside those with a rule of their own. Those that meet
# another group (accept, connect, spawn, Intercomm_create) end by what somebody outside of it does.
_MPI_OF_ALL = (
    "Scan|Exscan|Neighbor_[a-z]+"
    "|Comm_(dup(_with_info)?|split(_type)?|create(_group)?|free)"
    "|Win_(create(_dynamic)?|allocate(_shared)?|fence|free)"
    "|File_(open|close|set_view|set_size|preallocate|sync|[a-z_]+_all|[a-z_]+_ordered)"
    "|Cart_create|Graph_create|Dist_graph_create(_adjacent)?"
)

_OF_JAX = r"\bxla::DistributedRuntime(CoordinationService)?Client"

_NATIVE: tuple[tuple[re.Pattern[str], Meaning, str, str], ...] = tuple(
    (re.compile(pattern), meaning, op, backend)
    for pattern, meaning, op, backend in (
        (r"\b_queue_SimpleQueue_get", Meaning.QUEUE_GET, "get", ""),
        (r"\bTCPStore::waitForWorkers\b", Meaning.RENDEZVOUS, "store", "gloo"),
        (r"\bconnectFullMesh\b|\bcreateAndConnectAllPairs\b", Meaning.RENDEZVOUS, "connect", "gloo"),
        (r"\bSocketConnectOp::tryConnect\b|\bTCPClient::connect\b", Meaning.RENDEZVOUS, "connect", "gloo"),
        (r"\bTCPStore::do(Wait|Get)\b", Meaning.STORE, "store", "gloo"),
        (r"\bFileStore::(wait|get)\b", Meaning.STORE, "store", "gloo"),
        (r"\bmonitoredBarrier\b", Meaning.COLLECTIVE, "monitored_barrier", "gloo"),
        (r"\bRecvWork::wait\b", Meaning.RECV, "recv", "gloo"),
        (r"\bSendWork::wait\b", Meaning.SEND, "send", "gloo"),
        (r"\bReducer::finalize_backward\b", Meaning.COLLECTIVE, "all_reduce", "gloo"),
        (r"\bverify_params_across_processes\b", Meaning.COLLECTIVE, "all_gather", "gloo"),
        (r"\bc10d::(Lambda)?Work::wait\b|\bc10d::.*Work::wait\b", Meaning.COLLECTIVE, "unknown", "gloo"),
        (r"\bxla::cpu::GlooCommunicator::AllReduce\b", Meaning.COLLECTIVE, "all_reduce", "gloo"),
        (r"\bxla::cpu::GlooCommunicator::AllGather\b", Meaning.COLLECTIVE, "all_gather", "gloo"),
        (r"\bxla::cpu::GlooCommunicator::AllToAll\b", Meaning.COLLECTIVE, "all_to_all", "gloo"),
        (r"\bxla::cpu::GlooCommunicator::ReduceScatter\b", Meaning.COLLECTIVE, "reduce_scatter", "gloo"),
        (r"\bxla::cpu::GlooCommunicator::CollectivePermute\b", Meaning.COLLECTIVE, "permute", "gloo"),
        # Of JAX, whose processes ask a service that the first of them runs (xla/pjrt/distributed/client.cc).
        (rf"{_OF_JAX}::Connect\b", Meaning.RENDEZVOUS, "initialize", "jax"),
        (rf"{_OF_JAX}::Shutdown\b", Meaning.COLLECTIVE, "shutdown", "jax"),
        (rf"{_OF_JAX}::WaitAtBarrier\b", Meaning.COLLECTIVE, "barrier", "jax"),
        (rf"{_OF_JAX}::BlockingKeyValueGet", Meaning.STORE, "store", "jax"),
        # Of vLLM and SGLang on CPUs (csrc/cpu/shm.cpp): ranks of one host spin on words in memory that they share.
        (r"^shm_all_?reduce\(", Meaning.COLLECTIVE, "all_reduce", "shm"),
        (r"^shm_all_?gather\(", Meaning.COLLECTIVE, "all_gather", "shm"),
        (r"^shm_gather\(", Meaning.COLLECTIVE, "gather", "shm"),
        # Of node: the event loop runs inside spawnSync until the child has ended.
        (r"\bnode::SyncProcessRunner::(Spawn|Run|TryInitializeAndRunLoop)", Meaning.CHILD, "spawnSync", ""),
        # Since MPI 4 there is a second one of each with counts that are larger (`_c`).
        (r"^P?MPI_Allreduce(_c)?\b", Meaning.COLLECTIVE, "all_reduce", "mpi"),
        (r"^P?MPI_Allgatherv?(_c)?\b", Meaning.COLLECTIVE, "all_gather", "mpi"),
        (r"^P?MPI_Alltoall[vw]?(_c)?\b", Meaning.COLLECTIVE, "all_to_all", "mpi"),
        (r"^P?MPI_Barrier(_c)?\b", Meaning.COLLECTIVE, "barrier", "mpi"),
        (r"^P?MPI_Bcast(_c)?\b", Meaning.COLLECTIVE, "broadcast", "mpi"),
        (r"^P?MPI_Gatherv?(_c)?\b", Meaning.COLLECTIVE, "gather", "mpi"),
        (r"^P?MPI_Scatterv?(_c)?\b", Meaning.COLLECTIVE, "scatter", "mpi"),
        (r"^P?MPI_Reduce(_c)?\b", Meaning.COLLECTIVE, "reduce", "mpi"),
        (r"^P?MPI_Reduce_scatter(_block)?(_c)?\b", Meaning.COLLECTIVE, "reduce_scatter", "mpi"),
        (r"^P?MPI_M?[Rr]ecv(_c)?\b", Meaning.RECV, "recv", "mpi"),
        (r"^P?MPI_(Ssend|Bsend|Rsend|Send)(_c)?\b", Meaning.SEND, "send", "mpi"),
        (r"^P?MPI_Sendrecv(_replace)?(_c)?\b", Meaning.RECV, "sendrecv", "mpi"),
        (r"^P?MPI_M?[Pp]robe(_c)?\b", Meaning.RECV, "probe", "mpi"),
        (r"^P?MPI_Win_(lock|unlock|flush|flush_local)(_all)?\b", Meaning.RECV, WINDOW, "mpi"),
        (r"^P?MPI_Win_(start|complete|wait)\b", Meaning.RECV, WINDOW, "mpi"),
        # Of what was begun before: a message, or an operation of all.
        (r"^P?MPI_Wait(all|any|some)?\b", Meaning.RECV, MPI_WAIT, "mpi"),
        (rf"^P?MPI_({_MPI_OF_ALL})(_c)?\b", Meaning.COLLECTIVE, "", "mpi"),
        (r"^P?MPI_Finalize\b|^ompi_mpi_finalize\b", Meaning.COLLECTIVE, "finalize", "mpi"),
        (r"^P?MPI_Init(_thread)?\b|^ompi_mpi_init\b", Meaning.RENDEZVOUS, "init", "mpi"),
    )
)

# Of these backends who waits is on the CPU.
_SPINNING = frozenset({"mpi", "shm"})

# The run loop of gloo works on one operation at a time; its frames name it when Python's do not.
_GLOO_WORK = re.compile(
    r"\bAsync(Allreduce|Broadcast|Allgather|Reduce|ReduceScatter|Gather|Scatter|Alltoall|Barrier)"
)
_GLOO_OPS = {
    "Allreduce": "all_reduce",
    "Broadcast": "broadcast",
    "Allgather": "all_gather",
    "Reduce": "reduce",
    "ReduceScatter": "reduce_scatter",
    "Gather": "gather",
    "Scatter": "scatter",
    "Alltoall": "all_to_all",
    "Barrier": "barrier",
}

# Operations that one rank begins: the others may wait for its next request for hours.
FROM_ONE_ROOT = frozenset({"broadcast", "broadcast_object_list", "scatter", "scatter_object_list"})

# Operations with a root: who has sent or received its part is done, whatever the others do.
LEFT_EARLY = FROM_ONE_ROOT | {"reduce", "gather", "gather_object"}


def short(function: str) -> str:
    """The last part of a qualified Python name: `Condition.wait` and `wait` (before 3.11) are one."""
    return function.rpartition(".")[2]


def path_has(path: str | None, tail: str) -> bool:
    """Whether a file belongs to a library place: a folder (ends with /) or the end of a path."""
    if path is None:
        return False
    path = path.replace("\\", "/")
    if tail.endswith("/"):
        return f"/{tail}" in path or path.startswith(tail)
    return path == tail or path.endswith(f"/{tail}")


def python_frames(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Only the Python ones, innermost first."""
    return (frame for frame in frames if frame.kind is _PYTHON_FRAME)


def has_stack(sample: ThreadSample) -> bool:
    """Whether anything of what a thread does is known from its frames."""
    return any(frame.kind is not FrameKind.KERNEL for frame in (*sample.frames, *sample.unmerged_native))


def in_libc(frame: Frame) -> bool:
    """Whether a native frame is of the C library's own file."""
    return "libc.so" in (frame.module or "")


def recognise(frames: Sequence[Frame]) -> Call | None:
    """What the innermost frames wait for, None if no rule knows them.

    The walk goes outward as long as frames belong to the libraries that wait; the outermost rule among them
    wins, since it is what the program called (`all_gather_object`, not the `all_gather` inside).
    """
    native = _recognise_native(frames)
    best: Call | None = None
    caller: Frame | None = None
    for frame in python_frames(frames):
        if not _is_transparent(frame.file):
            caller = frame
            break
        meaning = _python_meaning(frame.function, frame.file)
        if meaning is not None and _replaces(best, meaning):
            best = Call(meaning, short(frame.function), None, frame, None)
    if best is not None:
        best = _refine(best, frames)
    if best is None:
        found = native
    elif native is None:
        found = best
    elif best.meaning in (Meaning.COLLECTIVE, Meaning.SEND, Meaning.RECV, Meaning.RENDEZVOUS):
        found = _merge(best, native)
    else:
        found = best if best.meaning is not Meaning.EVENT_LOOP else native
    if found is None:
        return None
    spins = found.spins or found.meaning in RINGS
    return Call(found.meaning, found.op, found.backend, found.frame, caller, spins)


def _merge(python: Call, native: Call) -> Call:
    # The wrapper that Python shows knows the name, the native frame whether it is a wait of a peer at all.
    op = python.op
    if op in ("wait_tensor", "_wait_tensor", "_verify_param_shape_across_processes"):
        op = "all_gather" if op.startswith("_verify") else native.op
    if op in ("_sync_module_states", "_sync_params_and_buffers"):
        op = "broadcast"
    return Call(python.meaning, op, native.backend, python.frame, None, native.spins)


@lru_cache(maxsize=4096)
def _is_transparent(file: str | None) -> bool:
    return any(path_has(file, tail) for tail in _TRANSPARENT)


@lru_cache(maxsize=4096)
def _python_meaning(function: str, file: str | None) -> Meaning | None:
    name = short(function)
    for tail, functions, meaning in _PYTHON:
        if path_has(file, tail) and (not functions or name in functions.split()):
            return _condition(function, file) if meaning is Meaning.CONDITION else meaning
    return None


def _condition(function: str, file: str | None) -> Meaning:
    owner = function.rpartition(".")[0].rpartition(".")[2]
    if owner == "Barrier":
        shared = path_has(file, "multiprocessing/synchronize.py")
        return Meaning.SHARED_BARRIER if shared else Meaning.BARRIER
    return {"Event": Meaning.EVENT, "Semaphore": Meaning.SEMAPHORE}.get(owner, Meaning.CONDITION)


def _replaces(old: Call | None, new: Meaning) -> bool:
    if old is None:
        return True
    if old.meaning is Meaning.POOL_RESULT and new is Meaning.JOIN_THREAD:
        return False  # the end of the interpreter, which waits for the end of the pool
    # The worker loop, the loop of events and the launcher are where a stack begins, not what it waits for.
    return new not in (Meaning.WORKER_LOOP, Meaning.EVENT_LOOP) or old.meaning in (
        Meaning.SHARED_QUEUE_GET,
        Meaning.CONDITION,
    )


def _refine(call: Call, frames: Sequence[Frame]) -> Call:
    # Before Python 3.11 both are just `wait`; a barrier shows `_wait` or `_enter` inside it. A barrier of
    # multiprocessing is threading's class around a condition of its own.
    if call.meaning not in (Meaning.CONDITION, Meaning.EVENT, Meaning.BARRIER):
        return call
    shared = False
    for frame in python_frames(frames):
        if path_has(frame.file, "multiprocessing/synchronize.py"):
            shared = True
        elif not path_has(frame.file, "threading.py"):
            break
        elif short(frame.function) in ("_wait", "_enter"):
            meaning = Meaning.SHARED_BARRIER if shared else Meaning.BARRIER
            return Call(meaning, "barrier", None, call.frame, None)
    return call


def _recognise_native(frames: Sequence[Frame]) -> Call | None:
    best: Call | None = None
    for frame in frames:
        if frame.kind is _PYTHON_FRAME:
            break
        found = _native_meaning(frame.function)
        if found is not None and (best is None or best.op == "unknown" or found[0] is Meaning.RENDEZVOUS):
            meaning, op, backend = found
            best = Call(meaning, op, backend, frame, None, spins=backend in _SPINNING)
    return best


def polls(call: Call | None) -> bool:
    """Whether one who waits in this call is on the CPU all the while, or now and then to look again."""
    return call is not None and (call.spins or "c10d::FileStore::" in call.frame.function)


@lru_cache(maxsize=4096)
def _native_meaning(function: str) -> tuple[Meaning, str, str] | None:
    for pattern, meaning, op, backend in _NATIVE:
        match = pattern.search(function)
        if match:
            return meaning, op or (match.group(1).lower() if backend == "mpi" else ""), backend
    return None


_CONNECTS = re.compile(r"\bSocketConnectOp::tryConnect\b")
_MAKES_STORE = re.compile(r"\bTCPStore::TCPStore\(")


def connects_to_store(frames: Sequence[Frame]) -> bool:
    """Whether a client of torch's store tries to reach it: a try that fails is followed by a nap and another one."""
    inner = ""
    for frame in frames:
        if frame.kind is FrameKind.NATIVE:
            naps = inner in ("nanosleep", "clock_nanosleep", "usleep")
            if _CONNECTS.search(frame.function) or (naps and _MAKES_STORE.search(frame.function)):
                return True
            inner = frame.function
    return False


def gloo_work(frames: Sequence[Frame]) -> str | None:
    """The operation that a run loop thread of gloo is in."""
    for frame in frames:
        match = _GLOO_WORK.search(frame.function)
        if match:
            return _GLOO_OPS[match.group(1)]
    return None


def inside_sqlite(frames: Sequence[Frame]) -> bool:
    """Whether the innermost frames of the program are in SQLite."""
    for frame in frames:
        if frame.kind is FrameKind.PYTHON:
            return False
        if (frame.module or "").rpartition("/")[2].startswith("libsqlite3"):
            return True
    return False


def has_function(frames: Sequence[Frame], *names: str) -> bool:
    """Whether one of the frames is one of these functions (native names without arguments)."""
    return any(plain(frame.function) in names for frame in frames)


@lru_cache(maxsize=4096)
def plain(function: str) -> str:
    """The last part of a native function's name, without arguments and version."""
    return short(function.split("(")[0].split("@")[0]).lstrip("~")


def first_own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost Python frame that is not of a library that only waits: what the program was doing."""
    last = None
    for frame in python_frames(frames):
        last = frame
        if not _is_transparent(frame.file):
            return frame
    return last
