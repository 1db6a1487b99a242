"""A timer of less than a minute keeps whoever waits for it: slow, whatever the wait; and programs that only nap."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Kind, State
from pyhangtrace.model.open_files import Holder
from pyhangtrace.model.processes import ProcessFacts, PythonFacts
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

POOL = "/usr/lib/python3.11/concurrent/futures/process.py"


def joins(pid: int, tid: int | None = None, *, waits_for: int, **changes: Any) -> ThreadSample:
    frames = (b.py("Thread.join", b.THREADING), b.py("main"))
    value = b.local("Thread.join", "_native_id", waits_for)
    return b.sleeper(pid, tid, **{"frames": frames, "named_values": (value,), **changes})


def naps(pid: int, tid: int | None = None, *, left: float = 30.0, **changes: Any) -> ThreadSample:
    return b.asleep(pid, tid, seconds=40.0, left=left, **changes)


def awaits_child(pid: int, child: int, **changes: Any) -> ThreadSample:
    return b.sleeper(pid, syscall=b.WAIT4, args=(child, 0, 0, 0, 0, 0), **changes)


def verdict_of(*threads: ThreadSample, processes: tuple[ProcessFacts, ...] = (b.process(100),)) -> Any:
    return analyze(b.evidence(processes, b.twice(*threads))).verdict


@pytest.mark.parametrize(("left", "state"), [(30.0, State.SLOW), (3000.0, State.HUNG)])
def test_join_of_a_thread_that_naps(left: float, state: State) -> None:
    verdict = verdict_of(joins(100, waits_for=201), naps(100, 201, left=left))
    assert (verdict.state, verdict.cause) == (state, Kind.TIMER)
    assert [who.tid for who in verdict.culprits] == [201]


def test_join_of_a_thread_that_does_its_rounds_is_no_waiting_for_a_nap() -> None:
    verdict = verdict_of(joins(100, waits_for=201, asleep_for_s=500.0), naps(100, 201))
    assert (verdict.state, verdict.culprits) == (State.IDLE, ())


def test_exit_that_waits_for_a_worker_without_work_does_not_wait_for_the_timer_beside_it() -> None:
    frames = (b.py("_shutdown", b.THREADING),)
    ends = b.on_python_lock(100, frames=frames)
    worker = b.sleeper(100, 201, frames=(b.py("Queue.get", "/usr/lib/python3.11/queue.py"), b.py("work")))
    known = (b.local("Thread._bootstrap_inner", "_daemonic", 0),)
    for values in ((), known):
        threads = (b.replace(each, named_values=values) for each in (worker, naps(100, 202)))
        verdict = verdict_of(ends, *threads)
        assert (verdict.state, verdict.culprits) == (State.IDLE, ())
    verdict = verdict_of(ends, b.replace(naps(100, 202), named_values=known))
    assert (verdict.state, verdict.culprits[0].tid) == (State.SLOW, 202)


@pytest.mark.parametrize(
    "nap",
    [{}, {"syscall": b.SELECT, "args": (0, 0, 0, 0, 0, 0)}],
    ids=["clock_nanosleep", "select of nothing"],
)
def test_a_wait_for_a_child_that_asks_between_naps_is_one_whatever_call_naps(nap: dict[str, Any]) -> None:
    frames = (
        b.native("time_sleep", "libpython3.10.so"),
        b.py("Popen.wait", "/usr/lib/python3.10/subprocess.py"),
    )
    asks = b.replace(b.asleep(100, seconds=0.05), frames=frames, **nap)
    processes = (b.process(100), b.process(200, ppid=100))
    verdict = verdict_of(asks, naps(200, left=3000.0), processes=processes)
    assert verdict.state is not State.IDLE
    assert any(who.pid == 100 for who in verdict.victims) or verdict.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("parent", "child", "state"),
    [("python3", "python3", State.SLOW), ("make_data", "sleep", State.SLOW), ("bash", "sleep", State.IDLE)],
)
def test_child_that_naps(parent: str, child: str, state: State) -> None:
    processes = (b.process(100, comm=parent), b.process(101, ppid=100, comm=child))
    verdict = verdict_of(awaits_child(100, 101), naps(101), processes=processes)
    assert verdict.state is state
    assert [who.pid for who in verdict.culprits] == ([101] if state is State.SLOW else [])


def test_worker_of_a_pool_whose_task_naps() -> None:
    """The C function that sleeps has no frame of Python: the worker's own loop is the innermost one."""
    asks = (
        b.py("Condition.wait", b.THREADING),
        b.py("Future.result", "/usr/lib/python3.11/concurrent/futures/_base.py"),
        b.py("main"),
    )
    waits = b.on_python_lock(100, frames=asks)
    works = (
        b.py("_process_worker", POOL),
        b.py("Process.run", "/usr/lib/python3.11/multiprocessing/process.py"),
    )
    idle = b.on_fd(102, fd=3, frames=works)
    python = PythonFacts(version="3.11.2", layout_from="test")
    processes = [b.process(100), *(b.process(pid, ppid=100, python=python) for pid in (101, 102))]
    task = b.replace(naps(101), frames=works)
    fds = [b.pipe(102, 3, 70, b.Holder(pid=100, mode="w"))]
    verdict = analyze(b.evidence(processes, b.twice(waits, task, idle, fds=fds))).verdict
    assert verdict.state is State.SLOW
    assert [who.pid for who in verdict.culprits] == [101]


