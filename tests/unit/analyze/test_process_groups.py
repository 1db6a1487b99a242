"""Collectives of several process groups: which group a call belongs to, and whom it lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyhangtrace.analyze import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.groups import GroupWait, PendingOperation, ProcessGroupFacts
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, Part, State
from pyhangtrace.model.open_files import FdFacts, FileLock
from pyhangtrace.model.threads import LockFacts, NamedValue, ThreadSample
from tests.unit.analyze import builders as b

WORLD, TP = 0x100, 0x200


def facts(number: int, name: str, ranks: tuple[int, ...], **changes: Any) -> ProcessGroupFacts:
    made: dict[str, Any] = {
        "pid": 100 + number,
        "name": name,
        "ranks": ranks,
        "address": WORLD if name == "0" else TP,
        "rank": number,
        "is_default": name == "0",
        "description": "default_pg" if name == "0" else "tp",
    }
    return ProcessGroupFacts(**{**made, **changes})


def recorded(group: ProcessGroupFacts, begun: int, *pending: PendingOperation) -> ProcessGroupFacts:
    return replace(group, recorded=True, begun=begun, pending=pending)


def operation(number: int, op: str = "all_reduce", count: int = 4) -> PendingOperation:
    return PendingOperation(op=op, backend="gloo", sequence=number, inputs=((count,),), dtype="float32")


def in_group(pid: int, address: int | None, op: str = "all_reduce", **changes: Any) -> ThreadSample:
    """A rank in a call of torch.distributed with the local `group`; no address: None."""
    kind = None if address is None else "torch._C._distributed_c10d.ProcessGroup"
    local = NamedValue(function=op, name="group", value=None, type=kind, address=address)
    return b.in_collective(pid, op, **{"named_values": (local,), **changes})


def grid() -> tuple[ProcessGroupFacts, ...]:
    """Four ranks, and two tensor-parallel groups of two."""
    pairs = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    names = {(0, 1): "1", (2, 3): "2"}
    return tuple(
        each
        for number, pair in pairs.items()
        for each in (facts(number, "0", (0, 1, 2, 3)), facts(number, names[pair], pair))
    )


def evidence(*threads: ThreadSample, groups: Any = None, count: int = 4, **changes: Any) -> Evidence:
    return b.evidence(
        b.ranks(count), b.twice(*threads), groups=grid() if groups is None else tuple(groups), **changes
    )


def test_the_rank_that_a_group_lacks_is_named_and_not_the_one_that_waits_for_it() -> None:
    threads = [in_group(100, TP), b.asleep(101, seconds=7200), in_group(102, None), in_group(103, WORLD)]
    report = analyze(evidence(*threads))
    assert report.verdict.state is State.HUNG
    assert [who.rank for who in report.verdict.culprits] == [1]
    assert [victim.rank for victim in report.verdict.victims] == [0, 2, 3]
    groups = {one.group: one for one in report.collectives}
    assert (groups["tp"].expected, groups["tp"].entered, groups["tp"].missing) == ((0, 1), (0,), (1,))
    assert (groups["default_pg"].entered, groups["default_pg"].missing) == ((2, 3), (0, 1))


def test_a_circle_goes_before_a_sleeper_that_is_merely_missing_too() -> None:
    receive = (b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("recv", b.C10D), b.py("step"))
    threads = [
        b.asleep(100, seconds=7200),
        b.in_collective(101, frames=receive, named_values=(b.local("recv", "src", 2),)),
        in_group(102, None, "barrier"),
    ]
    world = [facts(number, "0", (0, 1, 2)) for number in range(3)]
    verdict = analyze(evidence(*threads, groups=world, count=3)).verdict
    assert verdict.state is State.HUNG
    assert {(who.rank, who.part) for who in verdict.culprits} == {(1, Part.PARTY), (2, Part.PARTY)}


def test_a_local_of_the_programs_own_function_says_nothing() -> None:
    local = NamedValue(function="all_reduce", name="group", value=None, type="ProcessGroup", address=TP)
    frames = (
        b.native("c10d::Work::wait(std::chrono::duration<long>)"),
        b.py("all_reduce", "/job/my_distributed.py"),
    )
    threads = [
        b.in_collective(100, frames=frames, named_values=(local,)),
        *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103)),
    ]
    report = analyze(evidence(*threads))
    assert report.verdict.culprits
    assert [one.group for one in report.collectives] == ["unknown group"]


def test_an_engine_in_an_operation_of_its_own_names_the_group_by_its_coordinator() -> None:
    function = "GroupCoordinator._all_reduce_out_place"
    local = NamedValue(function=function, name="device_group", value=None, type="ProcessGroup", address=TP)
    frames = (
        b.native("shm_allreduce(long, at::Tensor&)"),
        b.py("_CPUSHMDistributed.all_reduce", "/site-packages/vllm/distributed/cpu_communicator.py", 275),
        b.py(function, "/site-packages/vllm/distributed/parallel_state.py", 750),
        b.py("main", line=40),
    )
    spinning = b.running(100, frames=frames, named_values=(local,))
    threads = [spinning, *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103))]
    (collective,) = analyze(evidence(*threads)).collectives
    assert (collective.group, collective.backend, collective.missing) == ("tp", "shm", (1,))


def test_work_that_is_waited_for_later_is_found_by_what_has_not_ended() -> None:
    work = (b.native("c10d::Work::wait(std::chrono::duration<long>)"), b.py("step"))
    groups = [recorded(group, 3) for group in grid()]
    groups[1] = recorded(groups[1], 6, operation(6, "all_gather"))
    threads = [
        b.in_collective(100, frames=work),
        *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103)),
    ]
    report = analyze(evidence(*threads, groups=groups))
    (collective,) = report.collectives
    assert (collective.group, collective.op, collective.seq) == ("tp", "all_gather", 6)
    assert (collective.count, collective.dtype) == (4, "float32")
    assert [who.rank for who in report.verdict.culprits] == [1]


def test_a_rank_that_has_done_its_part_is_not_missing() -> None:
    groups = [recorded(group, 5) for group in grid()]
    groups[0] = recorded(groups[0], 5, operation(5))
    groups[2] = recorded(groups[2], 5)
    groups[4] = recorded(groups[4], 4)
    groups[6] = recorded(groups[6], 5, operation(5))
    threads = [
        in_group(100, None),
        b.asleep(101, seconds=7200),
        b.asleep(102, seconds=7200),
        in_group(103, None),
    ]
    report = analyze(evidence(*threads, groups=groups))
    assert [who.rank for who in report.verdict.culprits] == [2]
    assert report.collectives[0].missing == (2,)


def test_a_rank_that_was_stopped_in_the_operation_is_what_the_others_lack() -> None:
    groups = [recorded(group, 5, operation(5)) if group.is_default else group for group in grid()]
    inside = b.in_collective(102)
    threads = [in_group(pid, None) for pid in (100, 101, 103)]
    report = analyze(
        evidence(*threads, b.stopped(102) if not inside.frames else replace(inside, state="T"), groups=groups)
    )
    assert report.verdict.cause is Kind.PEER_STOPPED
    assert [who.rank for who in report.verdict.culprits] == [2]


def test_different_sizes_of_one_operation_make_parties_of_all() -> None:
    groups = [
        recorded(group, 5, operation(5, count=8 if group.pid == 102 else 4)) if group.is_default else group
        for group in grid()
    ]
    report = analyze(evidence(*(in_group(pid, None) for pid in (100, 101, 102, 103)), groups=groups))
    assert report.verdict.cause is Kind.COLLECTIVE_SIZE_MISMATCH
    assert {(who.rank, who.part) for who in report.verdict.culprits} == {(n, Part.PARTY) for n in range(4)}
    assert "ranks 0-1,3 in all_reduce of 4 x float32" in report.verdict.summary
    assert "rank 2 in all_reduce of 8 x float32" in report.verdict.summary


def test_who_differs_in_a_subgroup_is_a_party_and_who_waits_behind_is_not() -> None:
    threads = [
        in_group(100, None),
        in_group(101, None),
        in_group(102, TP),
        in_group(103, TP, "broadcast"),
    ]
    verdict = analyze(evidence(*threads)).verdict
    assert verdict.cause is Kind.COLLECTIVE_OP_MISMATCH
    assert [who.rank for who in verdict.culprits] == [2, 3]
    assert [victim.rank for victim in verdict.victims] == [0, 1]
    assert "of tp (ranks 2-3)" in verdict.summary


def test_a_knot_over_two_groups_is_likely_and_names_who_is_in_it() -> None:
    threads = [in_group(100, TP), in_group(101, None), in_group(102, None), in_group(103, None)]
    verdict = analyze(evidence(*threads)).verdict
    assert (verdict.cause, verdict.confidence) == (Kind.COLLECTIVE_GROUP_CYCLE, Confidence.LIKELY)
    assert [who.rank for who in verdict.culprits] == [0, 1]
    assert [victim.rank for victim in verdict.victims] == [2, 3]


def test_members_on_other_hosts_may_be_what_is_missing() -> None:
    groups = [facts(number, "0", (0, 1, 2, 3)) for number in (0, 1)]
    processes = [b.rank(100 + number, number, 4, identity=(("LOCAL_WORLD_SIZE", "2"),)) for number in (0, 1)]
    threads = [in_group(100, None), in_group(101, None)]
    report = analyze(b.evidence(processes, b.twice(*threads), groups=tuple(groups)))
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()
    assert report.collectives[0].missing == ()


def test_who_may_be_in_the_same_operation_is_not_accused() -> None:
    work = (b.native("c10d::Work::wait(std::chrono::duration<long>)"), b.py("step"))
    groups = [facts(number, name, (0, 1)) for number in (0, 1) for name in ("0", "1")]
    threads = [in_group(100, TP), b.in_collective(101, frames=work)]
    verdict = analyze(evidence(*threads, groups=groups, count=2)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_ranks_that_nobody_told_the_environment_are_those_of_the_group() -> None:
    nameless = [b.process(100 + number, ppid=50) for number in range(4)]
    threads = [in_group(100, TP), b.asleep(101, seconds=7200), in_group(102, None), in_group(103, None)]
    report = analyze(b.evidence(nameless, b.twice(*threads), groups=grid()))
    assert [(who.rank, who.pid) for who in report.verdict.culprits] == [(1, 101)]
    assert report.workload.world_size == 4
    assert report.processes[1].rank_from == ("process group",)


def test_two_worlds_on_one_host_have_no_common_ranks() -> None:
    groups = [facts(number % 2, "0", (0, 1), pid=100 + number) for number in range(4)]
    nameless = [b.process(100 + number, ppid=50) for number in range(4)]
    threads = [in_group(100, None), b.asleep(101, seconds=7200), in_group(102, None), in_group(103, None)]
    report = analyze(b.evidence(nameless, b.twice(*threads), groups=tuple(groups)))
    assert all(process.rank is None for process in report.processes)
    assert all(who.pid == 101 for who in report.verdict.culprits)


def message(pid: int, address: int | None, **peer: int | None) -> ThreadSample:
    kind = None if address is None else "ProcessGroup"
    frames = (
        b.native("c10d::ProcessGroupGloo::RecvWork::wait(std::chrono::duration<long>)"),
        b.py("recv", b.C10D, 2800),
        b.py("step"),
    )
    values = [NamedValue(function="recv", name=name, value=value) for name, value in peer.items()]
    values.append(NamedValue(function="recv", name="group", value=None, type=kind, address=address))
    return b.in_collective(pid, frames=frames, named_values=tuple(values))


def test_a_message_by_the_number_in_the_group_is_of_that_member() -> None:
    threads = [
        in_group(100, None),
        in_group(101, None),
        b.asleep(102, seconds=7200),
        message(103, TP, src=None, group_src=0),
    ]
    report = analyze(evidence(*threads))
    assert [who.rank for who in report.verdict.culprits] == [2]
    wait = next(wait for wait in report.waits if wait.pid == 103)
    assert wait.object.peer_rank == 2


def test_a_message_and_a_barrier_that_wait_for_each_other_are_no_order_of_groups() -> None:
    threads = [message(100, None, src=1), in_group(101, None, "barrier")]
    groups = [facts(number, "0", (0, 1)) for number in (0, 1)]
    verdict = analyze(evidence(*threads, groups=groups, count=2)).verdict
    assert verdict.cause is Kind.P2P_UNMATCHED
    assert all(who.part is Part.PARTY for who in verdict.culprits)


def test_an_operation_under_way_that_the_frame_cannot_mean_is_not_taken_for_it() -> None:
    groups = [recorded(group, 5) for group in grid()]
    groups[0] = recorded(groups[0], 5, operation(5, "broadcast"))
    for called in ("monitored_barrier", "all_reduce"):
        threads = [in_group(100, None, called), *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103))]
        (collective,) = analyze(evidence(*threads, groups=groups)).collectives
        assert (collective.op, collective.seq, collective.count) == (called, None, None)
    threads[0] = in_group(100, None, "broadcast_object_list")
    (collective,) = analyze(evidence(*threads, groups=groups)).collectives
    assert collective.seq == 5


def later(pid: int, *run_loops: str) -> list[ThreadSample]:
    """A rank in `work.wait()`, and gloo's own threads in operations."""
    work = (b.native("c10d::Work::wait(std::chrono::duration<long>)"), b.py("step"))
    loops = [
        b.sleeper(
            pid, pid + 1000 + at, frames=(b.native(name), b.native("c10d::ProcessGroupGloo::runLoop(int)"))
        )
        for at, name in enumerate(run_loops)
    ]
    return [b.in_collective(pid, frames=work), *loops]


