"""Tasks of an event loop that wait for each other, and those that wait for what nobody records."""

from __future__ import annotations

from dataclasses import replace

from pyhangtrace.analyze import analyze
from pyhangtrace.model.evidence import FdFacts, TaskSample
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, State
from pyhangtrace.model.report import Report
from tests.unit.analyze import builders as b

LOOP = (
    b.py("EpollSelector.select", "/usr/lib/python3.11/selectors.py"),
    b.py("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py"),
    b.py("BaseEventLoop.run_forever", "/usr/lib/python3.11/asyncio/base_events.py"),
)


def task(name: str, address: int, awaits: int | None, **changes: object) -> TaskSample:
    told = f"task at {awaits:#x}" if awaits else "Event.wait"
    whole = TaskSample(pid=100, tid=100, name=name, address=address, awaits=told, awaits_address=awaits)
    return replace(whole, **changes)  # type: ignore[arg-type]


def report_of(*tasks: TaskSample, before: tuple[TaskSample, ...] | None = None) -> Report:
    loop = b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP)
    fds = [
        FdFacts(pid=100, fd=4, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=(5,)),
        b.connection(100, 5, 70, state="LISTEN"),
    ]
    first, last = b.twice(loop, fds=fds)
    first = replace(first, tasks=tasks if before is None else before)
    return analyze(b.evidence([b.process(100)], (first, replace(last, tasks=tasks))))


def test_tasks_that_await_each_other_are_a_likely_deadlock_of_their_loop() -> None:
    report = report_of(task("one", 16, 32), task("two", 32, 16), task("main", 48, 16))
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_CYCLE,
        Confidence.LIKELY,
    )
    assert len(verdict.cycle) == 1
    assert "tasks one, two, which await each other" in verdict.summary
    assert "task two awaits task at 0x10" in report.waits[0].evidence


def test_chain_of_tasks_without_a_circle_is_told_and_nobody_is_named() -> None:
    report = report_of(task("main", 48, 16), task("one", 16, None))
    assert report.verdict.state is State.IDLE
    assert report.verdict.culprits == ()
    assert "task one awaits Event.wait" in report.waits[0].evidence


def test_circle_must_be_there_in_every_look_and_at_rest() -> None:
    ring = (task("one", 16, 32), task("two", 32, 16))
    assert report_of(*ring, before=(task("one", 16, 32), task("two", 32, None))).verdict.state is State.IDLE
    assert report_of(*(replace(each, moved=True) for each in ring)).verdict.state is State.IDLE
    assert report_of(ring[0], replace(ring[1], done=True)).verdict.state is State.IDLE