def keeps_gil(*, nap: float, window: float) -> Evidence:
    """One that naps with the GIL, and one that looks every 5 ms whether it is free."""
    waiter, holder = b.on_gil(100), b.asleep(100, 201, seconds=nap, left=nap - 1.0, holds_gil=True)
    looks = []
    for at in (0.0, 0.1, window):
        ran = int(at / 0.005)
        awake = b.replace(waiter, slices=10 + ran, run_ns=1000 + 20_000 * ran)
        looks.append(b.look(awake, b.replace(holder, asleep_for_s=1.0 + at), at=at))
    return b.evidence([b.process(100)], looks)


def test_gil_that_is_kept_for_a_nap_of_seconds() -> None:
    verdict = analyze(keeps_gil(nap=15.0, window=3.0)).verdict
    assert (verdict.state, verdict.symptom, verdict.cause) == (State.SLOW, Kind.LOCK_GIL, Kind.LOCK_GIL)
    assert [who.tid for who in verdict.culprits] == [201]


@pytest.mark.parametrize(("nap", "window", "state"), [(15.0, 0.5, State.RUNNING), (0.5, 3.0, State.IDLE)])
def test_gil_that_is_kept_for_a_moment(nap: float, window: float, state: State) -> None:
    verdict = analyze(keeps_gil(nap=nap, window=window)).verdict
    assert (verdict.state, verdict.culprits) == (state, ())


def polls_itself(pid: int, *, left: float | None, **changes: Any) -> ThreadSample:
    """In a poll of a pipe of which the process has both ends; without a timeout where nothing is left of one."""
    timeout = None if left is None else left + 3.0
    return b.on_fd(pid, fd=3, syscall=b.POLL, timeout_s=timeout, remaining_s=left, **changes)


def beside_itself(*threads: ThreadSample, caught: tuple[int, ...] = (), ranks: int = 1) -> Any:
    fds = [b.pipe(100, 3, 70, Holder(pid=100, mode="w"))]
    others = [b.rank(100 + each, each, ranks) for each in range(1, ranks)]
    first = b.rank(100, 0, ranks, signals_caught=caught) if others else b.process(100, signals_caught=caught)
    return analyze(b.evidence([first, *others], b.twice(*threads, fds=fds))).verdict


@pytest.mark.parametrize("left", [3.0, 30.0, 3000.0])
def test_a_poll_of_the_own_wake_up_pipe_that_has_a_timeout_is_a_nap(left: float) -> None:
    verdict = beside_itself(polls_itself(100, left=left))
    assert (verdict.state, verdict.culprits) == (State.IDLE, ())
    endless = beside_itself(polls_itself(100, left=None))
    assert (endless.state, endless.cause) == (State.HUNG, Kind.IPC_NO_EOF)


@pytest.mark.parametrize(
    ("left", "caught", "state"),
    [
        (30.0, (), State.SLOW),
        (30.0, (10,), State.SLOW),
        (3000.0, (), State.HUNG),
    ],
)
def test_who_waits_for_such_a_nap(left: float, caught: tuple[int, ...], state: State) -> None:
    verdict = beside_itself(polls_itself(100, left=left), b.in_collective(101), caught=caught, ranks=2)
    assert (verdict.state, verdict.cause) == (state, Kind.TIMER)
    assert [who.rank for who in verdict.culprits] == [0]


def test_a_handler_may_end_a_long_one_before_its_time() -> None:
    verdict = beside_itself(polls_itself(100, left=3000.0), b.in_collective(101), caught=(10,), ranks=2)
    assert verdict.cause is not Kind.TIMER


def test_a_poll_with_a_timeout_is_none_of_those_who_are_held_up_for_good() -> None:
    joins_it = joins(100, 201, waits_for=100)
    assert beside_itself(polls_itself(100, left=5.0), joins_it).state is State.UNKNOWN
    assert beside_itself(polls_itself(100, left=None), joins_it).state is State.HUNG
