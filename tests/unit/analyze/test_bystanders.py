"""Threads beside a circle that sleep by the clock, and may let it go when they wake up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyhangtrace.analyze.report import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, Kind, State
from pyhangtrace.model.open_files import Holder
from pyhangtrace.model.report import Verdict
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

Circle = tuple[ThreadSample, ThreadSample]


def mutexes(kind: str = "mutex_normal") -> Circle:
    """Two threads of process 100 that have each other's mutexes, for ten seconds."""

    def one(tid: int, owner: int) -> ThreadSample:
        sample = b.on_mutex(100, tid, owner=owner, address=0x8000 + tid)
        assert sample.lock is not None
        return replace(sample, lock=replace(sample.lock, kind=kind))

    return one(201, 202), one(202, 201)


def plain_locks() -> Circle:
    """The same with plain locks of Python, by `with`."""

    def one(tid: int, owner: int) -> ThreadSample:
        sample = b.on_python_lock(100, tid, owner=owner)
        assert sample.lock is not None
        at = 0x6000 + tid * 16
        return replace(sample, lock=replace(sample.lock, address=at, uaddr=at, python_lock_address=at + 8))

    return one(201, 202), one(202, 201)


def beside(circle: Circle, *others: ThreadSample, window: float = 0.1) -> Evidence:
    return b.evidence([b.process(100)], b.twice(*circle, *others, window=window))


def nap(*, slept: float, left: float) -> ThreadSample:
    """A third thread that has slept for so long, and will for so much longer."""
    return b.asleep(100, 203, seconds=slept + left, left=left, asleep_for_s=slept)


def test_a_normal_mutex_may_be_unlocked_by_one_that_has_slept_all_the_while() -> None:
    verdict = analyze(beside(mutexes(), nap(slept=11.0, left=30.0))).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert verdict.confidence is Confidence.LIKELY
    assert "unless pid 100 (program-100), thread thread-203" in verdict.next_steps[-1]


@pytest.mark.parametrize("kind", ["mutex_recursive", "mutex_errorcheck", "mutex_robust"])
def test_mutexes_that_refuse_others_are_proof(kind: str) -> None:
    verdict = analyze(beside(mutexes(kind), nap(slept=11.0, left=30.0))).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.PROVEN)


@pytest.mark.parametrize("circle", [mutexes, plain_locks])
@pytest.mark.parametrize(
    "other",
    [
        nap(slept=4.0, left=30.0),  # it has run since, and let them be
        nap(slept=11.0, left=3600.0),  # too long to wait for
        b.sleeper(100, 203, frames=(b.py("Event.wait", b.THREADING),)),  # has no time
    ],
    ids=["has run", "long", "no timer"],
)
def test_other_threads_take_nothing_from_it(circle: Callable[[], Circle], other: ThreadSample) -> None:
    alone = analyze(beside(circle())).verdict
    verdict = analyze(beside(circle(), other)).verdict
    assert alone.state is State.HUNG
    assert (verdict.state, verdict.confidence) == (alone.state, alone.confidence)


def test_of_plain_locks_nothing_is_said_before_one_that_naps_beside_them_has_woken_up() -> None:
    report = analyze(beside(plain_locks(), nap(slept=11.0, left=30.0), window=3.0))
    assert report.verdict.state is State.UNKNOWN
    assert not report.verdict.culprits
    assert not report.verdict.cycle
    assert "thread-203" in report.verdict.summary
    assert any(step.startswith("look again in 31 s") for step in report.verdict.next_steps)


def test_of_plain_locks_it_is_said_that_one_that_hears_of_others_may_let_them_go() -> None:
    def of(third: ThreadSample) -> Verdict:
        pipe = b.pipe(100, 3, 9, Holder(pid=400, mode="w"))
        return analyze(b.evidence([b.process(100)], b.twice(*plain_locks(), third, fds=[pipe]))).verdict

    alone, heard = of(b.on_python_lock(100, 203, owner=201)), of(b.on_fd(100, 203, fd=3))
    assert (alone.state, heard.state) == (State.HUNG, State.HUNG)
    assert not any("unless" in step for step in alone.next_steps)
    assert any("unless thread 203, which reads from others, lets it go" in step for step in heard.next_steps)


