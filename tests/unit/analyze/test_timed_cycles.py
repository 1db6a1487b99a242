"""Cycles of which a member gives up by the clock, and what memory says of locks without a living owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyhangtrace.analyze.report import analyze
from pyhangtrace.model.evidence import ThreadSample
from pyhangtrace.model.kinds import Confidence, Kind, State, WaitKind
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
    assert report.verdict.confidence is Confidence.LIKELY


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
