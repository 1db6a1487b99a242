"""What NCCL has launched, rank by rank: who is behind, how ranks differ, and when nobody may be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, Kind, Part, State, WaitKind
from pyhangtrace.model.nccl import NcclCall, NcclCommunicator, NcclPicture, NcclPlan, NcclState, NcclTask
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

HASH = 0x9D331CBF49B6643C
ALL_REDUCE, ALL_GATHER = 4, 2


def on_gpu(pid: int, **changes: Any) -> ThreadSample:
    """A rank that waits for its stream."""
    frames = (b.native("cuStreamSynchronize", "libcuda.so.1"), b.py("step"), b.py("main"))
    return b.sleeper(pid, **{"frames": frames, **changes})


def locked(pid: int) -> ThreadSample:
    """A rank that waits for a file lock."""
    return b.sleeper(
        pid, syscall=b.FLOCK, args=(5, 2, 0, 0, 0, 0), frames=(b.native("flock", "libc.so.6"), b.py("load"))
    )


def comm(rank: int, launched: dict[int, int], *, n_ranks: int = 3, **changes: Any) -> NcclCommunicator:
    """`launched` counts by function."""
    tasks = [
        NcclTask(function=function, count=4096, dtype=7)
        for function in launched
        for _ in range(launched[function])
    ]
    made: dict[str, Any] = {
        "address": 0x7F0000000010 + rank,
        "found_by": "list",
        "comm_hash": HASH,
        "rank": rank,
        "n_ranks": n_ranks,
        "cuda_device": rank,
        "init_state": 0,
        "launched": tuple(launched.get(number, 0) for number in range(5)),
        "plans": tuple(NcclPlan(tasks=(task,)) for task in tasks[-11:]),
    }
    return NcclCommunicator(**{**made, **changes})


def state(pid: int, *comms: NcclCommunicator, calls: tuple[NcclCall, ...] = ()) -> NcclState:
    return NcclState(
        pid=pid, library="libnccl.so.2", build_id="", layout_from="dwarf", communicators=comms, calls=calls
    )


def job(
    threads: list[ThreadSample], states: list[NcclState], *, before: list[NcclState] | None = None
) -> Evidence:
    pictures = (
        NcclPicture(at_s=0.0, states=tuple(before if before is not None else states)),
        NcclPicture(at_s=0.1, states=tuple(states)),
    )
    return b.evidence(b.ranks(len(threads)), b.twice(*threads), nccl=pictures)


def test_who_has_launched_fewer_is_missing() -> None:
    report = analyze(
        job(
            [on_gpu(100), on_gpu(101), locked(102)],
            [state(100 + rank, comm(rank, {ALL_REDUCE: 4 if rank < 2 else 3})) for rank in range(3)],
        )
    )
    (collective,) = report.collectives
    assert (collective.op, collective.seq, collective.count, collective.dtype) == (
        "all_reduce",
        4,
        4096,
        "float32",
    )
    assert (collective.expected, collective.entered, collective.missing) == ((0, 1, 2), (0, 1), (2,))
    assert collective.sources == ("nccl memory",)
    assert report.verdict.symptom is Kind.COLLECTIVE_MISSING_RANK
    assert report.verdict.culprits[0].rank == 2
    assert {victim.rank for victim in report.verdict.victims} == {0, 1}


def test_where_nothing_but_counters_is_left_they_name_the_operation() -> None:
    counts = [{ALL_GATHER: 2, ALL_REDUCE: 4 if rank < 2 else 3} for rank in range(3)]
    states = [state(100 + rank, comm(rank, each, plans=())) for rank, each in enumerate(counts)]
    (collective,) = analyze(job([on_gpu(100), on_gpu(101), locked(102)], states)).collectives
    assert (collective.op, collective.seq, collective.missing) == ("all_reduce", 6, (2,))


def test_program_order_decides_and_not_the_majority() -> None:
    report = analyze(
        job(
            [on_gpu(100), locked(101), locked(102)],
            [state(100 + rank, comm(rank, {ALL_REDUCE: 4 if rank == 0 else 3})) for rank in range(3)],
        )
    )
    assert report.collectives[0].missing == (1, 2)
    assert not any(culprit.rank == 0 for culprit in report.verdict.culprits)


def test_nobody_is_named_while_anything_is_launched() -> None:
    counts = [state(100 + rank, comm(rank, {ALL_REDUCE: 4 if rank < 2 else 3})) for rank in range(3)]
    earlier = [state(100 + rank, comm(rank, {ALL_REDUCE: 4 if rank < 2 else 2})) for rank in range(3)]
    report = analyze(job([on_gpu(100), on_gpu(101), on_gpu(102)], counts, before=earlier))
    assert report.collectives == ()
    assert report.verdict.state is not State.HUNG


def test_equal_counters_clear_nobody() -> None:
    """A captured graph launches without being counted: all may have done the same, or one may not have."""
    same = [state(100 + rank, comm(rank, {ALL_REDUCE: 4})) for rank in range(3)]
    report = analyze(job([on_gpu(100), on_gpu(101), on_gpu(102)], same))
    assert report.collectives == ()
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()


@pytest.mark.parametrize("unlike", [{"finalizing": True}, {"aborted": True}, {"init_state": 7}])
def test_a_communicator_that_comes_or_goes_tells_nothing(unlike: dict[str, Any]) -> None:
    counts = [
        state(100 + rank, comm(rank, {ALL_REDUCE: 4 if rank < 2 else 3}, **(unlike if rank == 2 else {})))
        for rank in range(3)
    ]
    assert analyze(job([on_gpu(100), on_gpu(101), on_gpu(102)], counts)).collectives == ()


@pytest.mark.parametrize("known", [{}, {"plans": ()}], ids=["launches", "counters"])
def test_who_does_something_else_is_a_party(known: dict[str, Any]) -> None:
    launched = [{ALL_REDUCE: 4}, {ALL_REDUCE: 3, ALL_GATHER: 1}, {ALL_REDUCE: 4}]
    report = analyze(
        job(
            [on_gpu(100), on_gpu(101), on_gpu(102)],
            [state(100 + rank, comm(rank, counts, **known)) for rank, counts in enumerate(launched)],
        )
    )
    assert report.verdict.symptom is Kind.COLLECTIVE_OP_MISMATCH
    assert {(who.rank, who.part) for who in report.verdict.culprits} == {
        (rank, Part.PARTY) for rank in range(3)
    }
    assert {(each.op, each.entered) for each in report.collectives} == {
        ("all_reduce", (0, 2)),
        ("all_gather", (1,)),
    }


def test_another_size_is_a_mismatch_too() -> None:
    comms = [comm(rank, {ALL_REDUCE: 4}) for rank in range(3)]
    smaller = NcclPlan(tasks=(NcclTask(function=ALL_REDUCE, count=2048, dtype=7),))
    comms[1] = replace(comms[1], plans=(*comms[1].plans[:-1], smaller))
    report = analyze(
        job([on_gpu(100), on_gpu(101), on_gpu(102)], [state(100 + each.rank, each) for each in comms])
    )
    assert report.verdict.symptom is Kind.COLLECTIVE_SIZE_MISMATCH


def test_ranks_that_did_different_things_differently_often_are_not_compared() -> None:
    """One is two ahead in one operation and one behind in another: who was to come first, no number says."""
    launched = [{ALL_REDUCE: 6}, {ALL_REDUCE: 4, ALL_GATHER: 1}, {ALL_REDUCE: 6}]
    report = analyze(
        job(
            [on_gpu(100), on_gpu(101), on_gpu(102)],
            [state(100 + rank, comm(rank, counts)) for rank, counts in enumerate(launched)],
        )
    )
    assert report.collectives == ()
    assert report.verdict.culprits == ()


def test_two_communicators_in_opposite_order_are_a_cycle() -> None:
    def both(rank: int) -> NcclState:
        counts = [{ALL_REDUCE: 2}, {ALL_REDUCE: 1}]
        first, second = counts if rank == 0 else counts[::-1]
        return state(
            100 + rank,
            comm(rank, first, n_ranks=2),
            comm(rank, second, n_ranks=2, comm_hash=HASH + 1, address=0x7F0000100010 + rank),
        )

    report = analyze(job([on_gpu(100), on_gpu(101)], [both(0), both(1)]))
    assert report.verdict.symptom is Kind.COLLECTIVE_GROUP_CYCLE
    assert len(report.verdict.cycle) == 2


def test_ranks_of_one_process_name_nobody() -> None:
    comms = [comm(rank, {ALL_REDUCE: 4 if rank < 2 else 3}) for rank in range(3)]
    report = analyze(job([on_gpu(100)], [state(100, *comms)]))
    assert report.verdict.culprits == ()
    assert report.collectives[0].missing == (2,)


def test_a_killed_rank_is_likely_and_not_proven() -> None:
    """That it was killed is recorded; that the others wait for it follows from what NCCL counts."""
    states = [state(100 + rank, comm(rank, {ALL_REDUCE: 4})) for rank in range(2)]
    pictures = tuple(NcclPicture(at_s=at, states=tuple(states)) for at in (0.0, 0.1))
    killed = b.process(102, state="Z", exit_code=9)
    looks = b.twice(on_gpu(100), on_gpu(101))
    verdict = analyze(b.evidence([*b.ranks(3)[:2], killed], looks, nccl=pictures)).verdict
    assert (verdict.cause, verdict.confidence) == (Kind.PEER_EXITED, Confidence.LIKELY)
    assert verdict.culprits[0].rank == 2
    assert verdict.summary.startswith("Rank 2 (pid 102) keeps ranks 0-1 waiting")


def in_send(pid: int) -> ThreadSample:
    frames = (
        b.native("asyncJobLaunch()", "libnccl.so.2"),
        b.native("pncclSend", "libnccl.so.2"),
        b.py("step"),
    )
    return b.sleeper(pid, syscall=b.SLEEP, args=(0, 0, 0, 0, 0, 0), frames=frames)


def call(tid: int, name: str, peer: int) -> NcclCall:
    return NcclCall(
        tid=tid,
        function=6,
        name=name,
        count=777,
        dtype=6,
        op=0,
        root=peer,
        communicator=0x7F0000000010,
        stream=1,
    )


def test_a_first_message_waits_for_its_peer() -> None:
    states = [
        state(100, comm(0, {ALL_REDUCE: 3}, n_ranks=2), calls=(call(100, "Send", 1),)),
        state(101, comm(1, {ALL_REDUCE: 3}, n_ranks=2)),
    ]
    report = analyze(job([in_send(100), locked(101)], states))
    assert report.verdict.symptom is Kind.P2P_UNMATCHED
    assert report.verdict.culprits[0].rank == 1


def test_two_that_send_and_receive_lack_nobody() -> None:
    receiving = replace(call(101, "Recv", 0), communicator=0x7F0000000011)
    states = [
        state(100, comm(0, {ALL_REDUCE: 3}, n_ranks=2), calls=(call(100, "Send", 1),)),
        state(101, comm(1, {ALL_REDUCE: 3}, n_ranks=2), calls=(receiving,)),
    ]
    assert analyze(job([in_send(100), in_send(101)], states)).verdict.culprits == ()


def setting_up(pid: int) -> ThreadSample:
    frames = (
        b.native("bootstrapInit", "libnccl.so.2"),
        b.native("ncclCommInitRank", "libnccl.so.2"),
        b.py("join"),
    )
    return b.sleeper(pid, syscall=b.ACCEPT, args=(8, 0, 0, 0, 0, 0), frames=frames)


def test_who_has_not_begun_the_set_up_is_missing() -> None:
    states = [state(100 + rank, comm(rank, {}, init_state=7)) for rank in range(2)]
    report = analyze(job([setting_up(100), setting_up(101), locked(102)], states))
    assert report.verdict.symptom is Kind.RENDEZVOUS_MISSING_RANK
    assert report.verdict.culprits[0].rank == 2


def unread(pid: int, tid: int | None = None) -> ThreadSample:
    """Polls, on a crowded machine: met waiting for a processor, of which only Python's frames can be read."""
    return b.running(pid, tid, frames=(b.py("join"),), stack_complete=False)