@pytest.mark.parametrize(
    ("word", "child", "state"),
    [
        ("release", "serves", State.UNKNOWN),
        ("release", "naps", State.SLOW),
        ("release", "waits for the circle", State.HUNG),
        (None, "serves", State.HUNG),
    ],
)
def test_of_plain_locks_nothing_is_said_beside_one_that_waits_for_others_and_calls_a_release(
    word: str | None, child: str, state: State
) -> None:
    third = b.sleeper(100, 203, syscall=b.WAIT4, args=(300, 0, 0, 0, 0, 0), lets_go=word)
    children = {
        "serves": b.on_fd(300, fd=4, syscall=b.ACCEPT),
        "naps": b.asleep(300, seconds=40.0, left=30.0, asleep_for_s=10.0),
        "waits for the circle": b.on_fd(300, fd=3),
    }
    fds = [b.pipe(300, 3, 9, Holder(pid=100, mode="w")), b.connection(300, 4, 19, state="LISTEN")]
    looks = b.twice(*plain_locks(), third, children[child], fds=fds)
    report = analyze(b.evidence([b.process(100), b.process(300, ppid=100)], looks))
    assert report.verdict.state is state
    if state is State.UNKNOWN:
        assert not report.verdict.culprits
        assert any("may come to its `release`" in step for step in report.verdict.next_steps)


def test_one_waits_for_who_wakes_up_soon() -> None:
    for circle in (mutexes(), plain_locks()):
        assert more_time_wanted(beside(circle, nap(slept=11.0, left=1.5))) > 1.5
        assert more_time_wanted(beside(circle, nap(slept=4.0, left=1.5))) == 0.0


def test_one_looks_on_where_only_a_nap_keeps_a_lock_from_being_kept_for_good() -> None:
    """A thread wants a plain lock of one that sleeps for an hour, beside one that naps and one that works."""
    wants = b.on_python_lock(100, 201, owner=202)
    keeps = b.asleep(100, 202, seconds=3600.0, left=3500.0, asleep_for_s=100.0)
    evidence = beside((wants, keeps), nap(slept=11.0, left=1.5), b.running(100, 204))
    assert analyze(evidence).verdict.state is not State.HUNG
    assert more_time_wanted(evidence) > 1.5


def test_that_another_thread_moves_does_not_make_such_a_circle_a_healthy_one() -> None:
    report = analyze(beside(plain_locks(), nap(slept=11.0, left=30.0), b.running(100, 204), window=3.0))
    assert report.verdict.state is State.UNKNOWN


def test_one_that_naps_again_and_again_may_let_a_plain_lock_go_where_its_code_does_such_things() -> None:
    def beats(word: str | None) -> Evidence:
        third = b.asleep(100, 203, seconds=1.0, left=0.5, asleep_for_s=0.5, lets_go=word)
        looks = (b.look(*plain_locks(), third), b.look(*plain_locks(), b.moved(third), at=3.0))
        return b.evidence([b.process(100)], looks)

    assert analyze(beats(None)).verdict.state is State.HUNG
    report = analyze(beats("release"))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert any("its code calls a `release`" in line for wait in report.waits for line in wait.evidence)


def test_such_code_is_nothing_to_a_mutex_and_says_nothing_of_who_waits_for_the_lock() -> None:
    third = b.asleep(100, 203, seconds=1.0, left=0.5, asleep_for_s=0.5, lets_go="release")
    looks = (b.look(*mutexes(), third), b.look(*mutexes(), b.moved(third), at=3.0))
    assert analyze(b.evidence([b.process(100)], looks)).verdict.confidence is Confidence.PROVEN
    waiter = b.on_python_lock(100, 203, owner=201, lets_go="release", timeout_s=30.0, remaining_s=20.0)
    assert waiter.lock is not None
    waiter = replace(waiter, lock=replace(waiter.lock, timeout=True), asleep_for_s=4.0)
    assert analyze(beside(plain_locks(), waiter)).verdict.state is State.HUNG
