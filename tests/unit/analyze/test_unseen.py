"""What could not be read incriminates nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.groups import MpiFacts, ProcessGroupFacts
from pyhangtrace.model.kinds import Kind, Part, State
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import ThreadSample
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


# -- a rank that is met awake, without a stack or with one that has no end -----------------------------------

NAP = b.native("clock_nanosleep", "libc.so.6")
IN_FINALIZE = (NAP, b.native("ompi_mpi_finalize", "libmpi.so.40"), b.native("main", "solver"))
IN_MPI = (b.native("opal_progress", "libopen-pal.so.40"), b.native("PMPI_Barrier", "libmpi.so.40"))
IN_NATIVE = (b.native("solve", "solver"), b.native("main", "solver"))


def napping(pid: int, frames: Sequence[Any], **changes: Any) -> ThreadSample:
    """One that polls between short naps, and runs in between."""
    return b.replace(b.asleep(pid, seconds=0.0001), **{"frames": tuple(frames), "moved": True, **changes})


def awake(pid: int, frames: Sequence[Any] = (), **changes: Any) -> ThreadSample:
    return b.running(pid, **{"frames": tuple(frames), "stack_complete": False, **changes})


def looked(*rounds: Sequence[ThreadSample], mpi: bool = False) -> Evidence:
    """Looks at ranks 0.. with pids 100..; each thread runs a little from one to the next."""
    count = len(rounds[0])
    facts = tuple(
        MpiFacts(
            pid=100 + number,
            communicators=(
                ProcessGroupFacts(
                    pid=100 + number,
                    name="MPI_COMM_WORLD",
                    description="MPI_COMM_WORLD",
                    ranks=tuple(range(count)),
                    rank=number,
                    is_default=True,
                ),
            ),
            messages=1,
        )
        for number in range(count)
    )
    looks = [
        b.replace(
            b.look(
                *(
                    b.replace(each, run_ns=1000 + 4_000_000 * at, slices=10 + 50 * at)
                    if each.moved or each.running
                    else each
                    for each in threads
                ),
                at=3.0 * at / (len(rounds) - 1),
            ),
            mpi=facts if mpi else (),
        )
        for at, threads in enumerate(rounds)
    ]
    return b.evidence(b.ranks(count), tuple(looks))


def missing(report: Report) -> set[int]:
    return {rank for each in report.collectives for rank in each.missing}


def test_who_naps_in_a_collective_and_shows_only_the_nap_is_not_missing() -> None:
    torn = napping(100, [NAP], stack_complete=False)
    threads = [torn, b.asleep(101, seconds=3600), napping(102, IN_FINALIZE)]
    report = analyze(looked(threads, threads, mpi=True))
    assert [who.rank for who in report.verdict.culprits] == [1]
    assert missing(report) == {1}
    assert any("not seen: where rank 0 was" in said for wait in report.waits for said in wait.evidence)


def test_who_is_the_only_one_that_may_be_missing_and_was_not_seen_is_not_accused() -> None:
    threads = [awake(100), napping(101, IN_FINALIZE), napping(102, IN_FINALIZE)]
    report = analyze(looked(threads, threads, mpi=True))
    assert (report.verdict.state, report.verdict.culprits, missing(report)) == (State.UNKNOWN, (), set())


def test_that_an_earlier_look_met_it_in_the_call_counts() -> None:
    first = [napping(100, IN_FINALIZE), b.asleep(101, seconds=3600), napping(102, IN_FINALIZE)]
    last = [awake(100), *first[1:]]
    report = analyze(looked(first, last, mpi=True))
    assert ([who.rank for who in report.verdict.culprits], missing(report)) == ([1], {1})


def test_that_an_earlier_look_met_it_at_work_makes_it_missing() -> None:
    first = [b.running(100, frames=IN_NATIVE), *(b.running(pid, frames=IN_MPI) for pid in (101, 102))]
    report = analyze(looked(first, [awake(100), *first[1:]], mpi=True))
    assert (report.verdict.state, missing(report)) == (State.BUSY, {0})


def test_frames_of_python_name_no_call_of_mpi() -> None:
    """Its native frames could not be had: the call may be below."""
    others = [b.running(pid, frames=IN_MPI) for pid in (101, 102)]
    for known, culprits in ((False, []), (True, [0])):
        frames = [*(IN_NATIVE if known else ()), b.py("main")]
        threads = [awake(100, frames, stack_complete=known), *others]
        verdict = analyze(looked(threads, threads, mpi=True)).verdict
        assert [who.rank for who in verdict.culprits] == culprits


def test_frames_that_could_not_be_put_into_those_of_python_name_the_call() -> None:
    apart = awake(100, [b.py("main")], unmerged_native=IN_MPI, stack_complete=True)
    threads = [apart, b.running(101, frames=IN_MPI), b.asleep(102, seconds=3600)]
    report = analyze(looked(threads, threads, mpi=True))
    assert ([who.rank for who in report.verdict.culprits], missing(report)) == ([2], {2})


def test_a_rank_of_gloo_without_any_stack_is_not_accused() -> None:
    others = [b.in_collective(pid) for pid in (101, 102)]
    for late, culprits in ((awake(100), []), (awake(100, [b.py("compute")]), [0])):
        report = analyze(looked([late, *others], [late, *others]))
        assert [who.rank for who in report.verdict.culprits] == culprits
        assert missing(report) == set(culprits)


def test_a_sender_that_was_not_seen_is_not_accused() -> None:
    receives = b.in_collective(
        101, "recv", frames=(b.native("gloo::recv"), b.py("recv", b.C10D), b.py("step"))
    )
    for late, culprits in ((awake(100), []), (awake(100, [b.py("compute")]), [0])):
        verdict = analyze(looked([late, receives], [late, receives])).verdict
        assert [who.rank for who in verdict.culprits] == culprits


def test_who_is_met_blind_is_looked_at_again_for_a_few_times() -> None:
    first = [napping(100, IN_FINALIZE), b.asleep(101, seconds=3600), napping(102, IN_FINALIZE)]
    last = [first[0], first[1], napping(102, [NAP], stack_complete=False)]
    assert more_time_wanted(looked(first, first, mpi=True)) == 0
    assert more_time_wanted(looked(first, last, mpi=True)) > 0
    assert more_time_wanted(looked(first, first, last, last, mpi=True)) == 0


def test_ranks_that_run_unseen_may_poll_for_each_other() -> None:
    blind = [awake(100), awake(101)]
    assert analyze(looked(blind, blind)).verdict.state is State.UNKNOWN
    seen = [awake(100, [b.py("step")]), awake(101)]
    assert analyze(looked(seen, seen)).verdict.state is State.RUNNING


@pytest.mark.parametrize("function", ["PMPI_Test", "PMPI_Win_flush", "__pyx_pw_6mpi4py_3MPI_4Comm_87Iprobe"])
def test_who_asks_mpi_for_the_end_of_what_it_began_may_have_come(function: str) -> None:
    asks = b.running(100, frames=(b.native(function, "libmpi.so.40"), *IN_NATIVE))
    threads = [asks, b.asleep(101, seconds=3600), b.running(102, frames=IN_MPI)]
    report = analyze(looked(threads, [b.running(100, frames=IN_NATIVE), *threads[1:]], mpi=True))
    assert ([who.rank for who in report.verdict.culprits], missing(report)) == ([1], {1})