def begun_by_two(ops: tuple[str, ...], ahead: int) -> list[ProcessGroupFacts]:
    """Ranks 0 and 1 have begun operations 5.. of growing size; rank 2 nothing after `ahead`."""
    pending = [operation(5 + at, op, count=4 + at) for at, op in enumerate(ops)]
    first = [recorded(facts(number, "0", (0, 1, 2)), 4 + len(ops), *pending) for number in (0, 1)]
    return [*first, recorded(facts(2, "0", (0, 1, 2)), ahead)]


GLOO_ALL_REDUCE = "c10d::(anonymous namespace)::AsyncAllreduceWork::run()"
GLOO_BROADCAST = "c10d::(anonymous namespace)::AsyncBroadcastWork::run()"


def test_of_several_operations_under_way_the_oldest_is_the_one_that_lacks_somebody() -> None:
    threads = [*later(100, GLOO_ALL_REDUCE), *later(101, GLOO_ALL_REDUCE), b.asleep(102, seconds=7200)]
    groups = begun_by_two(("all_reduce",) * 3, ahead=4)
    report = analyze(evidence(*threads, groups=groups, count=3))
    (collective,) = report.collectives
    assert (collective.op, collective.seq, collective.count) == ("all_reduce", 5, 4)
    assert (collective.entered, collective.missing) == ((0, 1), (2,))


