"""Cycles of which a member gives up by the clock, and what memory says of locks without a living owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze.report import analyze, more_time_wanted
from pyhangtrace.model.kinds import Confidence, Kind, Part, PolledThing, State, WaitKind
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b


def timed(tid: int, *, owner: int, left: float | None, **changes: Any) -> ThreadSample:
    """A thread of process 100 in pthread_mutex_timedlock; `left` seconds until it gives up."""
    sample = b.on_mutex(100, tid, owner=owner, address=0x8000 + tid, **changes)
    assert sample.lock is not None
    return replace(
        sample, lock=replace(sample.lock, kind="mutex_timed", timeout=True), timeout_s=left, remaining_s=left
    )


def rearmed(sample: ThreadSample) -> tuple[ThreadSample, ThreadSample]:
    """The same wait in two looks, taken up again in between."""
    sample = replace(sample, asleep_for_s=0.02)
    return sample, b.moved(sample)


def test_a_cycle_whose_member_gives_up_within_a_minute_is_no_deadlock() -> None:
    threads = (timed(201, owner=202, left=30.0), b.on_mutex(100, 202, owner=201))
    report = analyze(b.evidence([b.process(100)], b.twice(*threads)))
    assert report.verdict.state is not State.HUNG
    assert report.verdict.cycle == ()


def test_a_cycle_whose_members_give_up_in_an_hour_only_is_likely() -> None:
    threads = (timed(201, owner=202, left=3600.0), timed(202, owner=201, left=3600.0))
    report = analyze(b.evidence([b.process(100)], b.twice(*threads)))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert report.verdict.confidence is Confidence.LIKELY
    assert len(report.verdict.cycle) == 2
    assert all(wait.ends_by_itself and wait.object.remaining_s == 3600.0 for wait in report.waits)


def test_one_that_tries_again_is_caught_if_nobody_was_woken_meanwhile() -> None:
    again, later = rearmed(timed(201, owner=202, left=0.05))
    sleeps_on = b.on_mutex(100, 202, owner=201)
    report = analyze(
        b.evidence([b.process(100)], (b.look(again, sleeps_on), b.look(later, sleeps_on, at=0.1)))
    )
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert report.verdict.confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(("slept", "sure"), [(9.5, Confidence.POSSIBLE), (75.0, Confidence.LIKELY)])
def test_a_circle_in_which_one_tries_again_is_likely_when_it_has_stood_for_a_minute(
    slept: float, sure: Confidence
) -> None:
    again, later = rearmed(timed(201, owner=202, left=0.05))
    sleeps_on = b.on_mutex(100, 202, owner=201, asleep_for_s=slept)
    joins = b.sleeper(
        100,
        frames=(b.py("Thread.join", b.THREADING), b.py("main")),
        named_values=(b.local("Thread.join", "_native_id", 202),),
        asleep_for_s=500.0,
    )
    looks = (b.look(again, sleeps_on, joins), b.look(later, sleeps_on, joins, at=0.1))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, sure)
    assert {(who.tid, who.part) for who in verdict.culprits} == {(201, Part.PARTY), (202, Part.PARTY)}
    told = " ".join((verdict.summary, *verdict.next_steps))
    assert "stops trying" in told
    assert ("does not recover" in told, "end pid" in told) == ((sure is Confidence.LIKELY,) * 2)


def test_a_deadlock_without_a_way_out_goes_before_one_that_is_tried_again() -> None:
    again, later = rearmed(timed(201, owner=202, left=0.05))
    others = (
        b.on_mutex(100, 202, owner=201),
        b.on_mutex(100, 301, owner=302, address=0x9100),
        b.on_mutex(100, 302, owner=301, address=0x9200),
    )
    looks = (b.look(again, *others), b.look(later, *others, at=0.1))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.PROVEN)
    assert {who.tid for who in verdict.culprits} == {301, 302}


def test_two_that_try_again_may_have_let_go_of_theirs_in_between() -> None:
    one, one_later = rearmed(timed(201, owner=202, left=0.05))
    two, two_later = rearmed(timed(202, owner=201, left=0.05))
    report = analyze(b.evidence([b.process(100)], (b.look(one, two), b.look(one_later, two_later, at=0.1))))
    assert report.verdict.state is not State.HUNG
    assert report.verdict.cycle == ()
    assert report.verdict.culprits == ()


def test_who_follows_a_member_that_gives_up_soon_is_not_caught_either() -> None:
    threads = (
        timed(201, owner=202, left=20.0),
        b.on_mutex(100, 202, owner=203, address=0x8800),
        b.on_mutex(100, 203, owner=201, address=0x9000),
    )
    report = analyze(b.evidence([b.process(100)], b.twice(*threads)))
    assert report.verdict.state is not State.HUNG


def test_an_owner_known_by_content_alone_is_likely() -> None:
    sure = b.on_mutex(100, 201, owner=202)
    assert sure.lock is not None
    guess = replace(sure, lock=replace(sure.lock, owner_exact=False))
    for sample, confidence in ((sure, Confidence.PROVEN), (guess, Confidence.LIKELY)):
        threads = (sample, b.on_mutex(100, 202, owner=201, address=0x9000))
        report = analyze(b.evidence([b.process(100)], b.twice(*threads)))
        assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, confidence)


def test_an_initialisation_is_waited_for_with_who_runs_it() -> None:
    sample = b.on_mutex(100, 201, owner=202)
    assert sample.lock is not None
    once = replace(sample, lock=replace(sample.lock, kind="once", owner_exact=False))
    report = analyze(b.evidence([b.process(100)], b.twice(once, b.asleep(100, 202, seconds=3600))))
    wait = next(wait for wait in report.waits if wait.tid == 201)
    assert wait.kind is WaitKind.ONCE
    assert wait.holder is not None
    assert wait.holder.tid == 202
    assert report.verdict.confidence is Confidence.LIKELY
    nobody = replace(once, lock=replace(sample.lock, kind="once", owner_tid=None, owner_exact=False))
    report = analyze(b.evidence([b.process(100)], b.twice(nobody, b.asleep(100, 202, seconds=3600))))
    assert all(wait.holder is None for wait in report.waits)
    assert report.verdict.culprits == ()


def test_a_mutex_left_behind_without_a_trace_of_its_owner_names_nobody() -> None:
    sample = b.on_mutex(100, 201, owner=None)
    assert sample.lock is not None
    left = replace(sample, lock=replace(sample.lock, problem="owner thread died holding it"))
    report = analyze(b.evidence([b.process(100)], b.twice(left, b.asleep(100, 202, seconds=3600))))
    assert report.verdict.cause is Kind.LOCK_OWNER_GONE
    wait = next(wait for wait in report.waits if wait.tid == 201)
    assert (wait.holder, wait.candidates) == (None, ())


def again(
    sample: ThreadSample,
    *,
    length: float,
    window: float = 3.0,
    step: float = 0.5,
    wakes: int = 1,
    began: float = 0.013,
) -> list[tuple[float, ThreadSample]]:
    """Looks at a timed wait that `began` so long ago and is taken up again whenever it has run out.

    Of each time that it waits, the thread runs `wakes` times: the last ones when it is woken half way.
    """
    seen = []
    times = int(window / step) + 1
    for at in (step * number for number in range(times)):
        rounds, into = divmod(at + began, length)
        woken = wakes > 1 and into > length / 2
        ran = int(rounds) * wakes + (wakes - 1 if woken else 0)
        asleep = into - length / 2 if woken else into
        seen.append(
            (
                at,
                replace(
                    sample,
                    timeout_s=round(length - (into - asleep), 3),
                    remaining_s=round(length - into, 3),
                    asleep_for_s=round(asleep, 3),
                    slices=100 + ran,
                    run_ns=10_000 + 2000 * ran,
                ),
            )
        )
    return seen


def looks_at(*threads: list[tuple[float, ThreadSample]]) -> list[Any]:
    return [b.look(*(sample for _, sample in at), at=at[0][0]) for at in zip(*threads, strict=True)]


def both_try_again(**changes: Any) -> list[Any]:
    one, two = timed(201, owner=202, left=1.0), timed(202, owner=201, left=1.0)
    return looks_at(again(one, **{"length": 0.4, **changes}), again(two, **{"length": 0.4, **changes}))


def test_two_that_try_again_and_that_nobody_woke_have_not_let_go() -> None:
    report = analyze(b.evidence([b.process(100)], both_try_again()))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert report.verdict.confidence is Confidence.POSSIBLE
    assert {who.tid for who in report.verdict.culprits} == {201, 202}
    assert all(who.part is Part.PARTY for who in report.verdict.culprits)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("woken in between: what they want was let go and taken again", {"wakes": 2}),
        ("their time was over once only", {"length": 2.5}),
        ("the window is too short to tell", {"window": 1.0, "step": 0.1, "length": 0.1}),
    ],
)
def test_two_that_try_again_are_not_called_hung(name: str, changes: dict[str, Any]) -> None:
    report = analyze(b.evidence([b.process(100)], both_try_again(**changes)))
    assert report.verdict.state is not State.HUNG, name
    assert (report.verdict.cycle, report.verdict.culprits) == ((), ())


def test_one_of_two_that_lets_go_is_seen_by_the_other() -> None:
    one, two = timed(201, owner=202, left=1.0), timed(202, owner=201, left=1.0)
    looks = looks_at(again(one, length=0.4), again(two, length=0.4, wakes=2))
    assert analyze(b.evidence([b.process(100)], looks)).verdict.state is not State.HUNG


def test_short_timed_waits_of_a_knot_are_looked_at_for_longer() -> None:
    for length, began, wanted in ((0.4, 0.2, True), (30.0, 10.0, False)):
        looks = both_try_again(length=length, began=began, window=0.1, step=0.1)
        assert (more_time_wanted(b.evidence([b.process(100)], looks)) > 0) is wanted
    assert more_time_wanted(b.evidence([b.process(100)], both_try_again())) == 0.0


def test_a_join_that_is_tried_again_by_who_holds_what_the_other_wants() -> None:
    frames = (b.py("Thread.join", b.THREADING), b.py("main"))
    joins = b.sleeper(100, frames=frames, named_values=(b.local("Thread.join", "_native_id", 201),))
    wants = b.on_mutex(100, 201, owner=100)
    joined = again(joins, length=1.0)
    report = analyze(b.evidence([b.process(100)], looks_at(joined, [(at, wants) for at, _ in joined])))
    assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, Confidence.POSSIBLE)
    at_work = [
        (at, b.running(100, 201, run_ns=int(at * 1e9), slices=int(at * 10)))
        for at, _ in again(joins, length=1.0)
    ]
    report = analyze(b.evidence([b.process(100)], looks_at(again(joins, length=1.0), at_work)))
    assert report.verdict.state is State.RUNNING


def test_one_that_polls_may_send_what_the_other_reads_whenever_its_time_is_over() -> None:
    polls = b.on_fd(100, fd=3, syscall=b.POLL)
    reads = b.on_fd(101, fd=4, syscall=b.RECV)
    fds = [b.connection(100, 3, 70, b.Holder(pid=101)), b.connection(101, 4, 71, b.Holder(pid=100))]
    looks = [
        replace(look, fds=tuple(fds))
        for look in looks_at(again(polls, length=0.4), [(at, reads) for at, _ in again(polls, length=0.4)])
    ]
    report = analyze(b.evidence([b.process(100), b.process(101, ppid=100)], looks))
    assert report.verdict.state is not State.HUNG
    assert report.verdict.culprits == ()


def test_a_knot_that_the_clock_ends_within_a_minute_is_slow() -> None:
    threads = (timed(201, owner=202, left=30.0), timed(202, owner=201, left=40.0))
    report = analyze(b.evidence([b.process(100)], b.twice(*threads)))
    assert report.verdict.state is State.SLOW
    assert [(who.tid, who.part) for who in report.verdict.culprits] == [(201, Part.PARTY), (202, Part.PARTY)]
    assert report.verdict.victims == ()


def test_a_thread_that_was_due_by_a_hair_is_seen_to_have_tried_again() -> None:
    """What a thread slept and what is left of its wait are not read at the same instant."""
    first = replace(timed(201, owner=202, left=0.4), asleep_for_s=0.28, timeout_s=0.42, remaining_s=0.14)
    later = replace(b.moved(first), asleep_for_s=0.01, timeout_s=0.4, remaining_s=0.39)
    sleeps_on = b.on_mutex(100, 202, owner=201)
    looks = (b.look(first, sleeps_on), b.look(later, sleeps_on, at=0.1))
    assert analyze(b.evidence([b.process(100)], looks)).verdict.state is State.HUNG


def test_locks_that_are_just_tried_again_make_no_program_idle_at_first_sight() -> None:
    just_now = {"asleep_for_s": 0.01}
    one, two = timed(201, owner=202, left=0.4, **just_now), timed(202, owner=201, left=0.4, **just_now)
    looks = (b.look(one, two), b.look(b.moved(one), b.moved(two), at=0.1))
    evidence = b.evidence([b.process(100)], looks)
    assert analyze(evidence).verdict.state is not State.HUNG
    assert more_time_wanted(evidence) > 0


@pytest.mark.parametrize(("cpu_ms", "seen"), [(0.3, True), (40.0, False)])
def test_one_that_is_met_as_it_takes_its_wait_up_again_is_judged_by_the_other_looks(
    cpu_ms: float, seen: bool
) -> None:
    tries = again(timed(201, owner=202, left=0.4), length=0.4)
    at, last = tries[-1]
    ran = last.run_ns + int(cpu_ms * 1e6) if last.run_ns is not None else None
    tries[-1] = (at, b.running(100, 201, frames=last.frames, run_ns=ran, slices=last.slices))
    sleeps_on = b.on_mutex(100, 202, owner=201)
    evidence = b.evidence([b.process(100)], looks_at(tries, [(at, sleeps_on) for at, _ in tries]))
    assert (analyze(evidence).verdict.state is State.HUNG) is seen
    first_looks = replace(evidence, looks=(evidence.looks[0], replace(evidence.looks[-1], at_s=0.1)))
    assert analyze(first_looks).verdict.state is not State.HUNG
    assert more_time_wanted(first_looks) > 0 or not seen


@pytest.mark.parametrize(("odd", "state"), [(1, State.HUNG), (3, State.UNKNOWN)])
def test_a_look_that_a_busy_machine_delays_takes_no_deadlock_away(odd: int, state: State) -> None:
    one = again(timed(201, owner=202, left=1.0), length=0.4)
    for number in range(1, 1 + odd):
        at, sample = one[number]
        one[number] = (at, replace(sample, asleep_for_s=None, timeout_s=None))
    looks = looks_at(one, again(timed(202, owner=201, left=1.0), length=0.4))
    assert analyze(b.evidence([b.process(100)], looks)).verdict.state is state


def test_a_first_look_that_meets_one_as_it_takes_its_wait_up_again_does_not_spoil_the_others() -> None:
    tries = again(timed(201, owner=202, left=0.4), length=0.4)
    first = tries[0][1]
    met = b.running(100, 201, frames=first.frames, run_ns=first.run_ns, slices=first.slices)
    sleeps_on = [(at, b.on_mutex(100, 202, owner=201)) for at, _ in tries]
    looks = looks_at([(0.0, met), *tries[1:]], sleeps_on)
    assert analyze(b.evidence([b.process(100)], looks)).verdict.state is State.HUNG


@pytest.mark.parametrize("thing", [None, PolledThing.LOCK])
def test_a_lock_of_nobody_known_may_be_with_one_who_tries_for_a_while_and_then_lets_go(
    thing: PolledThing | None,
) -> None:
    """He may give up after so many times; that he has not yet proves nothing."""
    again, later = rearmed(timed(201, owner=202, left=0.05))
    if thing is not None:
        again = b.asleep(100, 201, seconds=0.05, left=0.02, polls_for="acquire()", polled=thing)
        again, later = rearmed(again)
    wants = b.on_python_lock(100, 202)
    joins = b.sleeper(100, frames=(b.py("_shutdown", b.THREADING),))
    looks = (b.look(again, wants, joins), b.look(later, wants, joins, at=3.0))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    sleeps = b.on_mutex(100, 201, owner=202)  # as opposed to one who waits for good
    looks = (b.look(sleeps, wants, joins), b.look(sleeps, wants, joins, at=3.0))
    assert analyze(b.evidence([b.process(100)], looks)).verdict.state is State.HUNG


def test_one_who_asks_between_naps_does_not_tell_that_nobody_let_go() -> None:
    """Both keep an RLock and ask for the other one's; one of them is known to wait for it, one naps."""
    again, later = rearmed(timed(201, owner=202, left=0.05))
    asks = b.asleep(100, 202, seconds=0.05, left=0.02, polls_for="acquire()", polled=PolledThing.LOCK)
    first, then = rearmed(asks)
    looks = (b.look(again, first), b.look(later, then, at=3.0))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_one_who_tries_for_a_lock_of_nobody_known_is_not_hung_himself() -> None:
    again = b.on_python_lock(100, 201)
    assert again.lock is not None
    again = replace(again, lock=replace(again.lock, timeout=True), timeout_s=0.5, remaining_s=0.2)
    again, later = rearmed(again)
    signal = b.sleeper(100, frames=(b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING)))
    looks = (b.look(again, signal), b.look(later, signal, at=3.0))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert any("release the lock" in step for step in verdict.next_steps)


def test_what_would_settle_it_is_asked_of_the_wait_of_which_nobody_is_known() -> None:
    """A thread with a lock looks now and then for an event; who wants the lock could be the one to set it."""
    frames = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("work"))
    again = b.on_python_lock(100, 201, frames=frames)
    assert again.lock is not None
    again = replace(again, lock=replace(again.lock, timeout=True), timeout_s=0.5, remaining_s=0.2)
    again, later = rearmed(again)
    wants = b.on_mutex(100, 202, owner=201)
    joins = b.sleeper(100, frames=(b.py("Thread.join", b.THREADING), b.py("main")))
    looks = (b.look(again, wants, joins), b.look(later, wants, joins, at=3.0))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert any("set the event" in step for step in verdict.next_steps)
    assert not any("unlock" in step for step in verdict.next_steps)
