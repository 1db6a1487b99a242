"""The demos: for each a name, a summary and the processes it consists of."""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from pyhangtrace.demo.parts import Barrier, Blocked, Mutex, Weights, all_reduce, announce, die_with_parent

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What the launcher of a demo gets to work with."""

    folder: Path
    weights: Weights
    announce_to: Connection


@dataclass(frozen=True, slots=True)
class DemoKind:
    """One demo: the name to ask for it by and one line that says what hangs."""

    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class Scene:
    """How a demo is run: by what, with how many announcements, and where a person would attach."""

    kind: DemoKind
    run: Callable[[Stage], None]
    members: int
    attach_to: str
    needs_lock_holder: bool = False


def lock_path(folder: Path) -> Path:
    """Return the file whose lock the other job of the ``file-lock`` demo holds."""
    return folder / "compile_cache.lock"


# -- ranks in a collective of their own ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Late:
    """What one rank does instead of coming to the collective."""

    rank: int
    work: Callable[[Connection, str], None]


def _rank(rank: int, barrier: Barrier, weights: Weights | None, say: Connection, late: _Late | None) -> None:
    die_with_parent()
    if weights is not None:
        weights.map()
    role = f"rank{rank}"
    if late is not None:
        late.work(say, role)
    else:
        announce(say, role, blocked=Blocked.LOCK)
    all_reduce(barrier)


def _run_ranks(stage: Stage, *, count: int, late: _Late, weights: Weights | None = None) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    ranks = []
    for rank in range(count):
        # Spawned children take these over; a launcher has no rank itself.
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
        own = late if rank == late.rank else None
        process = context.Process(
            target=_rank, args=(rank, barrier, weights, stage.announce_to, own), name=f"rank{rank}"
        )
        process.start()
        ranks.append(process)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    for process in ranks:
        process.join()


def _wait_for_compile_cache(path: Path, say: Connection, role: str) -> None:
    fd = os.open(path, os.O_RDWR)
    announce(say, role, blocked=Blocked.FILE_LOCK)
    fcntl.flock(fd, fcntl.LOCK_EX)


def _stop_self(say: Connection, role: str) -> None:
    announce(say, role, blocked=Blocked.STOPPED)
    os.kill(os.getpid(), signal.SIGSTOP)


def _read_from_nobody(say: Connection, role: str) -> None:
    # We keep the write end ourselves, so the end of the file never comes either.
    reader, _writer = os.pipe()
    announce(say, role, blocked=Blocked.READ)
    os.read(reader, 1)


def _load_sample(results: Connection, say: Connection) -> None:
    die_with_parent()
    announce(say, "data worker", blocked=Blocked.SLEEP)
    time.sleep(_HOUR)
    results.send_bytes(b"sample")


def _wait_for_data_worker(say: Connection, role: str) -> None:
    samples, results = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(
        target=_load_sample, args=(results, say), name="loader"
    )
    worker.start()
    results.close()
    announce(say, role, blocked=Blocked.READ)
    samples.recv_bytes()


def _compute(say: Connection, role: str) -> None:
    announce(say, role, blocked=Blocked.RUNNING)
    state = b""
    while True:
        state = hashlib.sha256(state * 64).digest()


def _file_lock(stage: Stage) -> None:
    late = _Late(3, partial(_wait_for_compile_cache, lock_path(stage.folder)))
    _run_ranks(stage, count=8, late=late, weights=stage.weights)


def _ranks_with(late: _Late, *, count: int) -> Callable[[Stage], None]:
    return partial(_run_ranks, count=count, late=late)


# -- one process ---------------------------------------------------------------------------------------------


def _mutex_cycle(stage: Stage) -> None:
    first, second = Mutex(), Mutex()
    both_hold_one = threading.Barrier(2)

    def transfer(role: str, mine: Mutex, other: Mutex) -> None:
        mine.lock()
        both_hold_one.wait()
        announce(stage.announce_to, role, blocked=Blocked.LOCK)
        other.lock()

    _run_threads(
        threading.Thread(target=transfer, args=("reader", first, second), name="cache-reader"),
        threading.Thread(target=transfer, args=("writer", second, first), name="cache-writer"),
    )


def _gil(stage: Stage) -> None:
    mutex = Mutex()
    is_locked = threading.Event()

    def call_back_under_mutex() -> None:
        mutex.lock()
        announce(stage.announce_to, "callback", blocked=Blocked.LOCK)
        is_locked.set()
        while True:
            # Lets go of the GIL and wants it back, with the mutex held.
            os.sched_yield()

    def flush() -> None:
        is_locked.wait()
        announce(stage.announce_to, "flush", blocked=Blocked.LOCK)
        mutex.lock_keeping_gil()

    _run_threads(
        threading.Thread(target=call_back_under_mutex, name="callback"),
        threading.Thread(target=flush, name="flush"),
    )


def _run_threads(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _idle_server(stage: Stage) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    with ThreadPoolExecutor(2, thread_name_prefix="handler") as pool:
        list(pool.map(len, [b"", b""]))
        announce(stage.announce_to, "server", blocked=Blocked.POLL)
        while True:
            for _ in selector.select():
                connection, _address = listener.accept()
                pool.submit(connection.close)


def _scene(
    name: str,
    summary: str,
    run: Callable[[Stage], None],
    *,
    members: int,
    attach_to: str = "rank0",
    needs_lock_holder: bool = False,
) -> Scene:
    return Scene(DemoKind(name, summary), run, members, attach_to, needs_lock_holder)


DEFAULT_KIND = "file-lock"

_SCENES = (
    _scene(
        "file-lock",
        "eight ranks map one file; rank 3 waits for a file lock that another job holds",
        _file_lock,
        members=8,
        needs_lock_holder=True,
    ),
    _scene(
        "stopped",
        "three of four ranks wait for rank 2, which was stopped by SIGSTOP",
        _ranks_with(_Late(2, _stop_self), count=4),
        members=4,
    ),
    _scene(
        "silent-pipe",
        "three of four ranks wait for rank 1, which reads from a pipe that nobody writes to",
        _ranks_with(_Late(1, _read_from_nobody), count=4),
        members=4,
    ),
    _scene(
        "data-worker",
        "one of two ranks waits for its data worker, which sleeps for an hour",
        _ranks_with(_Late(1, _wait_for_data_worker), count=2),
        members=3,
    ),
    _scene(
        "busy",
        "one of two ranks waits for the other one, which computes",
        _ranks_with(_Late(1, _compute), count=2),
        members=2,
    ),
    _scene(
        "mutex-cycle",
        "two threads each hold a C mutex that the other one wants",
        _mutex_cycle,
        members=2,
        attach_to="launcher",
    ),
    _scene(
        "gil",
        "one thread holds the GIL and waits for a C mutex, its owner waits for the GIL",
        _gil,
        members=2,
        attach_to="launcher",
    ),
    _scene(
        "idle",
        "a server with nothing to do: not a hang",
        _idle_server,
        members=1,
        attach_to="launcher",
    ),
)


def kinds() -> list[DemoKind]:
    """List the demos, the default one first."""
    return [scene.kind for scene in _SCENES]


def find_scene(name: str) -> Scene:
    """Return the scene of a demo. Raises KeyError when there is none of that name."""
    for scene in _SCENES:
        if scene.kind.name == name:
            return scene
    raise KeyError(name)