def test_what_gloo_is_in_does_not_rename_an_older_operation() -> None:
    threads = [*later(100, GLOO_BROADCAST), *later(101, GLOO_BROADCAST), b.asleep(102, seconds=7200)]
    groups = begun_by_two(("all_reduce", "broadcast"), ahead=4)
    report = analyze(evidence(*threads, groups=groups, count=3))
    (collective,) = report.collectives
    assert (collective.op, collective.seq, collective.count) == ("all_reduce", 5, 4)


def test_names_that_only_the_recorder_has_are_no_other_operation() -> None:
    one = operation(5, "_all_gather_base")
    groups = [recorded(facts(number, "0", (0, 1)), 5, one) for number in (0, 1)]
    threads = [in_group(100, WORLD, "all_gather_into_tensor"), *later(101)]
    report = analyze(evidence(*threads, groups=groups, count=2))
    assert report.verdict.cause is not Kind.COLLECTIVE_OP_MISMATCH
    assert [(each.op, each.entered) for each in report.collectives] == [("all_gather_into_tensor", (0, 1))]


def test_ranks_that_wait_for_the_culprit_elsewhere_are_victims_as_well() -> None:
    """Rank 2 waits for what rank 3 sends to its group, which alone would be a wait for work."""
    pair = {"name": "1", "ranks": (2, 3)}
    groups = [
        *(facts(number, "0", (0, 1, 2, 3)) for number in range(4)),
        *(facts(number, **pair) for number in (2, 3)),
    ]
    pause = b.sleeper(103, syscall=34, args=())
    threads = [in_group(100, WORLD), in_group(101, WORLD), in_group(102, TP, "broadcast"), pause]
    verdict = analyze(evidence(*threads, groups=groups)).verdict
    assert [who.rank for who in verdict.culprits] == [3]
    assert [victim.rank for victim in verdict.victims] == [0, 1, 2]
    assert "send the signal" in "\n".join(verdict.next_steps)


