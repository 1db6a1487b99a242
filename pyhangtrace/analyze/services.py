"""Threads that only serve: they sleep in every healthy process, so their waits mean nothing. Rules as data.

A serving thread can still be on a chain: a wait that leads to it (a join, a lock it holds) is followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from pyhangtrace.analyze.calls import path_has, plain, python_frames, short
from pyhangtrace.analyze.openmp import Place
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

# What a thread serves that looks after those it has started.
LAUNCHER = "launcher"

# What a thread of a pool of processes serves that hands work on, or takes results.
POOL_MANAGER = "pool manager"

_RAY = "ray"
_TENSORPIPE = "tensorpipe"

# Start of the thread's name (as the kernel keeps it, 15 characters) and what it serves.
_BY_NAME: tuple[tuple[str, str], ...] = (
    ("pt_gloo_runloop", "gloo run loop"),
    ("gloo_tcp_loop", "gloo loop"),
    ("pt_tcpstore", "store server"),
    ("pt_nccl_watchdg", "nccl watchdog"),
    ("pt_nccl_heartbt", "nccl heartbeat"),
    ("pt_autograd", "autograd worker"),
    ("pt_elastic", "elastic agent"),
    ("NCCL Service", "nccl proxy"),
    ("NCCL Progress", "nccl proxy"),
    ("NCCL UDS", "nccl proxy"),
    ("NCCL I/O", "nccl proxy"),
    ("NCCL RAS", "nccl ras"),
    ("ncclProxy", "nccl proxy"),
    ("nccl", "nccl proxy"),
    ("cuda-EvtHandlr", "cuda events"),
    ("cuda-EvtHndlr", "cuda events"),
    ("cuda0000", "cuda events"),
    ("cuda", "cuda driver"),
    ("iou-wrk", "io_uring worker"),
    ("iou-sqp", "io_uring worker"),
    ("ZMQbg", "zmq"),
    ("uvloop", "libuv"),
    ("libuv-worker", "libuv"),
    ("jemalloc_bg_thd", "allocator"),
    ("grpc_global_tim", "grpc"),
    ("event_engine", "grpc"),
    ("resolver-execut", "grpc"),
    ("QueueFeederThre", "queue feeder"),
    ("QueueManagerThr", POOL_MANAGER),
    ("ExecutorManager", POOL_MANAGER),
    ("TP_", _TENSORPIPE),
    ("ray_", _RAY),
    ("worker.io", _RAY),
    ("raylet", _RAY),
)

_MONITOR = "engine monitor"

# Of these none ever does a piece of the program's own work, however often one is met on the CPU: they move bytes, look
# at the clock or after other processes.
_NO_WORK = frozenset(
    {
        "gloo loop",
        "store server",
        "nccl watchdog",
        "nccl heartbeat",
        "nccl ras",
        "elastic agent",
        "allocator",
        "resource tracker",
        "tqdm monitor",
        _TENSORPIPE,
    }
)


def does_work(service: str | None, *, busy: bool) -> bool:
    """Whether a thread that serves this, or nothing, may do somebody's work; who serves does so while it is `busy`."""
    return service is None or (busy and service not in _NO_WORK)


# Python function (any frame), end of its file, what the thread serves.
_BY_FRAME: tuple[tuple[str, str, str], ...] = (
    ("_feed", "multiprocessing/queues.py", "queue feeder"),
    ("_worker", "concurrent/futures/thread.py", "thread pool worker"),
    ("_handle_workers", "multiprocessing/pool.py", POOL_MANAGER),
    ("_handle_tasks", "multiprocessing/pool.py", POOL_MANAGER),
    ("_handle_results", "multiprocessing/pool.py", POOL_MANAGER),
    ("wait_result_broken_or_wakeup", "concurrent/futures/process.py", POOL_MANAGER),
    ("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py", "pin memory"),
    ("do_one_iteration", "torch/utils/data/_utils/pin_memory.py", "pin memory"),
    ("run", "tqdm/_monitor.py", "tqdm monitor"),
    ("_read_thread", "torch/_inductor/compile_worker/subproc_pool.py", "compile pool"),
    ("main", "multiprocessing/resource_tracker.py", "resource tracker"),
    ("accepter", "multiprocessing/managers.py", "manager server"),
    ("serve_client", "multiprocessing/managers.py", "manager server"),
    ("serve_forever", "multiprocessing/managers.py", "manager server"),
    ("_serve", "multiprocessing/resource_sharer.py", "resource sharer"),
    # vLLM 0.8 to 0.32: each part of a server has a thread that waits for the end of its children, or of its parent.
    ("monitor_workers", "vllm/v1/executor/multiproc_executor.py", _MONITOR),
    ("death_pipe_monitor", "vllm/v1/executor/multiproc_executor.py", _MONITOR),
    ("monitor_engine_cores", "vllm/v1/engine/core_client.py", _MONITOR),
    ("monitor_engine_liveness", "vllm/v1/engine/utils.py", _MONITOR),
    ("listen_error_messages", "ray/_private/worker.py", _RAY),
    ("print_logs", "ray/_private/worker.py", _RAY),
    ("run", "ray/_private/gc_collect_manager.py", _RAY),
)


