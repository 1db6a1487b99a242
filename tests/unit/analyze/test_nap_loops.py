"""Loops that nap and ask again: for a lock, or whether somebody has come to an end."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze.report import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, Kind, PolledThing, State, WaitKind
from pyhangtrace.model.open_files import FileLock
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

WORDS = {PolledThing.LOCK: "acquire()", PolledThing.CHILD: "poll()", PolledThing.THREAD: "is_alive()"}


def asks(pid: int, tid: int | None = None, *, thing: PolledThing, **changes: Any) -> ThreadSample:
    """Naps for 50 ms at a time."""
    sample = b.asleep(pid, tid, seconds=0.05, left=0.03, polls_for=WORDS.get(thing, "f()"), polled=thing)
    return b.replace(sample, asleep_for_s=0.02, **changes)


def seen(
    *threads: ThreadSample,
    processes: tuple[ProcessFacts, ...] = (b.process(100),),
    window: float = 3.0,
    **changes: Any,
) -> Evidence:
    """Those that nap for a moment have woken in between, the others sleep on."""
    later = tuple(b.moved(each) if each.timeout_s is not None else each for each in threads)
    looks = (b.look(*threads, **changes), b.look(*later, at=window, **changes))
    return b.evidence(processes, looks)


def kinds(report: Report) -> dict[int, WaitKind]:
    return {wait.tid: wait.kind for wait in report.waits}


def test_two_that_ask_for_each_others_locks_are_not_idle() -> None:
    evidence = seen(
        b.sleeper(100, frames=(b.py("_shutdown", b.THREADING),)),
        asks(100, 201, thing=PolledThing.LOCK),
        asks(100, 202, thing=PolledThing.LOCK),
    )
    report = analyze(evidence)
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert kinds(report)[201] is WaitKind.PYTHON_LOCK
    assert any("release the lock" in step for step in report.verdict.next_steps)


def test_one_that_asks_in_its_own_event_loop_for_what_no_other_thread_could_do_is_not_idle() -> None:
    loop = b.py("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py")
    alone = asks(100, thing=PolledThing.FUTURE)
    assert analyze(seen(alone)).verdict.state is State.IDLE
    inside = b.replace(alone, frames=(*alone.frames, loop))
    verdict = analyze(seen(inside)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_one_that_asks_for_a_lock_is_looked_at_until_it_could_have_got_it() -> None:
    waits = asks(100, thing=PolledThing.LOCK)
    assert more_time_wanted(seen(waits, window=0.1)) > 2.0
    assert more_time_wanted(seen(waits)) == 0.0
    assert analyze(seen(waits)).verdict.state is State.UNKNOWN


def test_one_that_has_come_to_another_place_meanwhile_has_got_it() -> None:
    waits = asks(100, thing=PolledThing.LOCK)
    later = b.moved(b.replace(waits, frames=(b.py("elsewhere"),), polls_for=None, polled=None))
    looks = (b.look(waits), b.look(later, at=3.0))
    assert analyze(b.evidence([b.process(100)], looks)).verdict.state is State.IDLE


PAIR = (b.process(100), b.process(101, ppid=100))


def on_flock(pid: int) -> ThreadSample:
    return b.sleeper(pid, syscall=b.FLOCK, args=(3, 2, 0, 0, 0, 0))


def flock(pid: int, *waiters: int, openers: tuple[int, ...] = ()) -> FileLock:
    return FileLock(
        kind="flock",
        access="write",
        pid=pid,
        device=1,
        inode=70,
        path="/job/lock",
        waiters=waiters,
        openers=openers,
    )


def test_child_that_is_asked_for_and_wants_a_file_that_is_locked() -> None:
    lock = flock(100, 101)
    report = analyze(
        seen(asks(100, thing=PolledThing.CHILD), on_flock(101), processes=PAIR, file_locks=[lock])
    )
    assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, Confidence.POSSIBLE)
    assert {who.pid for who in report.verdict.culprits} == {100, 101}


def test_child_that_asks_for_the_file_in_turn() -> None:
    lock = flock(100, openers=(100, 101))
    child = asks(101, thing=PolledThing.FILE_LOCK)
    parent = b.sleeper(100, syscall=b.WAIT4, args=(101, 0, 0, 0, 0, 0))
    report = analyze(seen(parent, child, processes=PAIR, file_locks=[lock]))
    assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, Confidence.POSSIBLE)
    other = analyze(seen(parent, child, processes=PAIR, file_locks=[flock(100, openers=(100,))]))
    assert (other.verdict.state, other.verdict.culprits) == (State.UNKNOWN, ())


def test_file_that_is_asked_for_may_have_been_let_go_for_a_while_by_one_who_asks_himself() -> None:
    lock = flock(100, openers=(100, 101))
    parent, child = asks(100, thing=PolledThing.CHILD), asks(101, thing=PolledThing.FILE_LOCK)
    report = analyze(seen(parent, child, processes=PAIR, file_locks=[lock]))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())


@pytest.mark.parametrize("thing", [PolledThing.CHILD, PolledThing.THREAD, PolledThing.FUTURE])
def test_asking_after_one_that_listens_to_the_world_is_healthy(thing: PolledThing) -> None:
    child = b.on_fd(101, fd=5, syscall=b.ACCEPT)
    report = analyze(seen(asks(100, thing=thing), child, processes=PAIR))
    assert (report.verdict.state, report.verdict.culprits) == (State.IDLE, ())


def test_asking_after_a_thread_that_is_stuck() -> None:
    wants = b.on_mutex(100, 201, owner=100)
    report = analyze(seen(asks(100, thing=PolledThing.THREAD), wants))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert report.verdict.confidence is Confidence.POSSIBLE


def test_asking_after_one_of_several_accuses_nobody_while_one_works() -> None:
    wants = b.on_mutex(100, 201, owner=100)
    for other in (b.running(100, 202), b.asleep(100, 202, seconds=20.0, left=5.0)):
        report = analyze(seen(asks(100, thing=PolledThing.THREAD), wants, other))
        assert report.verdict.state is not State.HUNG


def test_nobody_to_ask_after_leaves_a_nap() -> None:
    report = analyze(seen(asks(100, thing=PolledThing.CHILD)))
    assert (report.verdict.state, kinds(report)[100]) == (State.IDLE, WaitKind.TIMER)
