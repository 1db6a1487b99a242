"""Event loops that nothing is left to wake, and those that something may wake yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.model.kinds import Confidence, Kind, PolledThing, State, TaskObjectKind, WaitKind
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import TaskObject, TaskSample, ThreadSample
from tests.unit.analyze import builders as b
from tests.unit.analyze.test_event_loops import closed, report_of, task

_OBJECT = 0x7000


def waiting(
    kind: TaskObjectKind, method: str, count: int | None = 0, limit: int | None = None, **changes: object
) -> TaskSample:
    """A task in a method of an object of asyncio."""
    found = TaskObject(kind=kind, method=method, address=_OBJECT, count=count, limit=limit)
    told = f"{kind.value.capitalize()}.{method}"
    sample = replace(task("one", 0x1000, None), awaits=told, awaits_address=0x1008, object=found)
    return replace(sample, **changes)  # type: ignore[arg-type]


def pool_worker(tid: int) -> ThreadSample:
    frames = (b.py("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py"),)
    return b.on_python_lock(100, tid, frames=frames)


_TO_GO_ON = [
    (TaskObjectKind.SEMAPHORE, "acquire", WaitKind.SEMAPHORE),
    (TaskObjectKind.QUEUE, "put", WaitKind.QUEUE),
    (TaskObjectKind.QUEUE, "join", WaitKind.QUEUE),
    (TaskObjectKind.BARRIER, "wait", WaitKind.BARRIER),
]
_FOR_WORK = [
    (TaskObjectKind.QUEUE, "get"),
    (TaskObjectKind.EVENT, "wait"),
    (TaskObjectKind.CONDITION, "wait"),
]


@pytest.mark.parametrize(("kind", "method", "wait_kind"), _TO_GO_ON)
def test_task_waits_for_what_only_its_own_sleeping_loop_could_give(
    kind: TaskObjectKind, method: str, wait_kind: WaitKind
) -> None:
    report = closed(waiting(kind, method), task("main", 0x2000, 0x1000))
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_HANDOFF_LOST,
        Confidence.LIKELY,
    )
    (wait,) = report.waits
    assert (wait.kind, wait.object.address, wait.holder) == (wait_kind, hex(_OBJECT), None)
    assert f"an asyncio.{kind.value.capitalize()}" in verdict.summary
    assert any(line.startswith("nothing is left to wake this loop") for line in wait.evidence)


@pytest.mark.parametrize(("kind", "method"), _FOR_WORK)
def test_who_waits_for_work_may_do_so_for_good(kind: TaskObjectKind, method: str) -> None:
    report = closed(waiting(kind, method))
    assert report.verdict.state is State.UNKNOWN
    assert any(line.startswith("nothing is left to wake") for line in report.waits[0].evidence)


def _told(report: Report) -> bool:
    return any(line.startswith("nothing is left to wake") for wait in report.waits for line in wait.evidence)


def test_loop_that_something_may_wake_is_not_given_up() -> None:
    stuck = waiting(TaskObjectKind.SEMAPHORE, "acquire")
    for report in (
        report_of(stuck),  # it listens
        closed(stuck, signals=(2, 15)),
        closed(stuck, threads=(b.asleep(100, 201, seconds=20),)),
        closed(stuck, threads=(b.on_fd(100, 201, fd=9),)),
        closed(stuck, replace(task("two", 0x2000, None), awaits="ready")),
        closed(stuck, replace(task("two", 0x2000, None), awaits=None)),
        closed(replace(stuck, moved=True)),
    ):
        assert report.verdict.state is not State.HUNG
        assert report.verdict.culprits == ()
        assert not _told(report)


def test_workers_that_wait_for_work_wake_nobody() -> None:
    report = closed(
        waiting(TaskObjectKind.QUEUE, "join", count=3), threads=(pool_worker(201), pool_worker(202))
    )
    assert report.verdict.state is State.HUNG
    wait = next(each for each in report.waits if each.tid == 100)
    assert "task one awaits Queue.join of the queue at 0x7000, 3 unfinished" in wait.evidence


# -- semaphores ------------------------------------------------------------------------------------------------


def _ring(limit: int | None) -> tuple[TaskSample, TaskSample]:
    def member(name: str, address: int, wants: int, has: int) -> TaskSample:
        found = TaskObject(
            kind=TaskObjectKind.SEMAPHORE, method="acquire", address=wants, count=0, limit=limit
        )
        sample = task(name, address, None, holds=(has,))
        return replace(sample, awaits="BoundedSemaphore.acquire", awaits_address=address + 8, object=found)

    return member("one", 0x1000, 0x52, 0x51), member("two", 0x2000, 0x51, 0x52)


def test_semaphores_that_let_one_in_are_locks() -> None:
    report = report_of(*_ring(1))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert (
        "task one awaits BoundedSemaphore.acquire of the semaphore at 0x52 that task two has"
        in report.waits[0].evidence
    )


@pytest.mark.parametrize("limit", [None, 2])
def test_permits_that_others_may_have_too_make_no_circle(limit: int | None) -> None:
    """How many there were in the beginning is not known, or there are more."""
    report = report_of(*_ring(limit))
    assert report.verdict.state is State.IDLE
    inside = f"0{f' of {limit}' if limit else ''} permits left; in an `async with` of it: task two"
    assert any(f"of the semaphore at 0x52, {inside}" in line for line in report.waits[0].evidence)


def napping(**changes: object) -> TaskSample:
    """A task that naps in a loop, and asks whether something is done."""
    frames = (b.py("sleep", "/usr/lib/python3.11/asyncio/tasks.py"), b.py("main"))
    asked = {
        "awaits": "sleep",
        "wakes_in_s": 0.1,
        "polls_for": "done()",
        "polled": PolledThing.FUTURE,
        "frames": frames,
    }
    return task("main", 0x2000, None, **{**asked, **changes})


def test_task_that_asks_for_something_in_a_loop_that_nothing_else_wakes() -> None:
    report = closed(napping(), task("one", 0x1000, None), left_s=0.1)
    (wait,) = report.waits
    assert (report.verdict.state, wait.kind, wait.holder) == (State.UNKNOWN, WaitKind.CONDITION, None)
    assert any("asks `done()` again and again" in line for line in wait.evidence)


@pytest.mark.parametrize(
    "report",
    [
        closed(napping(polls_for=None, polled=None), left_s=0.1),
        closed(napping(), task("beat", 0x1000, None, awaits="sleep", wakes_in_s=0.3), left_s=0.1),
        closed(napping(), signals=(2, 10), left_s=0.1),
        closed(napping(), threads=(b.running(100, 201),), left_s=0.1),
        report_of(napping()),
    ],
    ids=["asks nothing", "a timer", "a signal", "a thread", "a server"],
)
def test_task_that_asks_where_something_else_may_go_on(report: Report) -> None:
    assert report.verdict.state is not State.HUNG
    assert not any("again and again" in line for wait in report.waits for line in wait.evidence)


@pytest.mark.parametrize(
    ("thing", "kind"), [(PolledThing.LOCK, WaitKind.PYTHON_LOCK), (PolledThing.FILE, WaitKind.LOCK_FILE)]
)
def test_what_a_task_asks_for(thing: PolledThing, kind: WaitKind) -> None:
    (wait,) = closed(napping(polled=thing), left_s=0.1).waits
    assert wait.kind is kind
