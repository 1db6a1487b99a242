"""Threads that only serve: they sleep in every healthy process, so their waits mean nothing. Rules as data.

A serving thread can still be on a chain: a wait that leads to it (a join, a lock it holds) is followed.
"""

from __future__ import annotations

from pyhangtrace.analyze.calls import has_function, path_has, python_frames, short
from pyhangtrace.analyze.openmp import is_spare, place
from pyhangtrace.model.evidence import ThreadSample

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
    ("QueueManagerThr", "pool manager"),
    ("ExecutorManager", "pool manager"),
    ("ray_", "ray"),
    ("worker.io", "ray"),
    ("raylet", "ray"),
)

# Python function (any frame), end of its file, what the thread serves.
_BY_FRAME: tuple[tuple[str, str, str], ...] = (
    ("_feed", "multiprocessing/queues.py", "queue feeder"),
    ("_worker", "concurrent/futures/thread.py", "thread pool worker"),
    ("_handle_workers", "multiprocessing/pool.py", "pool manager"),
    ("_handle_tasks", "multiprocessing/pool.py", "pool manager"),
    ("_handle_results", "multiprocessing/pool.py", "pool manager"),
    ("wait_result_broken_or_wakeup", "concurrent/futures/process.py", "pool manager"),
    ("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py", "pin memory"),
    ("do_one_iteration", "torch/utils/data/_utils/pin_memory.py", "pin memory"),
    ("run", "tqdm/_monitor.py", "tqdm monitor"),
    ("_read_thread", "torch/_inductor/compile_worker/subproc_pool.py", "compile pool"),
    ("main", "multiprocessing/resource_tracker.py", "resource tracker"),
    ("accepter", "multiprocessing/managers.py", "manager server"),
    ("serve_client", "multiprocessing/managers.py", "manager server"),
    ("_serve", "multiprocessing/resource_sharer.py", "resource sharer"),
)


def service_of(sample: ThreadSample) -> str | None:
    """The rule that says this thread only serves, None for a thread with work of its own.

    The main thread of a process serves only where a Python frame says so: a process may name itself like one
    of its libraries.
    """
    frames = list(python_frames(sample.frames))
    if frames:
        served = _by_frame(sample)
        if served is not None:
            return served
    if sample.tid == sample.pid:
        return None
    if sample.lock is not None and _keeps_for_a_team(sample, sample.lock.kind):
        return "openmp worker"
    if not frames:
        if has_function(sample.frames, "faulthandler_thread"):
            return "faulthandler watchdog"
        for start, what in _BY_NAME:
            if sample.comm.startswith(start):
                return what
        if has_function(sample.frames, "gomp_thread_start", "__kmp_launch_worker", "blas_thread_server"):
            return "openmp worker"
        if has_function(sample.frames, "gomp_barrier_wait_end", "gomp_team_barrier_wait_end"):
            return "openmp worker"
    elif sample.comm.startswith("QueueFeederThre"):
        return "queue feeder"
    return None


def _keeps_for_a_team(sample: ThreadSample, kind: str) -> bool:
    here = place(sample.frames)
    if here is not None and here.region is not None:
        return False  # at work for its team, and waits for another of it
    return kind == "openmp" or is_spare(sample.frames)


def _by_frame(sample: ThreadSample) -> str | None:
    # Only while it waits for its next piece of work: a pool worker inside a task has the task's frames innermost.
    for frame in python_frames(sample.frames):
        if short(frame.function) == "run" and path_has(frame.file, "concurrent/futures/thread.py"):
            return None
        for function, tail, what in _BY_FRAME:
            if short(frame.function) == function and path_has(frame.file, tail):
                return what
        if not any(path_has(frame.file, tail) for tail in _WAITING_INSIDE):
            return None
    return None


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