def test_who_waits_for_a_file_lock_of_the_culprit_is_a_victim() -> None:
    lock = FileLock(kind="flock", access="write", pid=101, device=1, inode=42, waiters=(102,), path="/c/lock")
    fd = FdFacts(pid=102, fd=5, kind=FdKind.FILE, target="/c/lock", inode=42, device=1, mode="w")
    waiting = b.on_fd(102, fd=5, syscall=b.FLOCK)
    groups = [facts(number, "0", (0, 1, 2)) for number in range(3)]
    looks = b.twice(in_group(100, WORLD), b.asleep(101, seconds=7200), waiting, file_locks=[lock], fds=[fd])
    verdict = analyze(b.evidence(b.ranks(3), looks, groups=tuple(groups))).verdict
    assert [who.rank for who in verdict.culprits] == [1]
    assert [victim.rank for victim in verdict.victims] == [0, 2]


def test_where_all_have_entered_nobody_is_told_to() -> None:
    one = operation(5, "broadcast")
    groups = [recorded(facts(number, "0", (0, 1)), 5, one) for number in (0, 1)]
    threads = [in_group(pid, WORLD, "broadcast") for pid in (100, 101)]
    steps = "\n".join(analyze(evidence(*threads, groups=groups, count=2)).verdict.next_steps)
    assert "who should enter" not in steps
    assert "compare what each rank passes to broadcast" in steps


