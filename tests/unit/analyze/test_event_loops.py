"""Tasks of an event loop that wait for each other, and those that wait for what nobody records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, Part, State
from pyhangtrace.model.open_files import FdFacts
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import NamedValue, TaskSample, ThreadSample
from tests.unit.analyze import builders as b

LOOP = (
    b.py("EpollSelector.select", "/usr/lib/python3.11/selectors.py"),
    b.py("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py"),
    b.py("BaseEventLoop.run_forever", "/usr/lib/python3.11/asyncio/base_events.py"),
)


def task(name: str, address: int, of: int | None, **changes: object) -> TaskSample:
    """A task that awaits another one, by its address, or an event."""
    told = f"task at {of:#x}" if of else "Event.wait"
    whole = TaskSample(pid=100, tid=100, name=name, address=address, awaits=told, awaits_address=of)
    return replace(whole, **changes)  # type: ignore[arg-type]


def report_of(
    *tasks: TaskSample,
    before: tuple[TaskSample, ...] | None = None,
    threads: tuple[ThreadSample, ...] = (),
) -> Report:
    loop = b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP)
    fds = [
        FdFacts(pid=100, fd=4, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=(5,)),
        b.connection(100, 5, 70, state="LISTEN"),
    ]
    first, last = b.twice(loop, *threads, fds=fds)
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


def test_tasks_that_try_for_each_others_locks_all_the_while_are_not_idle() -> None:
    def tries(name: str, address: int, wants: int, holds: int) -> TaskSample:
        return locking(name, address, wants, holds, wakes_in_s=0.5)

    ring = (tries("one", 16, 0x200, 0x100), tries("two", 32, 0x100, 0x200))
    report = report_of(*ring)
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert any("tasks one, two have locks" in line for line in report.waits[0].evidence)
    free = (ring[0], replace(ring[1], holds=()))
    assert report_of(*ring, before=free).verdict.state is State.IDLE


# -- locks of asyncio ------------------------------------------------------------------------------------------


def locking(name: str, address: int, wants: int | None, *holds: int, **changes: object) -> TaskSample:
    """A task that wants one lock of asyncio and stands in the blocks of others."""
    whole = TaskSample(
        pid=100,
        tid=100,
        name=name,
        address=address,
        awaits="Lock.acquire",
        awaits_address=address + 8,
        lock=wants,
        holds=holds,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_tasks_that_want_each_others_locks_are_a_likely_deadlock() -> None:
    report = report_of(locking("one", 0x1000, 0x52, 0x51), locking("two", 0x2000, 0x51, 0x52))
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_CYCLE,
        Confidence.LIKELY,
    )
    assert "task one awaits Lock.acquire of the lock at 0x52 that task two has" in report.waits[0].evidence


def test_a_timer_of_the_loop_may_yet_cancel_one_of_them() -> None:
    ring = (locking("one", 0x1000, 0x52, 0x51), locking("two", 0x2000, 0x51, 0x52))
    watchdog = task("dog", 0x3000, None, awaits="sleep", wakes_in_s=0.3)
    alone, watched = report_of(*ring).verdict, report_of(*ring, watchdog).verdict
    assert (watched.state, watched.confidence) == (State.HUNG, Confidence.POSSIBLE)
    assert "tasks one, two, which await each other" in watched.summary
    for verdict in (alone, watched):
        told = " ".join(verdict.next_steps)
        assert "cancelled" in told
        assert "write" not in told
        assert "recover" not in told
    assert "end pid" not in " ".join(watched.next_steps)


def test_task_that_wants_the_lock_it_has_awaits_itself() -> None:
    report = report_of(locking("one", 0x1000, 0x51, 0x51))
    assert report.verdict.cause is Kind.LOCK_CYCLE
    assert "task one, which awaits itself" in report.verdict.summary


def test_lock_in_whose_blocks_two_tasks_stand_has_no_holder() -> None:
    tasks = (
        locking("one", 0x1000, 0x52, 0x51),
        locking("two", 0x2000, 0x51, 0x52),
        locking("three", 0x3000, None, 0x52, awaits="Event.wait"),
    )
    assert report_of(*tasks).verdict.state is State.IDLE


def test_what_a_circle_of_tasks_comes_to_that_a_timeout_breaks_is_open() -> None:
    ring = (locking("one", 0x1000, 0x52, 0x51), locking("two", 0x2000, 0x51, 0x52))
    for left, state in ((20.0, State.UNKNOWN), (300.0, State.HUNG)):
        timed = (ring[0], replace(ring[1], wakes_in_s=left))
        assert report_of(*timed).verdict.state is state
        # Who is cancelled cancels what it waits for.
        outer = task("outer", 0x3000, None, awaits="gather of 2, 2 pending", needs=(0x1000, 0x2000))
        assert report_of(*ring, replace(outer, wakes_in_s=left)).verdict.state is state


def test_a_circle_of_tasks_beside_one_that_may_come_to_cancel_one_is_open() -> None:
    ring = (locking("one", 0x1000, 0x52, 0x51), locking("two", 0x2000, 0x51, 0x52))
    watches = task("watch", 0x3000, None)
    assert report_of(*ring, watches).verdict.state is State.HUNG
    report = report_of(*ring, replace(watches, lets_go="cancel"))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert any("task watch may come to its `cancel`" in line for line in report.waits[0].evidence)
    # Who waits for the circle itself comes to nothing.
    outer = task("outer", 0x3000, None, awaits="gather of 2, 2 pending", needs=(0x1000, 0x2000))
    assert report_of(*ring, replace(outer, lets_go="cancel")).verdict.state is State.HUNG


# -- a loop whose tasks wait for threads -----------------------------------------------------------------------

_OWN_END = b.Holder(pid=100, fd=6, mode="rw")
_POOL = "/usr/lib/python3.11/concurrent/futures/thread.py"
_BASE = "/usr/lib/python3.11/concurrent/futures/_base.py"


def _self(function: str, address: int, name: str = "self") -> NamedValue:
    return NamedValue(function=function, name=name, value=None, type="Future", address=address)


def worker(sample: ThreadSample, future: int) -> ThreadSample:
    """A thread of a pool that works on a future, by what it stands in."""
    return replace(
        sample,
        frames=(*sample.frames, b.py("_WorkItem.run", _POOL), b.py("_worker", _POOL)),
        named_values=(*sample.named_values, _self("_WorkItem.run", future, "future")),
    )


def awaiting_result(tid: int, future: int) -> ThreadSample:
    """A thread in Future.result()."""
    frames = (b.py("Condition.wait", b.THREADING), b.py("Future.result", _BASE), b.py("ask"))
    values = (_self("Condition.wait", future + 64), _self("Future.result", future))
    return b.on_python_lock(100, tid, frames=frames, named_values=values)


def closed(
    *tasks: TaskSample,
    threads: tuple[ThreadSample, ...] = (),
    signals: tuple[int, ...] = (2,),
    left_s: float | None = None,
) -> Report:
    """A loop that watches nothing but its own wake-up pair. `left_s`: until its first timer."""
    loop = b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP, timeout_s=left_s, remaining_s=left_s)
    fds = [
        FdFacts(pid=100, fd=4, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=(5,)),
        b.connection(100, 5, 70, _OWN_END),
    ]
    looks = tuple(replace(look, tasks=tasks) for look in b.twice(loop, *threads, fds=fds))
    return analyze(b.evidence([b.process(100, signals_caught=signals)], looks))


def calling(name: str, address: int, future: int, **changes: object) -> TaskSample:
    """A task that awaits what a worker of a pool does."""
    return task(
        name, address, None, awaits="a call in another thread", needs=(future,), needs_known=True, **changes
    )


def test_loop_all_of_whose_tasks_await_threads_waits_for_those() -> None:
    report = closed(
        calling("one", 0x1000, 0x5000), threads=(worker(b.asleep(100, 201, seconds=3600), 0x5000),)
    )
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.TIMER)
    assert [one.tid for one in report.verdict.culprits] == [201]
    wait = next(each for each in report.waits if each.tid == 100)
    assert wait.holder is not None
    assert wait.holder.tid == 201
    assert "task one awaits a call in another thread, run by thread 201" in wait.evidence


def test_loop_that_something_else_may_wake_waits_for_events() -> None:
    threads = (worker(b.asleep(100, 201, seconds=3600), 0x5000),)
    call = calling("one", 0x1000, 0x5000)
    for report in (
        report_of(call, threads=threads),  # it listens
        closed(call, threads=threads, signals=(2, 15)),
        closed(call, task("two", 0x2000, None), threads=threads),
        closed(call, calling("two", 0x2000, 0x6000), threads=threads),  # nobody works on that
    ):
        assert (report.verdict.state, report.verdict.culprits) == (State.IDLE, ())
    wait = next(each for each in report_of(call, threads=threads).waits if each.tid == 100)
    assert "task one awaits a call in another thread, run by thread 201" in wait.evidence
    assert [each.tid for each in wait.candidates] == [201]


def test_lock_that_nobody_has_and_nothing_can_give_back() -> None:
    report = closed(locking("one", 0x1000, 0x51))
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_HELD,
        Confidence.LIKELY,
    )
    assert [one.part for one in verdict.culprits] == [Part.PARTY]
    assert "an asyncio.Lock" in verdict.summary
    # Another thread may have a task made that gives it back; so may who connects.
    beside = closed(locking("one", 0x1000, 0x51), threads=(b.asleep(100, 201, seconds=20),)).verdict
    assert (beside.state, beside.culprits) == (State.UNKNOWN, ())
    assert report_of(locking("one", 0x1000, 0x51)).verdict.state is State.IDLE


def test_circle_of_a_task_a_worker_and_a_thread() -> None:
    """A task has a lock and awaits a worker, which wants the lock of a thread that waits for a task that wants the
    first one."""
    tasks = (
        calling("one", 0x1000, 0x5000, holds=(0x51,)),
        locking("two", 0x2000, 0x51, computes=0x6000),
    )
    wants = worker(b.on_python_lock(100, 201, owner=202), 0x5000)
    assert wants.lock is not None
    wants = replace(wants, lock=replace(wants.lock, kind="python_rlock", owner_exact=True))
    for make in (closed, report_of):
        verdict = make(*tasks, threads=(wants, awaiting_result(202, 0x6000))).verdict
        assert (verdict.state, verdict.cause, verdict.confidence) == (
            State.HUNG,
            Kind.LOCK_CYCLE,
            Confidence.LIKELY,
        )
        assert [one.tid for one in verdict.culprits] == [100, 201, 202]
    # The task that the thread waits for does well.
    well = (tasks[0], task("two", 0x2000, None, computes=0x6000))
    assert report_of(*well, threads=(wants, awaiting_result(202, 0x6000))).verdict.cycle == ()


def test_who_waits_for_a_task_that_sleeps_waits_for_the_clock() -> None:
    sleeps = task("two", 0x2000, None, awaits="sleep", wakes_in_s=20.0, computes=0x6000)
    awaits = task("two", 0x2000, 0x3000, computes=0x6000)
    inner = task("inner", 0x3000, None, awaits="sleep", wakes_in_s=20.0)
    unknown = task("two", 0x2000, None, computes=0x6000)
    for tasks in ((sleeps,), (awaits, inner)):
        report = report_of(*tasks, threads=(awaiting_result(202, 0x6000),))
        wait = next(wait for wait in report.waits if wait.tid == 202)
        assert (wait.ends_by_itself, wait.object.remaining_s) == (True, 20.0)
        assert (report.verdict.state, report.verdict.culprits) == (State.IDLE, ())
    report = report_of(unknown, threads=(awaiting_result(202, 0x6000),))
    assert not next(wait for wait in report.waits if wait.tid == 202).ends_by_itself


# -- a thread that waits for its own loop ------------------------------------------------------------------------


def _blocking(wait_s: float | None, future: int = 0x6000) -> ThreadSample:
    """The thread of a loop, in a call for the result of a future, for a while or for ever."""
    sample = awaiting_result(100, future)
    assert sample.lock is not None
    if wait_s is not None:
        lock = replace(sample.lock, timeout=True)
        sample = replace(sample, lock=lock, timeout_s=wait_s, remaining_s=wait_s / 2, asleep_for_s=wait_s / 2)
    return replace(sample, tid=100, frames=(*sample.frames, *LOOP[1:]))


def _looks(wait_s: float | None, *, again: bool, tasks: tuple[TaskSample, ...]) -> Evidence:
    """Of three seconds if it waits `again` and again, else of a tenth of one."""
    sample = _blocking(wait_s)
    window = 3.0 if again else 0.1
    first, last = b.twice(sample, window=window)
    if again and wait_s is not None:
        times = round(window / wait_s)
        last = replace(
            last,
            threads=(
                replace(sample, run_ns=(sample.run_ns or 0) + times, slices=(sample.slices or 0) + times),
            ),
        )
    looks = tuple(replace(look, tasks=tasks) for look in (first, last))
    return b.evidence([b.process(100, signals_caught=(2,))], looks)


_ITS_OWN = (task("asked", 0x2000, None, awaits="ready", computes=0x6000),)
_OF_ANOTHER = (task("asked", 0x2000, None, awaits="ready", computes=0x6000, tid=300),)


@pytest.mark.parametrize(
    ("wait_s", "again", "state", "confidence"),
    [
        (None, False, State.HUNG, Confidence.LIKELY),
        (600.0, False, State.HUNG, Confidence.POSSIBLE),
        (0.5, True, State.HUNG, Confidence.POSSIBLE),
        (0.5, False, State.UNKNOWN, None),
        (20.0, False, State.UNKNOWN, None),
    ],
)
def test_who_blocks_the_loop_that_it_waits_for(
    wait_s: float | None, again: bool, state: State, confidence: Confidence | None
) -> None:
    evidence = _looks(wait_s, again=again, tasks=_ITS_OWN)
    verdict = analyze(evidence).verdict
    assert verdict.state is state
    if confidence is not None:
        assert (verdict.cause, verdict.confidence) == (Kind.LOCK_CYCLE, confidence)
        assert "task asked, which awaits itself" in verdict.summary
    else:
        assert verdict.culprits == ()


def test_whether_it_tries_again_is_worth_a_longer_look() -> None:
    assert more_time_wanted(_looks(0.5, again=False, tasks=_ITS_OWN)) > 2.5


@pytest.mark.parametrize("wait_s", [None, 0.5, 20.0])
def test_a_future_of_another_loop_is_no_circle(wait_s: float | None) -> None:
    assert analyze(_looks(wait_s, again=False, tasks=_OF_ANOTHER)).verdict.cycle == ()
