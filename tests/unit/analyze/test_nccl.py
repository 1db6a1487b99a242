"""What NCCL has launched, rank by rank: who is behind, how ranks differ, and when nobody may be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.gpu import GpuFacts
from pyhangtrace.model.kinds import Confidence, Kind, Part, State, WaitKind
from pyhangtrace.model.nccl import (
    NcclCall,
    NcclCommunicator,
    NcclMember,
    NcclPeer,
    NcclPicture,
    NcclPlan,
    NcclState,
    NcclTask,
)
from pyhangtrace.model.report import Report
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


def gpu(device: int, utilization: int | None) -> GpuFacts:
    return GpuFacts(
        index=device,
        uuid=f"GPU-{device}",
        name="GPU",
        bus=f"00000000:{device + 1:02X}:00.0",
        utilization=utilization,
    )


def in_one_process(*late: ThreadSample, busy: tuple[int | None, int | None, int | None]) -> Evidence:
    """Three ranks of one process: the last one has launched one fewer, and the main thread waits for a stream."""
    comms = [comm(rank, {ALL_REDUCE: 4 if rank < 2 else 3}, bus_id=(rank + 1) << 12) for rank in range(3)]
    gpus = tuple(gpu(device, utilization) for device, utilization in enumerate(busy))
    evidence = job([on_gpu(100)], [state(100, *comms)])
    return replace(evidence, gpus=gpus, looks=b.twice(on_gpu(100), *late))


@pytest.mark.parametrize("busy", [(100, 100, None), (100, 100, 40), (0, 0, 0), (100, 0, 0)])
def test_who_of_one_process_is_late_is_said_and_nobody_is_named(
    busy: tuple[int | None, int | None, int | None],
) -> None:
    """It may wait for the GPU that is late, and launch there once that has done its work."""
    report = analyze(in_one_process(busy=busy))
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()
    assert report.collectives[0].missing == (2,)
    assert "rank 2 on GPU 2 (0000:03:00.0) of this process has not launched all_reduce #4" in (
        report.verdict.summary
    )


def test_who_waits_for_what_only_itself_could_launch_hangs() -> None:
    """The GPU that is late does nothing: what is waited for is a kernel that lacks it."""
    verdict = analyze(in_one_process(busy=(100, 100, 0))).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.COLLECTIVE_MISSING_RANK)
    assert verdict.confidence is Confidence.LIKELY
    assert [(who.pid, who.tid, who.part) for who in verdict.culprits] == [(100, 100, Part.CULPRIT)]


def test_another_thread_may_yet_launch_what_is_lacking() -> None:
    works = b.running(100, 110, frames=(b.py("feed"),))
    assert analyze(in_one_process(works, busy=(100, 100, 0))).verdict.state is not State.HUNG
    idle = b.sleeper(100, 110, frames=(b.py("wait", b.THREADING), b.py("feed")))
    assert analyze(in_one_process(idle, busy=(100, 100, 0))).verdict.culprits == ()


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


SEND, RECV = 6, 7


def launches(rank: int, *plans: list[tuple[int, int]], **changes: Any) -> NcclCommunicator:
    """A rank that has launched these, each with function and peer (of a reduction: nothing)."""
    tasks = [
        tuple(
            NcclTask(function=function, count=777, dtype=6, root=peer, p2p=function in (SEND, RECV))
            for function, peer in plan
        )
        for plan in plans
    ]
    reduced = sum(task.function == ALL_REDUCE for plan in tasks for task in plan)
    return comm(rank, {ALL_REDUCE: reduced}, **changes, plans=tuple(NcclPlan(tasks=plan) for plan in tasks))


def messages_of(
    *plans: list[list[tuple[int, int]]],
    threads: tuple[Callable[[int], ThreadSample], ...] = (on_gpu, locked),
    **changes: Any,
) -> Report:
    """A job of as many ranks, with what each has launched."""
    states = [
        state(100 + rank, launches(rank, *own, n_ranks=len(plans), **changes))
        for rank, own in enumerate(plans)
    ]
    return analyze(job([make(100 + rank) for rank, make in enumerate(threads)], states))


REDUCED = [(ALL_REDUCE, 0)]


def test_a_message_that_was_launched_waits_for_who_has_not_launched_its_other_half() -> None:
    report = messages_of(
        [REDUCED, [(SEND, 1), (RECV, 1)], [(SEND, 1)]],
        [REDUCED, [(SEND, 0), (RECV, 0)]],
    )
    assert (report.verdict.state, report.verdict.symptom) == (State.HUNG, Kind.P2P_UNMATCHED)
    assert report.verdict.confidence is Confidence.LIKELY
    assert report.verdict.culprits[0].rank == 1
    (wait,) = [wait for wait in report.waits if wait.kind is WaitKind.P2P]
    assert (wait.object.name, wait.object.peer_rank) == ("send", 1)


@pytest.mark.parametrize(
    "plans",
    [
        ([REDUCED, [(SEND, 1)]], [REDUCED, [(RECV, 0)]]),
        ([REDUCED, [(SEND, 1)]], [[(RECV, 0)], REDUCED]),
        ([[(SEND, 1)]], [[]]),
        ([REDUCED, [(SEND, 1)]], [REDUCED, []]),
    ],
    ids=[
        "both launched",
        "one before what is shown",
        "nothing to count from",
        "what it launched is not shown",
    ],
)
def test_a_message_that_may_have_its_other_half_accuses_nobody(
    plans: tuple[list[list[tuple[int, int]]], ...],
) -> None:
    report = messages_of(*plans)
    assert not any(wait.kind is WaitKind.P2P for wait in report.waits)
    assert not any(victim.rank == 0 for victim in report.verdict.victims)


def test_where_all_launches_are_shown_the_first_message_counts_too() -> None:
    report = messages_of([[(SEND, 1)], REDUCED], [REDUCED], op_count=None)
    assert not any(wait.kind is WaitKind.P2P for wait in report.waits)
    sent = launches(0, [(SEND, 1)], REDUCED, n_ranks=2, op_count=2)
    not_received = launches(1, REDUCED, n_ranks=2, op_count=1)
    report = analyze(job([on_gpu(100), locked(101)], [state(100, sent), state(101, not_received)]))
    assert report.verdict.culprits[0].rank == 1


def test_two_that_send_first_wait_for_each_other() -> None:
    both = ([REDUCED, [(SEND, 1)]], [REDUCED, [(SEND, 0)]])
    report = messages_of(*both, threads=(on_gpu, on_gpu))
    assert report.verdict.symptom is Kind.P2P_CYCLE
    assert {who.part for who in report.verdict.culprits} == {Part.PARTY}


def elsewhere(rank: int, host: int, process: int) -> NcclMember:
    return NcclMember(rank=rank, cuda_device=1, host_hash=host, pid_hash=process, bus_id=0x81000)


def split_over_hosts(*others: NcclMember, peers: tuple[NcclPeer, ...] = ()) -> Report:
    """Two of three ranks are here, and have launched the same."""
    states = [state(100 + rank, comm(rank, {ALL_REDUCE: 4}, others=others)) for rank in range(2)]
    states = [replace(each, peers=peers) for each in states]
    pictures = tuple(NcclPicture(at_s=at, states=tuple(states)) for at in (0.0, 0.1))
    looks = b.twice(on_gpu(100), on_gpu(101))
    return analyze(b.evidence(b.ranks(3)[:2], looks, nccl=pictures))


def test_who_is_on_another_host_is_told_with_its_place_and_not_accused() -> None:
    report = split_over_hosts(
        elsewhere(0, 7, 70),
        elsewhere(2, 8, 80),
        peers=(
            NcclPeer(address="192.0.2.6:40000", pid=100, cuda_devices=1, host_hash=7, pid_hash=70),
            NcclPeer(address="192.0.2.7:40000", pid=4711, cuda_devices=2, host_hash=8, pid_hash=80),
        ),
    )
    assert report.verdict.culprits == ()
    said = "rank 2 on host 192.0.2.7, pid 4711, GPU 1 (0000:81:00.0); not looked at from here"
    assert any(said in line for wait in report.waits for line in wait.evidence)
    (collective,) = report.collectives
    assert (collective.op, collective.seq, collective.entered, collective.missing) == (
        "all_reduce",
        4,
        (0, 1),
        (),
    )
    assert any("192.0.2.7" in step and "hangtrace attach 4711" in step for step in report.verdict.next_steps)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((elsewhere(0, 7, 70), elsewhere(2, 8, 80)), "rank 2 on another host, GPU 1 (0000:81:00.0)"),
        ((elsewhere(0, 7, 70), elsewhere(2, 7, 80)), "rank 2 on this host, GPU 1 (0000:81:00.0)"),
        ((), "rank 2, not looked at from here"),
    ],
    ids=["another host", "this host", "nothing known"],
)
def test_what_is_not_recorded_of_a_rank_that_is_not_seen_is_left_out(
    others: tuple[NcclMember, ...], said: str
) -> None:
    report = split_over_hosts(*others)
    assert any(said in line for wait in report.waits for line in wait.evidence)


def test_what_failed_in_a_communicator_is_said() -> None:
    comms = [comm(rank, {ALL_REDUCE: 4}, async_result=6 if rank == 1 else 0) for rank in range(3)]
    states = [state(100 + each.rank, each) for each in comms]
    report = analyze(job([on_gpu(100), on_gpu(101), on_gpu(102)], states))
    said = {
        wait.pid for wait in report.waits if any("remote process exited" in line for line in wait.evidence)
    }
    assert said == {101}


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
