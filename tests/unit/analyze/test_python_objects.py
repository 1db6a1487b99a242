"""Futures, queues, barriers: who works on a result is in memory, and where it is not, nobody is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.analyze.holders import COUNTS
from pyhangtrace.model.kinds import Confidence, State, WaitKind
from pyhangtrace.model.report import Report, Wait
from pyhangtrace.model.threads import LockFacts, NamedValue, ThreadSample
from tests.unit.analyze import builders as b

BASE = "/usr/lib/python3.11/concurrent/futures/_base.py"
POOL = "/usr/lib/python3.11/concurrent/futures/thread.py"
QUEUE = "/usr/lib/python3.11/queue.py"
PAUSE = 34


def value(function: str, name: str, **more: Any) -> NamedValue:
    return NamedValue(function=function, name=name, value=more.pop("value", None), **more)


def waiter(tid: int, future: int, *, function: str = "Future.result", **changes: Any) -> ThreadSample:
    """Waits for the future at an address."""
    frames = (b.py("Condition.wait", b.THREADING), b.py(function, BASE), b.py("ask"))
    own = (
        value("Condition.wait", "self", type="Condition", address=future + 8),
        value(function, "self", type="Future", address=future),
    )
    return b.on_python_lock(100, tid, frames=frames, **{"named_values": own, **changes})


def working(sample: ThreadSample, future: int, queue: int = 0x900) -> ThreadSample:
    """The same thread as a worker of a pool that works on a future."""
    frames = (b.py("_WorkItem.run", POOL), b.py("_worker", POOL))
    values = (
        value("_WorkItem.run", "self", type="_WorkItem", address=future + 16),
        value("_WorkItem.run", "future", type="Future", address=future),
        value("_worker", "work_queue", type="_queue.SimpleQueue", address=queue),
    )
    return replace(sample, frames=(*sample.frames, *frames), named_values=(*sample.named_values, *values))


def asleep(tid: int) -> ThreadSample:
    return b.asleep(100, tid, seconds=3600)


def report_of(*threads: ThreadSample) -> Report:
    main = b.sleeper(100, syscall=PAUSE, args=())
    return analyze(b.evidence([b.process(100)], b.twice(main, *threads)))


def wait_of(report: Report, tid: int) -> Wait:
    return next(wait for wait in report.waits if wait.tid == tid)


def test_the_worker_that_works_on_the_future_is_its_holder() -> None:
    report = report_of(waiter(201, 0x5000), working(asleep(202), 0x5000), working(asleep(203), 0x6000))
    wait = wait_of(report, 201)
    assert wait.holder is not None
    assert (wait.holder.pid, wait.holder.tid) == (100, 202)
    assert (wait.object.address, wait.object.name) == ("0x5000", "Future")
    assert report.verdict.state is State.HUNG
    assert [one.tid for one in report.verdict.culprits] == [202]
    assert "the result of a future that thread thread-202 (tid 202) works on" in report.verdict.summary


def test_the_lock_of_a_future_that_somebody_has_is_what_is_waited_for() -> None:
    entering = waiter(201, 0x5000)
    assert entering.lock is not None
    held = replace(entering.lock, kind="python_rlock", owner_tid=203, owner_exact=True)
    report = report_of(replace(entering, lock=held), working(asleep(202), 0x5000), asleep(203))
    wait = wait_of(report, 201)
    assert (wait.kind, wait.holder and wait.holder.tid) == (WaitKind.PYTHON_LOCK, 203)


def test_workers_that_wait_for_each_others_futures_are_a_proven_cycle() -> None:
    report = report_of(
        working(waiter(201, 0x6000), 0x5000, 0x900), working(waiter(202, 0x5000), 0x6000, 0x901)
    )
    assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, Confidence.PROVEN)
    assert len(report.verdict.cycle) == 2


def test_a_future_that_stands_in_the_queue_of_workers_who_wait_for_it() -> None:
    queued = value("_worker", "work_queue[].future", members=(0x6000, 0x7000), length=2)
    one, two = (working(waiter(tid, 0x7000), 0x5000 + tid) for tid in (201, 202))
    threads = [replace(each, named_values=(*each.named_values, queued)) for each in (one, two)]
    report = report_of(*threads)
    assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, Confidence.LIKELY)
    free = replace(b.running(100, 202), named_values=threads[1].named_values[2:])
    assert report_of(threads[0], free).verdict.state is not State.HUNG


def test_nobody_is_named_for_a_future_that_no_pool_knows() -> None:
    report = report_of(waiter(201, 0x5000), working(asleep(202), 0x6000))
    assert wait_of(report, 201).holder is None
    assert report.verdict.state is not State.HUNG
    assert report.verdict.culprits == ()


@pytest.mark.parametrize(
    ("how", "pending", "hung"),
    [("ALL_COMPLETED", (0x5000, 0x6000), True), ("FIRST_COMPLETED", (0x5000, 0x6000), False)],
)
def test_waiting_for_several_futures(how: str, pending: tuple[int, ...], hung: bool) -> None:
    frames = (b.py("Event.wait", b.THREADING), b.py("wait", BASE), b.py("ask"))
    values = (
        value("wait", "not_done[]", members=pending, length=len(pending)),
        value("wait", "return_when", value=how),
    )
    several = b.on_python_lock(100, 201, frames=frames, named_values=values)
    # Of the other one nobody knows who completes it.
    report = report_of(several, working(asleep(202), 0x5000))
    assert (report.verdict.state is State.HUNG) is hung


def test_how_many_have_come_and_how_much_is_in_it() -> None:
    at_barrier = b.on_python_lock(
        100,
        201,
        frames=(b.py("Barrier._wait", b.THREADING), b.py("Barrier.wait", b.THREADING), b.py("meet")),
        named_values=(
            value("Barrier.wait", "self", type="Barrier", address=0x4000),
            value("Barrier.wait", "_parties", value=3),
            value("Barrier.wait", "_count", value=1),
        ),
    )
    putting = b.on_python_lock(
        100,
        202,
        frames=(b.py("Condition.wait", b.THREADING), b.py("Queue.put", QUEUE), b.py("feed")),
        named_values=(
            value("Queue.put", "self", type="Queue", address=0x4100),
            value("Queue.put", "maxsize", value=2),
            value("Queue.put", "queue", type="collections.deque", address=0x4200, length=2),
        ),
    )
    report = report_of(at_barrier, putting)
    barrier, queue = wait_of(report, 201), wait_of(report, 202)
    assert (barrier.kind, barrier.object.address) == (WaitKind.BARRIER, "0x4000")
    assert "1 of 3 have come to the barrier" in barrier.evidence
    assert (queue.kind, queue.object.address) == (WaitKind.QUEUE, "0x4100")
    assert "queue with 2 of 2 in it" in queue.evidence
    assert report.verdict.culprits == ()


def test_at_its_end_the_interpreter_waits_for_all_threads_that_are_no_daemons() -> None:
    main = b.on_python_lock(100, frames=(b.py("_shutdown", b.THREADING),))

    def thread(tid: int, daemonic: int) -> ThreadSample:
        own = value("Thread._bootstrap_inner", "_daemonic", value=daemonic)
        return replace(asleep(tid), named_values=(own,))

    looks = b.twice(main, thread(201, 0), thread(202, 1))
    report = analyze(b.evidence([b.process(100)], looks))
    wait = next(wait for wait in report.waits if wait.tid == 100)
    assert wait.holder is not None
    assert wait.holder.tid == 201
    assert [one.tid for one in report.verdict.culprits] == [201]


def on_semaphore(pid: int, owner: int | None, *, exact: bool, problem: str | None = None) -> ThreadSample:
    """In acquire() of a semaphore of multiprocessing."""
    lock = LockFacts(
        kind="semaphore",
        address=0x7000,
        uaddr=0x7000,
        op=9,
        value=0,
        owner_tid=owner,
        owner_from="SemLock.last_tid" if owner else None,
        owner_exact=exact,
        shared_key=(1, 77, 0),
        problem=problem,
    )
    frames = (b.native("_multiprocessing_SemLock_acquire", "_multiprocessing.so"), b.py("take"))
    return b.sleeper(pid, lock=lock, frames=frames)


@pytest.mark.parametrize("exact", [True, False])
def test_processes_that_hold_each_others_shared_locks(exact: bool) -> None:
    one = on_semaphore(101, 102, exact=exact)
    two = on_semaphore(102, 101, exact=exact)
    processes = [b.process(100), b.process(101, ppid=100), b.process(102, ppid=100)]
    parent = b.sleeper(100, syscall=PAUSE, args=())
    report = analyze(b.evidence(processes, b.twice(parent, one, two)))
    assert report.verdict.state is State.HUNG
    assert len(report.verdict.cycle) == 2
    assert report.verdict.confidence is (Confidence.PROVEN if exact else Confidence.LIKELY)


def test_nobody_holds_a_semaphore_that_counts() -> None:
    counting = on_semaphore(101, None, exact=False, problem=COUNTS)
    processes = [b.process(100), b.process(101, ppid=100), b.process(102, ppid=100)]
    looks = b.twice(b.sleeper(100, syscall=PAUSE, args=()), counting, b.asleep(102, seconds=3600))
    report = analyze(b.evidence(processes, looks))
    assert report.verdict.culprits == ()
    assert report.verdict.state is not State.HUNG