def on_work(pid: int, condition: int, **changes: Any) -> ThreadSample:
    """A rank that waits for work which it began before: its frames tell neither name nor group."""
    lock = LockFacts(kind="condition", address=condition, uaddr=condition + 40, op=0, value=0)
    frames = (b.native("c10d::Work::wait(std::chrono::duration<long>)"), b.py("step"))
    return b.in_collective(pid, frames=frames, lock=lock, **changes)


def work(pid: int, number: int, op: str = "all_reduce", *, size: int = 2, rank: int = 0) -> GroupWait:
    made = PendingOperation(op=op, backend="gloo", sequence=number, source="gloo memory")
    return GroupWait(pid=pid, tid=pid, condition=0x900 + pid, work=made, rank=rank, size=size)


def test_the_object_that_is_waited_on_tells_group_and_number_without_a_recorder() -> None:
    threads = [on_work(100, 0x900 + 100), *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103))]
    report = analyze(evidence(*threads, group_waits=(work(100, 7, "all_gather"),)))
    (collective,) = report.collectives
    assert (collective.group, collective.op, collective.seq) == ("tp", "all_gather", 7)
    assert collective.sources == ("stack", "gloo memory")
    assert [who.rank for who in report.verdict.culprits] == [1]


def test_what_memory_holds_of_an_operation_that_has_ended_is_not_taken_for_the_one_that_is_waited_for() -> (
    None
):
    world = [
        recorded(facts(0, "0", (0, 1, 2)), 6, operation(6)),
        recorded(facts(1, "0", (0, 1, 2)), 5),
        recorded(facts(2, "0", (0, 1, 2)), 6, operation(6)),
    ]
    threads = [on_work(100, 0x900 + 100), b.running(101), on_work(102, 0x900 + 102)]
    read = (work(100, 5, size=3), work(102, 6, size=3, rank=2))
    report = analyze(evidence(*threads, groups=world, count=3, group_waits=read))
    assert report.verdict.state is State.BUSY
    assert [who.rank for who in report.verdict.culprits] == [1]
    assert [(one.seq, one.missing) for one in report.collectives] == [(6, (1,))]


def test_an_operation_that_others_have_left_behind_is_none_that_nobody_completes() -> None:
    world = [facts(number, "0", (0, 1)) for number in range(2)]
    threads = [on_work(100, 0x900 + 100), on_work(101, 0x900 + 101)]
    report = analyze(
        evidence(*threads, groups=world, count=2, group_waits=(work(100, 5), work(101, 6, rank=1)))
    )
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())


def test_the_object_of_another_wait_tells_nothing() -> None:
    threads = [on_work(100, 0x123), *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103))]
    report = analyze(evidence(*threads, group_waits=(work(100, 7, "all_gather"),)))
    assert [(one.group, one.seq) for one in report.collectives] == [("unknown group", None)]


def test_work_that_is_waited_for_before_older_work_is_the_one_that_is_named() -> None:
    groups = [recorded(group, 3) for group in grid()]
    groups[1] = recorded(groups[1], 6, operation(5, "all_reduce"), operation(6, "all_gather"))
    groups[3] = recorded(groups[3], 5, operation(5, "all_reduce"))
    threads = [on_work(100, 0x900 + 100), *(b.asleep(pid, seconds=7200) for pid in (101, 102, 103))]
    report = analyze(evidence(*threads, groups=groups, group_waits=(work(100, 6, "all_gather"),)))
    (collective,) = report.collectives
    assert (collective.op, collective.seq, collective.missing) == ("all_gather", 6, (1,))
    assert collective.sources == ("stack", "flight recorder")