@pytest.mark.parametrize("first", [setting_up, unread])
def test_who_sets_up_and_waits_for_a_processor_is_in_the_set_up(
    first: Callable[[int], ThreadSample],
) -> None:
    """One look, or memory, tells it as well as the last look would."""
    states = [state(100 + rank, comm(rank, {}, init_state=7)) for rank in range(2)]
    evidence = job([unread(100), unread(101), locked(102)], states)
    began = b.look(first(100), first(101), locked(102))
    report = analyze(replace(evidence, looks=(began, *evidence.looks[1:])))
    assert report.verdict.symptom is Kind.RENDEZVOUS_MISSING_RANK
    assert report.verdict.culprits[0].rank == 2
    assert {victim.rank for victim in report.verdict.victims} == {0, 1}


def test_of_two_threads_that_cannot_be_read_neither_is_said_to_set_up() -> None:
    states = [state(100 + rank, comm(rank, {}, init_state=7)) for rank in range(2)]
    threads = [unread(100), unread(101), locked(102), unread(100, 110), unread(101, 111)]
    evidence = job(threads[:3], states)
    report = analyze(replace(evidence, looks=b.twice(*threads)))
    assert not any(wait.kind is WaitKind.RENDEZVOUS for wait in report.waits)


def test_who_is_in_the_set_up_of_an_unknown_communicator_is_not_missing() -> None:
    states = [state(100 + rank, comm(rank, {}, init_state=7)) for rank in range(2)]
    report = analyze(job([setting_up(100), setting_up(101), setting_up(102)], states))
    assert report.verdict.culprits == ()


def test_who_waits_for_its_own_gpu_is_not_proven_to_hang() -> None:
    """Its kernels may take their time: it is behind, and whether it will come nobody can tell."""
    report = analyze(
        job(
            [on_gpu(100), on_gpu(101), on_gpu(102)],
            [state(100 + rank, comm(rank, {ALL_REDUCE: 4 if rank < 2 else 3})) for rank in range(3)],
        )
    )
    assert report.collectives[0].missing == (2,)
    assert report.verdict.state is State.UNKNOWN
