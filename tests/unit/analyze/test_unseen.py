"""What could not be read incriminates nobody."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Kind, Part, State
from tests.unit.analyze import builders as b


def test_a_barrier_that_could_not_be_read_is_the_one_that_is_known() -> None:
    looks = b.twice(b.in_barrier(100), b.in_barrier(101, lock=None), b.asleep(102, seconds=30))
    verdict = analyze(b.evidence(b.ranks(3), looks)).verdict
    assert (verdict.state, verdict.cause) == (State.SLOW, Kind.TIMER)
    assert [who.rank for who in verdict.culprits] == [2]


def test_with_two_barriers_known_nobody_is_missing_for_one_that_could_not_be_read() -> None:
    waiting = (b.in_barrier(100), b.in_barrier(101, key=(1, 77, 128)), b.in_barrier(102, lock=None))
    verdict = analyze(b.evidence(b.ranks(3), b.twice(*waiting))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_two_barriers_that_are_known_to_differ_never_meet() -> None:
    waiting = (b.in_barrier(100), b.in_barrier(101, key=(1, 77, 128)))
    verdict = analyze(b.evidence(b.ranks(2), b.twice(*waiting))).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.COLLECTIVE_GROUP_CYCLE)
    assert [who.part for who in verdict.culprits] == [Part.PARTY, Part.PARTY]


def test_groups_do_not_differ_by_stacks_whose_ends_are_missing() -> None:
    waiting = (b.in_collective(100, line=7), b.in_collective(101, line=9, stack_complete=False))
    verdict = analyze(b.evidence(b.ranks(2), b.twice(*waiting))).verdict
    assert verdict.cause is not Kind.COLLECTIVE_GROUP_CYCLE


def test_a_rank_whose_stack_has_no_end_may_have_come() -> None:
    lost = b.sleeper(101, frames=(b.py("Condition.wait", b.SYNCHRONIZE, 261),), stack_complete=False)
    threads = (b.in_barrier(100), lost, b.in_barrier(102))
    verdict = analyze(b.evidence(b.ranks(3), b.twice(*threads))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_a_plain_lock_is_not_held_where_the_stack_has_no_end() -> None:
    whole = b.on_python_lock(100, 201)
    for thread, state in ((whole, State.HUNG), (b.replace(whole, stack_complete=False), State.UNKNOWN)):
        looks = b.twice(b.in_collective(100), thread, b.replace(thread, pid=101, tid=101))
        report = analyze(b.evidence(b.ranks(2), looks))
        assert report.verdict.state is state
        assert bool(report.verdict.culprits) is (state is State.HUNG)


@pytest.mark.parametrize("problem", ["timed_out", "no_time"])
def test_a_process_that_had_no_turn_is_not_accused(problem: str) -> None:
    read = b.asleep(102, seconds=30)
    unread = b.replace(read, frames=(), stack_complete=False)
    ranks = b.ranks(3)
    late = (*ranks[:2], b.replace(ranks[2], problem=problem))
    for processes, thread, state in ((ranks, read, State.SLOW), (late, unread, State.UNKNOWN)):
        looks = b.twice(b.in_barrier(100), b.in_barrier(101), thread)
        verdict = analyze(b.evidence(processes, looks)).verdict
        assert verdict.state is state
        assert bool(verdict.culprits) is (state is State.SLOW)
    assert "pid 102 could not be looked at in time" in verdict.summary


def test_a_group_is_not_idle_for_which_there_was_no_time() -> None:
    looks = b.twice(b.asleep(100, seconds=5), b.replace(b.asleep(101, seconds=5), frames=()))
    ranks = b.ranks(2)
    whole = analyze(b.evidence(ranks, looks)).verdict
    late = analyze(b.evidence((ranks[0], b.replace(ranks[1], problem="no_time")), looks)).verdict
    assert whole.state is not State.UNKNOWN
    assert late.state is State.UNKNOWN