def test_who_is_further_keeps_nobody_waiting_also_without_a_recorder() -> None:
    """Rank 0 is in its ninth operation of the group, rank 1 in the eighth, which rank 0 has begun before."""
    threads = [
        on_work(100, 0x900 + 100),
        on_work(101, 0x900 + 101),
        *(b.asleep(pid, seconds=7200) for pid in (102, 103)),
    ]
    waits = (work(100, 9), work(101, 8, rank=1))
    report = analyze(evidence(*threads, group_waits=waits))
    missing = {one.seq: one.missing for one in report.collectives}
    assert missing == {9: (1,), 8: ()}


def test_numbers_of_some_members_alone_do_not_tell_who_is_behind() -> None:
    threads = [
        on_work(100, 0x900 + 100),
        in_group(101, TP),
        *(b.asleep(pid, seconds=7200) for pid in (102, 103)),
    ]
    report = analyze(evidence(*threads, group_waits=(work(100, 9),)))
    assert [(one.seq, one.entered) for one in report.collectives if one.group == "tp"] == [(None, (0, 1))]
    assert {who.part for who in report.verdict.culprits} == {Part.PARTY}


FSDP = "/lib/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
MODULE = "/lib/site-packages/torch/nn/modules/module.py"


def in_model(pid: int, line: int, op: str = "all_gather", *library: str) -> ThreadSample:
    """In an operation that a part of torch calls, from a line of the program's step."""
    frames = (
        b.native("c10d::Work::wait(std::chrono::duration<long>)"),
        b.py(op, b.C10D),
        *(b.py("wait_for_unshard", file) for file in library),
        b.py("step", "/job/train.py", line),
    )
    return b.in_collective(pid, op, frames=frames)


def test_the_part_of_torch_and_the_programs_own_line_are_told() -> None:
    threads = [in_model(100, 41, "all_gather", FSDP, MODULE), in_model(101, 42, "barrier")]
    report = analyze(b.evidence(b.ranks(2), b.twice(*threads)))
    assert report.verdict.cause is Kind.COLLECTIVE_OP_MISMATCH
    assert "rank 0 in all_gather (FSDP); rank 1 in barrier" in report.verdict.summary
    assert "They part in step (train.py): rank 0 at line 41, rank 1 at line 42." in report.verdict.summary


def test_the_reducer_of_ddp_is_told_where_no_frame_of_python_does() -> None:
    frames = (
        b.native("c10d::Work::wait(std::chrono::duration<long>)"),
        b.native("c10d::Reducer::finalize_backward()"),
        b.py("_engine_run_backward", "/lib/site-packages/torch/autograd/graph.py"),
        b.py("step", "/job/train.py", 12),
    )
    threads = [b.in_collective(100, frames=frames), b.asleep(101, seconds=7200)]
    summary = analyze(b.evidence(b.ranks(2), b.twice(*threads))).verdict.summary
    assert "keeps rank 0 waiting in all_reduce (DDP)" in summary


def test_a_function_of_the_programs_own_wrapper_is_no_part_of_torch() -> None:
    threads = [in_model(100, 41, "all_gather", "/job/torch_fsdp/fsdp.py"), b.asleep(101, seconds=7200)]
    summary = analyze(b.evidence(b.ranks(2), b.twice(*threads))).verdict.summary
    assert "FSDP" not in summary


def test_several_that_wait_for_work_and_one_in_an_operation_are_parties() -> None:
    """One call more on one rank, or one less on the others: nothing tells."""
    threads = [
        in_model(100, 41, "all_reduce"),
        *(
            b.sleeper(pid, syscall=34, args=(), frames=(b.native("pause"), b.py("step", "/job/train.py", 44)))
            for pid in (101, 102)
        ),
    ]
    verdict = analyze(b.evidence(b.ranks(3), b.twice(*threads))).verdict
    assert (verdict.state, verdict.symptom) == (State.HUNG, Kind.COLLECTIVE_MISSING_RANK)
    assert [(who.rank, who.part) for who in verdict.culprits] == [(rank, Part.PARTY) for rank in (0, 1, 2)]
    assert verdict.victims == ()
    assert "They part in step (train.py): rank 0 at line 41, ranks 1-2 at line 44." in verdict.summary