_WATCHDOG = "faulthandler watchdog"
_OPENMP = "openmp worker"

# Native functions, without arguments and version, that a thread is started in or waits for work in, and what it
# serves. Threads of NCCL have the name of the process unless it is told to name them.
_BY_FUNCTION = {
    "faulthandler_thread": _WATCHDOG,
    "gomp_thread_start": _OPENMP,
    "__kmp_launch_worker": _OPENMP,
    "blas_thread_server": _OPENMP,
    "gomp_barrier_wait_end": _OPENMP,
    "gomp_team_barrier_wait_end": _OPENMP,
    "c10::ThreadPool::main_loop": "torch pool",
    "torch::distributed::rpc::RpcAgent::retryExpiredRpcs": "rpc timer",
    "torch::distributed::rpc::TensorPipeAgent::pollTimeoutRpcs": "rpc timer",
    "ncclProxyService": "nccl proxy",
    "ncclProxyServiceUDS": "nccl proxy",
    "ncclProxyProgress": "nccl proxy",
    "rasThreadMain": "nccl ras",
    "bootstrapRoot": "nccl bootstrap",
    "ncclAsyncJobMain": "nccl job",
}
# The library whose code a thread without Python's runs: the many that Ray has in each process for its own calls.
_BY_LIBRARY = {"_raylet.so": _RAY}
# In a pool of these Ray runs the tasks of an actor that takes several at a time: one may come at any moment.
_TASK_POOL = "boost::asio::detail::posix_thread"
# Of several the one that comes first there.
_SHOWN = tuple(_BY_FUNCTION.values())
_FUNCTION = attrgetter("function")
_MODULE = attrgetter("module")


class Serving(NamedTuple):
    """What the frames of a thread say of its serving: by Python's if it has any, else by native ones."""

    in_python: bool
    service: str | None


def serving(frames: Sequence[Frame]) -> Serving:
    """What these frames say."""
    if next(python_frames(frames), None) is not None:
        return Serving(in_python=True, service=_by_frame(frames))
    shown = filter(None, map(_by_function, map(_FUNCTION, frames)))
    served = min(shown, key=_SHOWN.index, default=None)
    if served is None and not any(_TASK_POOL in frame.function for frame in frames):
        served = next(filter(None, map(_by_library, map(_MODULE, frames))), None)
    return Serving(in_python=False, service=served)


def service_of(sample: ThreadSample, told: Serving, there: Place | None) -> str | None:
    """The rule that says this thread only serves, None for a thread with work of its own. `told` is what its frames
    say, `there` where it is in a team of OpenMP.

    The main thread of a process serves only where a Python frame says so: a process may name itself like one
    of its libraries.
    """
    if told.in_python and told.service is not None:
        return told.service
    if sample.tid == sample.pid:
        return None
    if sample.lock is not None and _keeps_for_a_team(there, sample.lock.kind):
        return _OPENMP
    if not told.in_python:
        return _WATCHDOG if told.service == _WATCHDOG else _by_name(sample.comm) or told.service
    return "queue feeder" if sample.comm.startswith("QueueFeederThre") else None


@lru_cache(maxsize=4096)
def _by_function(function: str) -> str | None:
    return _BY_FUNCTION.get(plain(function))


@lru_cache(maxsize=4096)
def _by_library(module: str | None) -> str | None:
    return _BY_LIBRARY.get(module[module.rfind("/") + 1 :]) if module is not None else None


@lru_cache(maxsize=4096)
def _by_name(comm: str) -> str | None:
    return next((what for start, what in _BY_NAME if comm.startswith(start)), None)


def _keeps_for_a_team(there: Place | None, kind: str) -> bool:
    if there is not None and there.region is not None:
        return False  # at work for its team, and waits for another of it
    return kind == "openmp" or (there is not None and there.is_spare)


def _by_frame(frames: Sequence[Frame]) -> str | None:
    # Only while it waits for its next piece of work: a pool worker inside a task has the task's frames innermost.
    innermost: Frame | None = None
    for frame in python_frames(frames):
        innermost = innermost or frame
        served = _loop_of(frame.function, frame.file)
        if served is not None:
            # A manager's thread makes the calls of its client itself.
            calls = short(frame.function) == "serve_client" and not path_has(innermost.file, _CONNECTION)
            return None if calls else served
        if not _is_waiting(frame.function, frame.file):
            return None
    return None


@lru_cache(maxsize=4096)
def _loop_of(function: str, file: str | None) -> str | None:
    name = short(function)
    return next((what for wanted, tail, what in _BY_FRAME if name == wanted and path_has(file, tail)), None)


@lru_cache(maxsize=4096)
def _is_waiting(function: str, file: str | None) -> bool:
    if short(function) == "run" and path_has(file, "concurrent/futures/thread.py"):
        return False
    return any(path_has(file, tail) for tail in _WAITING_INSIDE)


_CONNECTION = "multiprocessing/connection.py"

# Frames that may lie between the kernel and the serving loop while it only waits.
_WAITING_INSIDE = (
    "threading.py",
    "queue.py",
    "selectors.py",
    "socket.py",
    "multiprocessing/",
    "concurrent/futures/",
    "torch/utils/data/_utils/",
)
