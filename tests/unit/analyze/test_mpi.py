"""MPI: who polls in it is on the CPU and waits, unless messages come or go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.analyze.calls import Meaning, recognise
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.groups import MpiFacts, ProcessGroupFacts
from pyhangtrace.model.kinds import Confidence, Kind, Part, PolledThing, State
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b


def polling(pid: int, function: str, **changes: Any) -> ThreadSample:
    frames = (
        b.native("opal_progress", "libopen-pal.so.40"),
        b.native(function, "libmpi.so.40"),
        b.native("main", "solver"),
    )
    return b.running(pid, **{"frames": frames, **changes})


def communicator(number: int, name: str, ranks: tuple[int, ...], **changes: Any) -> ProcessGroupFacts:
    made: dict[str, Any] = {"is_default": name == "MPI_COMM_WORLD", "rank": number}
    return ProcessGroupFacts(
        pid=100 + number, name=name, description=name, ranks=ranks, **{**made, **changes}
    )


def world(number: int, count: int, messages: int | None = 1, awaits: Any = ()) -> MpiFacts:
    own = communicator(number, "MPI_COMM_WORLD", tuple(range(count)), awaits=awaits)
    alone = communicator(number, "MPI_COMM_SELF", (number,))
    return MpiFacts(pid=100 + number, communicators=(own, alone), messages=messages)


def evidence(
    threads: Sequence[ThreadSample], first: Sequence[MpiFacts], last: Sequence[MpiFacts] | None = None
) -> Evidence:
    looks = b.twice(*threads, window=3.0)
    seen = (
        replace(looks[0], mpi=tuple(first)),
        replace(looks[1], mpi=tuple(last if last is not None else first)),
    )
    return b.evidence(b.ranks(len(threads)), seen)


def test_who_polls_without_messages_waits_for_the_rank_that_sleeps() -> None:
    threads = [polling(100, "PMPI_Allreduce"), b.asleep(101, seconds=7200), polling(102, "PMPI_Allreduce")]
    report = analyze(evidence(threads, [world(0, 3), world(2, 3)]))
    assert report.verdict.state is State.HUNG
    assert [who.rank for who in report.verdict.culprits] == [1]
    (collective,) = report.collectives
    assert (collective.group, collective.backend, collective.missing) == ("MPI_COMM_WORLD", "mpi", (1,))
    assert not any(one.suspect == "cpu.busy" for one in report.verdict.cleared)


def test_who_polls_while_messages_come_moves() -> None:
    threads = [polling(100, "PMPI_Recv"), polling(101, "PMPI_Recv")]
    before, after = ([world(number, 2, messages) for number in (0, 1)] for messages in (1, 2))
    verdict = analyze(evidence(threads, before, after)).verdict
    assert verdict.state is State.RUNNING
    assert verdict.culprits == ()


def test_all_that_poll_without_messages_in_different_calls_are_parties() -> None:
    threads = [polling(100, "PMPI_Allreduce"), polling(101, "PMPI_Bcast")]
    verdict = analyze(evidence(threads, [world(0, 2), world(1, 2)])).verdict
    assert verdict.cause is Kind.COLLECTIVE_OP_MISMATCH
    assert {who.part for who in verdict.culprits} == {Part.PARTY}


def test_a_rank_that_waits_for_a_signal_while_others_meet_is_not_idle() -> None:
    """One waits for a request of any of the others, so that those two lead to each other."""
    pause = b.sleeper(101, syscall=34, args=(), frames=(b.native("pause", "libc.so.6"),))
    threads = [polling(100, "PMPI_Wait"), pause, polling(102, "PMPI_Allreduce")]
    for facts in ([], [world(0, 3), world(2, 3)], [world(0, 3), world(2, 3, None)]):
        verdict = analyze(evidence(threads, facts)).verdict
        assert verdict.state is State.HUNG
        assert [who.rank for who in verdict.culprits] == [1]
        assert [victim.rank for victim in verdict.victims] == [0, 2]


def test_no_setting_of_torch_is_advised_to_a_job_of_mpi() -> None:
    threads = [polling(100, "PMPI_Allreduce"), polling(101, "PMPI_Bcast")]
    steps = analyze(evidence(threads, [world(0, 2), world(1, 2)])).verdict.next_steps
    assert steps
    assert not any("TORCH" in step for step in steps)


@pytest.mark.parametrize("functions", [("PMPI_Recv", "PMPI_Recv"), ("PMPI_Allreduce", "PMPI_Bcast")])
def test_where_messages_cannot_be_counted_those_who_poll_prove_nothing(functions: tuple[str, str]) -> None:
    threads = [polling(100 + number, function) for number, function in enumerate(functions)]
    for facts in ([], [world(0, 2, None), world(1, 2, None)]):
        verdict = analyze(evidence(threads, facts)).verdict
        assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_where_messages_cannot_be_counted_a_stopped_rank_is_named_without_proof() -> None:
    threads = [polling(100, "PMPI_Barrier"), b.stopped(101)]
    verdict = analyze(evidence(threads, [])).verdict
    assert (verdict.cause, verdict.confidence) == (Kind.PEER_STOPPED, Confidence.POSSIBLE)


def test_who_runs_and_has_no_stack_may_poll_as_well() -> None:
    unseen = b.running(102, frames=())
    threads = [polling(100, "PMPI_Barrier"), b.running(101, frames=(b.native("solve", "solver"),)), unseen]
    verdict = analyze(evidence(threads, [world(0, 3)])).verdict
    assert [who.rank for who in verdict.culprits] == [1]
    verdict = analyze(
        evidence([polling(100, "PMPI_Barrier"), b.running(101, frames=())], [world(0, 2)])
    ).verdict
    assert verdict.culprits == ()


def test_the_peer_of_a_message_is_known_by_the_posted_receive() -> None:
    threads = [polling(100, "PMPI_Wait"), polling(101, "PMPI_Recv"), b.asleep(102, seconds=7200)]
    facts = [world(0, 3, awaits=((1, 4),)), world(1, 3, awaits=((2, 4),))]
    report = analyze(evidence(threads, facts))
    assert [who.rank for who in report.verdict.culprits] == [2]
    assert [wait.object.peer_rank for wait in report.waits if wait.pid == 100] == [1]


def test_the_communicator_is_the_one_that_expects_a_message_of_a_collective() -> None:
    def facts(number: int, half: Any = (), of_world: Any = ()) -> MpiFacts:
        both = communicator(number, "half", (0, 1), awaits=half)
        own = communicator(number, "MPI_COMM_WORLD", (0, 1, 2), awaits=of_world)
        return MpiFacts(pid=100 + number, communicators=(own, both), messages=1)

    threads = [polling(100, "PMPI_Allreduce"), b.asleep(101, seconds=7200), polling(102, "PMPI_Barrier")]
    # A message that the program itself expects in the world is no part of the collective.
    seen = [facts(0, half=((1, -12),), of_world=((2, 3),)), world(2, 3, awaits=((0, -16),))]
    report = analyze(evidence(threads, seen))
    assert {one.group: one.missing for one in report.collectives} == {"half": (1,), "MPI_COMM_WORLD": (0, 1)}
    assert [who.rank for who in report.verdict.culprits] == [1]


@pytest.mark.parametrize(
    ("function", "meaning", "op"),
    [
        ("PMPI_Waitall", Meaning.RECV, "wait"),
        ("MPI_Sendrecv", Meaning.RECV, "sendrecv"),
        ("PMPI_Win_lock", Meaning.RECV, "window"),
        ("MPI_Win_unlock_all", Meaning.RECV, "window"),
        ("PMPI_Comm_dup", Meaning.COLLECTIVE, "comm_dup"),
        ("PMPI_File_write_at_all", Meaning.COLLECTIVE, "file_write_at_all"),
        ("ompi_mpi_finalize", Meaning.COLLECTIVE, "finalize"),
        ("PMPI_Ssend", Meaning.SEND, "send"),
        ("PMPI_Bcast_c", Meaning.COLLECTIVE, "broadcast"),
        ("PMPI_Neighbor_alltoall_c", Meaning.COLLECTIVE, "neighbor_alltoall"),
        ("MPI_Recv_c", Meaning.RECV, "recv"),
    ],
)
def test_calls_of_mpi(function: str, meaning: Meaning, op: str) -> None:
    call = recognise((b.native("opal_progress"), b.native(function), b.native("main")))
    assert call is not None
    assert (call.meaning, call.op, call.backend) == (meaning, op, "mpi")


@pytest.mark.parametrize(
    "function", ["PMPI_Comm_rank", "PMPI_File_write_at", "PMPI_Win_create_keyval", "MPI_Wtime"]
)
def test_calls_of_mpi_that_one_rank_makes_alone_are_no_collectives(function: str) -> None:
    assert recognise((b.native("pwrite"), b.native(function), b.native("main"))) is None


BARRIER_TAG, USER_TAG = -20, 5


def test_a_wait_for_a_collective_that_was_begun_before_is_no_message() -> None:
    threads = [polling(100, "PMPI_Wait"), b.asleep(101, seconds=7200), polling(102, "PMPI_Waitall")]
    facts = [world(0, 3, awaits=((1, BARRIER_TAG),)), world(2, 3, awaits=((1, BARRIER_TAG),))]
    report = analyze(evidence(threads, facts))
    assert report.verdict.symptom is Kind.COLLECTIVE_MISSING_RANK
    assert [who.rank for who in report.verdict.culprits] == [1]
    (collective,) = report.collectives
    assert (collective.op, collective.group) == ("nonblocking collective", "MPI_COMM_WORLD")
    assert (collective.entered, collective.missing) == ((0, 2), (1,))


def test_a_wait_for_a_message_and_a_collective_is_not_called_one_of_them() -> None:
    awaits = ((1, BARRIER_TAG), (1, USER_TAG))
    threads = [polling(100, "PMPI_Waitall"), b.asleep(101, seconds=7200), polling(102, "PMPI_Waitall")]
    report = analyze(evidence(threads, [world(0, 3, awaits=awaits), world(2, 3, awaits=awaits)]))
    assert report.verdict.symptom is Kind.P2P_UNMATCHED
    assert report.collectives == ()


def rooted(function: str, *awaits: tuple[int, ...], others: Sequence[ThreadSample] = (), of: int = 0) -> Any:
    """The verdict on ranks in this call that expect messages of a collective of these ranks."""
    threads = [polling(100 + number, function) for number in range(len(awaits))]
    facts = [
        replace(world(number, of or len(awaits), awaits=tuple((rank, -17) for rank in whom)), receives=True)
        for number, whom in enumerate(awaits)
    ]
    return analyze(evidence([*threads, *others], facts)).verdict


@pytest.mark.parametrize(
    ("function", "awaits"),
    [
        ("PMPI_Bcast", [(1,), (0,)]),
        ("PMPI_Bcast", [(1,), (2,), (0,)]),
        ("PMPI_Reduce", [(), ()]),
        ("PMPI_Scatter", [(), (), ()]),
    ],
)
def test_roots_that_cannot_be_one(function: str, awaits: list[tuple[int, ...]]) -> None:
    verdict = rooted(function, *awaits)
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.COLLECTIVE_ROOT_MISMATCH)
    assert [who.part for who in verdict.culprits] == [Part.PARTY] * len(awaits)
    assert "of MPI_COMM_WORLD, with different roots" in verdict.summary


@pytest.mark.parametrize(
    ("function", "awaits"),
    [
        ("PMPI_Bcast", [(), (0,), (1,)]),
        ("PMPI_Reduce", [(1, 2), (), ()]),
        ("PMPI_Allreduce", [(1,), (0,)]),
    ],
)
def test_roots_that_may_be_one(function: str, awaits: list[tuple[int, ...]]) -> None:
    assert rooted(function, *awaits).cause is not Kind.COLLECTIVE_ROOT_MISMATCH


def test_one_is_not_accused_before_it_is_known_of_all_what_they_expect() -> None:
    """One of two that broadcast was on no CPU when the first look took its samples."""
    threads = [polling(100, "PMPI_Bcast"), polling(101, "PMPI_Bcast"), b.asleep(102, seconds=7200)]
    facts = [replace(world(number, 3), receives=True) for number in (0, 1)]
    late = evidence(threads, facts[:1], facts)
    verdict = analyze(late).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert more_time_wanted(late) > 0
    again = replace(late, looks=(*late.looks, replace(late.looks[1], at_s=3.1)))
    assert more_time_wanted(again) == 0


def test_one_that_runs_and_was_not_sampled_is_looked_at_again_for_a_few_times() -> None:
    unsampled = b.running(100, frames=(), stack_complete=False)
    threads = [unsampled, polling(101, "PMPI_Allreduce"), b.asleep(102, seconds=7200)]
    seen = evidence(threads, [world(1, 3)])
    assert more_time_wanted(seen) > 0
    later = [replace(seen.looks[1], at_s=3.0 + number) for number in (1, 2)]
    assert more_time_wanted(replace(seen, looks=(*seen.looks, *later))) == 0


def test_one_who_may_have_got_his_part_of_another_root_is_not_accused() -> None:
    asleep = b.asleep(102, seconds=7200)
    verdict = rooted("PMPI_Bcast", (), (), others=[asleep], of=3)
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    verdict = rooted("PMPI_Bcast", (), (2,), others=[asleep], of=3)
    assert [who.rank for who in verdict.culprits] == [2]


def asking(pid: int) -> ThreadSample:
    """Between two MPI_Test."""
    frames = (b.native("clock_nanosleep", "libc.so.6"), b.native("ask", "solver"), b.native("main", "solver"))
    nap = b.asleep(pid, seconds=0.002, left=0.001, polls_for="MPI_Test()", polled=PolledThing.MPI_REQUEST)
    return b.replace(nap, frames=frames)


def known(number: int, messages: int | None = 1, awaits: Any = ()) -> MpiFacts:
    return replace(world(number, 3, messages, awaits), receives=True)


BARRIER, MESSAGE = ((1, -16),), ((1, 4),)


def test_who_asks_mpi_between_naps_waits_for_who_has_not_come() -> None:
    threads = [asking(100), b.asleep(101, seconds=7200), asking(102)]
    report = analyze(evidence(threads, [known(0, awaits=BARRIER), known(2, awaits=BARRIER)]))
    assert (report.verdict.state, report.verdict.confidence) == (State.HUNG, Confidence.POSSIBLE)
    assert [who.rank for who in report.verdict.culprits] == [1]
    (collective,) = report.collectives
    assert (collective.op, collective.group, collective.missing) == (
        "nonblocking collective",
        "MPI_COMM_WORLD",
        (1,),
    )


def test_who_asks_mpi_for_a_message_waits_for_its_sender() -> None:
    threads = [asking(100), b.asleep(101, seconds=7200), b.asleep(102, seconds=7200)]
    report = analyze(evidence(threads, [known(0, awaits=MESSAGE)]))
    assert [who.rank for who in report.verdict.culprits] == [1]
    assert [wait.object.peer_rank for wait in report.waits if wait.pid == 100] == [1]


@pytest.mark.parametrize(
    "facts",
    [
        [],
        [known(0, None, BARRIER), known(2, None, BARRIER)],  # messages cannot be counted
        [known(0), known(2)],  # nothing is expected
        [world(0, 3, awaits=BARRIER), world(2, 3, awaits=BARRIER)],  # nor is all that is expected known
    ],
)
def test_what_is_asked_of_mpi_is_not_always_known(facts: list[MpiFacts]) -> None:
    verdict = analyze(evidence([asking(100), b.asleep(101, seconds=7200), asking(102)], facts)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_who_asks_mpi_while_messages_come_moves() -> None:
    first, last = ([known(number, messages, BARRIER) for number in (0, 2)] for messages in (1, 2))
    threads = [asking(100), b.asleep(101, seconds=7200), asking(102)]
    assert analyze(evidence(threads, first, last)).verdict.culprits == ()


def test_who_expects_messages_of_a_collective_has_come_to_it() -> None:
    """One of those who ask is met awake, and shows nothing of what it waits for."""
    awake = b.running(102, frames=(b.native("ask", "solver"),))
    facts = [known(0, awaits=BARRIER), known(2, awaits=BARRIER)]
    report = analyze(evidence([asking(100), b.asleep(101, seconds=7200), awake], facts))
    assert all(2 not in collective.missing for collective in report.collectives)
    assert 2 not in {who.rank for who in report.verdict.culprits}


@pytest.mark.parametrize(("others", "state"), [(1, State.HUNG), (2, State.UNKNOWN)])
def test_a_window_is_held_by_one_of_the_others(others: int, state: State) -> None:
    spinning = b.running(100, frames=(b.native("MPI_Win_lock", "libmpi.so.40"), b.py("main")))
    asleep = [b.asleep(101 + number, seconds=3600) for number in range(others)]
    verdict = analyze(b.evidence(b.ranks(1 + others), b.twice(spinning, *asleep))).verdict
    assert verdict.state is state
    assert [who.rank for who in verdict.culprits] == ([1] if state is State.HUNG else [])


@pytest.mark.parametrize("call", ["PMPI_Barrier", "PMPI_Recv"])
def test_of_calls_that_may_be_with_another_group_nobody_is_accused(call: str) -> None:
    threads = [polling(pid, call) for pid in (100, 102)]
    threads.append(b.asleep(101, seconds=7200))
    seen = [MpiFacts(pid=pid, between_groups=True) for pid in (100, 101, 102)]
    verdict = analyze(evidence(threads, seen)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


@pytest.mark.parametrize("call", ["PMPI_Comm_accept", "PMPI_Comm_spawn", "PMPI_Intercomm_create"])
def test_a_call_that_meets_another_group_is_none_of_the_own_one(call: str) -> None:
    threads = [polling(100, call), polling(101, "PMPI_Barrier"), polling(102, "PMPI_Barrier")]
    verdict = analyze(evidence(threads, [])).verdict
    assert verdict.state is not State.HUNG
    assert verdict.culprits == ()


@pytest.mark.parametrize(("apart_s", "state"), [(2.0, State.BUSY), (0.2, State.RUNNING)])
def test_a_rank_that_computes_late_in_each_step_is_busy(apart_s: float, state: State) -> None:
    looks = []
    for number, messages in enumerate((1, 1, 2, 2)):
        # One of those that poll is met without its stack now and then.
        blind = {"frames": (), "stack_complete": False} if number == 1 else {}
        threads = [polling(100, "PMPI_Allreduce"), b.running(101, frames=(b.native("main", "solver"),))]
        threads.append(polling(102, "PMPI_Allreduce", **blind))
        facts = tuple(MpiFacts(pid=100 + rank, messages=messages) for rank in range(3))
        looks.append(replace(b.look(*threads, at=number * apart_s), mpi=facts))
    verdict = analyze(b.evidence(b.ranks(3), looks)).verdict
    assert verdict.state is state
    assert [who.rank for who in verdict.culprits] == ([1] if state is State.BUSY else [])
