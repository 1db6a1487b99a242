"""Ranks that are missing, have ended or stand apart: who is named, and who is not."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.groups import GroupWait
from pyhangtrace.model.host import HostFacts, OomKill
from pyhangtrace.model.kinds import Confidence, Kind, Part, Role, State, StoreAnswer, WaitKind
from pyhangtrace.model.open_files import FileLock
from pyhangtrace.model.processes import RankClaim
from pyhangtrace.model.threads import NamedValue
from pyhangtrace.render.text.headline import headline_title
from tests.unit.analyze import builders as b

IN_STORE = (
    b.native("c10d::TCPStore::doWait(c10::ArrayRef<std::string>, std::chrono::duration<long>)"),
    b.py("work"),
)
RUN_LOOP = (b.native("c10d::ProcessGroupGloo::runLoop(int)"),)


def in_store(pid: int, *, loops: int = 2) -> list[Any]:
    """A rank of a group that has come together, in the store for a reason of its own."""
    main = b.sleeper(pid, frames=IN_STORE, syscall=b.POLL)
    return [main, *(b.sleeper(pid, pid + 1000 + loop, frames=RUN_LOOP) for loop in range(loops))]


def test_who_waits_for_a_key_that_the_others_may_set_later_is_missing_and_not_to_blame() -> None:
    others = [b.in_collective(pid, "barrier") for pid in (100, 102)]
    looks = b.twice(*others, *in_store(101))
    report = analyze(b.evidence(b.ranks(3), looks))
    verdict = report.verdict
    assert (verdict.state, verdict.symptom) == (State.HUNG, Kind.COLLECTIVE_MISSING_RANK)
    assert [(who.rank, who.part) for who in verdict.culprits] == [(1, Part.PARTY)]
    assert [victim.rank for victim in verdict.victims] == [0, 2]
    assert report.collectives[0].missing == (1,)
    assert verdict.cycle == ()
    assert headline_title(report) == "rank 1 has not come, 2 ranks waiting"


def test_a_rank_that_ended_well_is_not_blamed_while_another_one_lives() -> None:
    on_lock = b.on_python_lock(102, owner=202)
    ended = b.process(103, state="Z", exit_code=0)
    others = [b.in_collective(pid, "broadcast") for pid in (100, 101)]
    looks = b.twice(*others, on_lock, b.asleep(102, 202, seconds=3600))
    report = analyze(b.evidence([*b.ranks(4)[:3], ended], looks))
    assert report.verdict.cause is Kind.LOCK_HELD
    assert [who.rank for who in report.verdict.culprits] == [2]
    assert report.collectives[0].missing == (2,)


def test_a_rank_that_failed_after_its_part_was_done_is_not_blamed_either() -> None:
    failed = b.process(103, state="Z", exit_code=6)
    others = [b.in_collective(pid, "broadcast") for pid in (100, 101)]
    looks = b.twice(*others, b.asleep(102, seconds=7200))
    verdict = analyze(b.evidence([*b.ranks(4)[:3], failed], looks)).verdict
    assert [who.rank for who in verdict.culprits] == [2]


def test_a_rank_that_failed_is_blamed_whoever_else_is_late() -> None:
    failed = b.process(103, state="Z", exit_code=3 << 8)
    others = [b.in_collective(pid) for pid in (100, 101)]
    looks = b.twice(*others, b.asleep(102, seconds=7200))
    report = analyze(b.evidence([*b.ranks(4)[:3], failed], looks))
    assert report.verdict.cause is Kind.PEER_EXITED
    assert (3, 103) in [(who.rank, who.pid) for who in report.verdict.culprits]
    assert "exit code 3" in report.verdict.summary


def test_a_rank_that_ended_well_alone_is_named_without_proof() -> None:
    ended = b.process(103, state="Z", exit_code=0)
    looks = b.twice(*(b.in_collective(pid) for pid in (100, 101, 102)))
    verdict = analyze(b.evidence([*b.ranks(4)[:3], ended], looks)).verdict
    assert (verdict.cause, verdict.confidence) == (Kind.PEER_EXITED, Confidence.LIKELY)
    assert "has ended with exit code 0" in verdict.summary


@pytest.mark.parametrize(
    ("left", "sure"),
    [
        ({"state": "Z", "exit_code": 9}, Confidence.PROVEN),
        ({"state": "Z", "exit_code": None}, Confidence.LIKELY),
        ({"state": "S", "gone": True}, Confidence.LIKELY),
    ],
    ids=["status kept", "status hidden", "gone between looks"],
)
def test_how_a_rank_came_to_its_end_is_proven_only_by_a_record_of_it(
    left: dict[str, Any], sure: Confidence
) -> None:
    ended = b.rank(103, 3, **left)
    looks = b.twice(*(b.in_collective(pid) for pid in (100, 101, 102)))
    verdict = analyze(b.evidence([*b.ranks(4)[:3], ended], looks)).verdict
    assert (verdict.cause, verdict.confidence) == (Kind.PEER_EXITED, sure)
    assert [who.rank for who in verdict.culprits] == [3]


def test_the_kernels_log_records_an_end() -> None:
    ended = b.rank(103, 3, gone=True)
    host = HostFacts(
        name="host", machine="x86_64", oom_log=(OomKill(pid=103, comm="python3", text="oom-kill"),)
    )
    looks = b.twice(*(b.in_collective(pid) for pid in (100, 101, 102)))
    verdict = analyze(b.evidence([*b.ranks(4)[:3], ended], looks, host=host)).verdict
    assert (verdict.cause, verdict.confidence) == (Kind.PEER_OOM_KILLED, Confidence.PROVEN)


def test_two_zombies_for_two_ranks_are_those_ranks() -> None:
    ended = [b.process(pid, state="Z", exit_code=9) for pid in (102, 103)]
    looks = b.twice(*in_store(100, loops=0), *in_store(101, loops=0))
    verdict = analyze(b.evidence([*b.ranks(4)[:2], *ended], looks)).verdict
    assert verdict.cause is Kind.PEER_EXITED
    assert [who.rank for who in verdict.culprits] == [2, 3]
    assert "killed by signal 9" in verdict.summary


def test_a_group_that_had_come_together_lacks_no_start() -> None:
    looks = b.twice(*in_store(100), *in_store(101))
    verdict = analyze(b.evidence(b.ranks(3)[:2], looks)).verdict
    assert verdict.cause is Kind.PEER_EXITED
    assert verdict.confidence is not Confidence.PROVEN
    assert not any("start rank" in step for step in verdict.next_steps)


def test_with_several_groups_no_group_is_claimed() -> None:
    loops = [
        b.sleeper(pid, pid + 1000 + loop, frames=RUN_LOOP) for pid in (100, 101, 102) for loop in range(4)
    ]
    report = analyze(b.missing_rank(b.asleep(103, seconds=3600), *loops))
    assert report.verdict.culprits[0].rank == 3
    (collective,) = report.collectives
    assert (collective.group, collective.expected, collective.missing) == ("unknown group", (0, 1, 2), ())


def test_two_ranks_that_are_missing_for_reasons_of_their_own_are_both_named() -> None:
    event = (
        b.py("Condition.wait", b.THREADING, 327),
        b.py("Event.wait", b.THREADING, 629),
        b.py("work", line=6),
    )
    threads = (b.running(100), b.sleeper(101, frames=event), b.in_collective(102, "barrier"))
    verdict = analyze(b.evidence(b.ranks(3), b.twice(*threads))).verdict
    assert verdict.state is State.HUNG
    assert {who.rank for who in verdict.culprits} == {0, 1}
    assert [victim.rank for victim in verdict.victims] == [2]
    assert "rank 0 (pid 100)" in verdict.summary
    assert "Rank 1 (pid 101)" in verdict.summary


def nameless(count: int) -> list[Any]:
    return [b.process(100 + number, ppid=50) for number in range(count)]


def loops_of(pid: int, groups: int = 1) -> list[Any]:
    return [b.sleeper(pid, pid + 1000 + loop, frames=RUN_LOOP) for loop in range(2 * groups)]


def test_without_ranks_the_member_is_named_before_what_it_waits_for() -> None:
    child = b.process(300, ppid=101)
    waiting = b.sleeper(101, syscall=b.WAIT4, args=(300, 0, 0, 0, 0, 0))
    looks = b.twice(b.in_collective(100), waiting, b.asleep(300, seconds=7200), *loops_of(100))
    report = analyze(b.evidence([*nameless(2), child], looks))
    assert [who.pid for who in report.verdict.culprits] == [101, 300]
    assert [victim.pid for victim in report.verdict.victims] == [100]
    assert report.collectives[0].group == "default_pg"


def test_without_ranks_each_operation_is_told_by_its_own_name() -> None:
    threads = [b.in_collective(100, "all_reduce"), b.in_collective(101, "all_gather_object")]
    looks = b.twice(*threads, *loops_of(100), *loops_of(101))
    report = analyze(b.evidence(nameless(2), looks))
    assert report.verdict.cause is Kind.COLLECTIVE_OP_MISMATCH
    assert {one.op for one in report.collectives} == {"all_reduce", "all_gather_object"}
    assert all(who.part is Part.PARTY for who in report.verdict.culprits)
    assert "pid 101 in all_gather_object" in report.verdict.summary


def test_without_ranks_and_with_several_groups_different_operations_prove_nothing() -> None:
    threads = [b.in_collective(100, "all_reduce"), b.in_collective(101, "all_gather_object")]
    looks = b.twice(*threads, *loops_of(100, 2), *loops_of(101, 2))
    report = analyze(b.evidence(nameless(2), looks))
    assert report.verdict.state is State.UNKNOWN
    assert {one.group for one in report.collectives} == {"unknown group"}


def test_node_waits_for_a_child_inside_its_event_loop() -> None:
    frames = (
        b.native("epoll_pwait", "libc.so.6"),
        b.native("uv_run", "node"),
        b.native("node::SyncProcessRunner::Spawn(v8::FunctionCallbackInfo<v8::Value> const&)", "node"),
    )
    looks = b.twice(b.sleeper(100, frames=frames, syscall=b.EPOLL), b.sleeper(101, state="T"))
    verdict = analyze(b.evidence([b.process(100), b.process(101, ppid=100)], looks)).verdict
    assert verdict.state is State.HUNG
    assert [victim.pid for victim in verdict.victims] == [100]


def test_ranks_part_in_the_innermost_function_that_they_share() -> None:
    threads = [b.in_collective(100, "all_reduce", line=6), b.in_collective(101, "barrier", line=7)]
    verdict = analyze(b.evidence(b.ranks(2), b.twice(*threads))).verdict
    parted = verdict.diverged_at
    assert parted is not None
    assert parted.common is not None
    assert (parted.common.function, parted.common.file) == ("step", "/job/train.py")
    sides = [(side.ranks, side.frame.function, side.frame.line) for side in parted.sides if side.frame]
    assert sides == [((0,), "step", 6), ((1,), "step", 7)]


def test_ranks_that_part_in_one_line_do_so_by_what_they_call_there() -> None:
    threads = [b.in_collective(100, "all_reduce"), b.in_collective(101, "barrier")]
    parted = analyze(b.evidence(b.ranks(2), b.twice(*threads))).verdict.diverged_at
    assert parted is not None
    assert parted.common is not None
    assert (parted.common.function, parted.common.line) == ("step", 7)
    assert [side.frame.function for side in parted.sides if side.frame] == ["all_reduce", "barrier"]


def test_a_rank_that_is_missing_since_it_waits_for_the_culprit_is_a_victim_too() -> None:
    waiting = b.sleeper(101, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    lock = FileLock(kind="flock", access="write", pid=102, device=1, inode=42, waiters=(101,), path="/c/lock")
    threads = (b.in_collective(100, "barrier"), waiting, b.asleep(102, seconds=7200))
    verdict = analyze(b.evidence(b.ranks(3), b.twice(*threads, file_locks=[lock]))).verdict
    assert [who.rank for who in verdict.culprits] == [2]
    assert [victim.rank for victim in verdict.victims] == [0, 1]
    assert "ranks 0-1 waiting for" in verdict.summary


def told_by_memory(pid: int, number: int, world: int, *, ppid: int = 50) -> Any:
    claim = RankClaim(source="program environ RANK", rank=number, world_size=world)
    return b.rank(pid, number, world, ppid=ppid, claims=(claim,))


def test_a_rank_that_nobody_could_be_searched_for_by_is_not_called_gone() -> None:
    # Only the programs' own memory tells their ranks, and nobody of the job started them.
    ranks = [told_by_memory(100 + number, number, 3) for number in (0, 1)]
    report = analyze(b.evidence(ranks, b.twice(b.in_collective(100), b.in_collective(101))))
    assert report.verdict.culprits == ()
    assert (report.verdict.state, report.workload.ranks_missing) == (State.UNKNOWN, ())
    # Below a member of the job all of its children are seen.
    starter = b.process(50, ppid=1, role=Role.LAUNCHER)
    report = analyze(b.evidence([starter, *ranks], b.twice(b.in_collective(100), b.in_collective(101))))
    assert report.workload.ranks_missing == (2,)


@pytest.mark.parametrize("identity", [(), (("MASTER_ADDR", "host"), ("MASTER_PORT", "29500"))])
def test_a_rank_that_may_be_on_another_host_is_not_called_gone(identity: tuple[tuple[str, str], ...]) -> None:
    # Neither a store that only the program knows nor the name of this host tells where the others are.
    processes = [b.rank(100, 0, 2, identity=identity, ppid=1)]
    evidence = b.evidence(processes, b.twice(b.in_collective(100)))
    assert evidence.host.name == "host"
    report = analyze(evidence)
    assert report.verdict.culprits == ()
    assert report.verdict.state is not State.HUNG


@pytest.mark.parametrize("zombie", [False, True])
def test_ranks_that_only_arguments_tell_may_have_others_on_another_host(zombie: bool) -> None:
    claims = [RankClaim(source="command line --rank", rank=number, world_size=3) for number in (0, 1)]
    ranks = [b.rank(100 + each.rank, each.rank, 3, identity=(), claims=(each,)) for each in claims]
    processes = [b.process(50, ppid=1, role=Role.LAUNCHER), *ranks]
    if zombie:
        processes.append(b.process(102, state="Z", exit_code=9))
    looks = b.twice(b.in_collective(100), b.in_collective(101))
    report = analyze(b.evidence(processes, looks))
    assert report.workload.ranks_missing == ((2,) if zombie else ())
    assert [who.rank for who in report.verdict.culprits] == ([2] if zombie else [])


def test_what_a_rank_was_started_through_knows_of_no_other() -> None:
    wrapper = b.process(60, role=Role.LAUNCHER, exe="/usr/bin/timeout")
    processes = [wrapper, b.rank(100, 0, 2, identity=(), ppid=60)]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100))))
    assert report.verdict.culprits == ()


def test_a_rank_of_this_host_that_is_not_here_is_gone() -> None:
    processes = [b.rank(100, 0, 2, ppid=1)]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100))))
    assert report.verdict.state is State.HUNG
    assert [culprit.rank for culprit in report.verdict.culprits] == [1]


def test_a_message_of_a_rank_elsewhere_is_no_matter_of_those_who_are_here() -> None:
    frames = (b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("recv", b.C10D), b.py("step"))
    receiving = b.in_collective(100, frames=frames, named_values=(b.local("recv", "src", 3),))
    here = [b.rank(100 + number, number, 4, identity=(("LOCAL_WORLD_SIZE", "2"),)) for number in (0, 1)]
    verdict = analyze(b.evidence(here, b.twice(receiving, b.asleep(101, seconds=7200)))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


CONNECTING = (
    b.native("nanosleep", "libc.so.6"),
    b.native("c10d::detail::(anonymous namespace)::SocketConnectOp::tryConnect(addrinfo const&)"),
    b.native("c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&)"),
    b.py("init_process_group", b.C10D, 1892),
    b.py("main"),
)
AT_STORE = (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"))


def connecting(pid: int) -> Any:
    return b.sleeper(pid, frames=CONNECTING, syscall=b.SLEEP, timeout_s=5.0, remaining_s=3.0)


def test_a_store_that_nobody_reaches_is_named_and_no_rank() -> None:
    ranks = [b.rank(100 + number, number, 2, identity=AT_STORE) for number in (0, 1)]
    report = analyze(b.evidence(ranks, b.twice(connecting(100), connecting(101))))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.RENDEZVOUS_UNREACHABLE)
    assert {who.part for who in report.verdict.culprits} == {Part.PARTY}
    assert "127.0.0.1:29500" in report.verdict.summary
    assert "127.0.0.1:29500" in report.verdict.next_steps[0]


def test_who_does_not_reach_the_store_waits_for_its_keeper_alone() -> None:
    ranks = [b.rank(100 + number, number, 3, identity=AT_STORE) for number in range(3)]
    threads = [b.asleep(100, seconds=7200), connecting(101), b.asleep(102, seconds=7200)]
    verdict = analyze(b.evidence(ranks, b.twice(*threads))).verdict
    assert [who.rank for who in verdict.culprits] == [0]
    # With torch's launcher the store is its own.
    elastic = [
        b.rank(r.pid, n, 3, identity=(*AT_STORE, ("TORCHELASTIC_RUN_ID", "x"))) for n, r in enumerate(ranks)
    ]
    verdict = analyze(b.evidence(elastic, b.twice(*threads))).verdict
    assert verdict.cause is Kind.RENDEZVOUS_UNREACHABLE
    assert [who.rank for who in verdict.culprits] == [1]


def test_a_send_and_a_receive_of_two_that_do_not_meet_are_no_order_of_calls() -> None:
    frames = {
        "send": (b.native("c10d::ProcessGroupGloo::SendWork::wait()"), b.py("send", b.C10D), b.py("step")),
        "recv": (b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("recv", b.C10D), b.py("step")),
    }
    threads = [
        b.in_collective(100, frames=frames["send"], named_values=(b.local("send", "dst", 1),)),
        b.in_collective(101, frames=frames["recv"], named_values=(b.local("recv", "src", 0),)),
    ]
    verdict = analyze(b.evidence(b.ranks(2), b.twice(*threads))).verdict
    assert verdict.cause is Kind.P2P_UNMATCHED
    assert "by tag, group or type" in verdict.next_steps[0]


def test_the_key_that_is_waited_for_is_told_and_who_sets_it_is_not_guessed() -> None:
    waits = GroupWait(pid=101, tid=101, keys=("ready",), full_keys=("default_pg/0//weights/ready",))
    threads = [b.asleep(100, seconds=7200), *in_store(101)]
    report = analyze(b.evidence(b.ranks(2), b.twice(*threads), group_waits=(waits,)))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert "the key ready of the store" in report.verdict.summary
    known = b.replace(waits, setters=(100,))
    report = analyze(b.evidence(b.ranks(2), b.twice(*threads), group_waits=(known,)))
    assert [who.rank for who in report.verdict.culprits] == [0]
    assert "keeps rank 1 waiting for the key ready of the store" in report.verdict.summary
    (wait,) = (one for one in report.waits if one.kind is WaitKind.RENDEZVOUS)
    assert wait.object.path == "ready"
    assert "key of the store: default_pg/0//weights/ready" in wait.evidence


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (("loaded/0", "loaded/1", "loaded/2"), [2]),  # one of each rank
        (("loaded/rank2",), [2]),
        (("rank_0/inbox",), []),  # the waiter's own
        (("step/2",), []),
        (("loaded/0", "loaded/2"), []),
        (("operator/go",), []),
    ],
)
def test_whose_a_key_is_by_its_name(keys: tuple[str, ...], named: list[int]) -> None:
    waits = tuple(GroupWait(pid=pid, tid=pid, keys=keys) for pid in (100, 101))
    threads = [*in_store(100), *in_store(101), b.asleep(102, seconds=7200)]
    verdict = analyze(b.evidence(b.ranks(3), b.twice(*threads), group_waits=waits)).verdict
    assert [who.rank for who in verdict.culprits] == named
    assert (verdict.state is State.HUNG) is bool(named)


def test_of_many_keys_some_are_told() -> None:
    keys = tuple(f"arrived/{number}" for number in range(9))
    waits = GroupWait(pid=101, tid=101, keys=keys, full_keys=keys, setters=(100,))
    threads = [b.asleep(100, seconds=7200), *in_store(101)]
    summary = analyze(b.evidence(b.ranks(2), b.twice(*threads), group_waits=(waits,))).verdict.summary
    assert "for the keys arrived/0, arrived/1, arrived/2, arrived/3 and 5 more of the store" in summary


IN_FILE_STORE = (
    b.native("nanosleep"),
    b.native("c10d::FileStore::get(std::__cxx11::basic_string<char> const&)"),
    b.py("work"),
)


def test_a_store_that_is_a_file_is_looked_into_again_and_again_and_still_waited_for() -> None:
    naps = [
        b.sleeper(101, frames=IN_FILE_STORE, syscall=b.SLEEP, timeout_s=0.01, run_ns=run, slices=run)
        for run in (10, 20)
    ]
    asleep = b.asleep(100, seconds=7200)
    looks = (b.look(asleep, naps[0]), b.look(asleep, naps[1], at=0.5))
    waits = (GroupWait(pid=101, tid=101, keys=("ready",), setters=(100,)),)
    verdict = analyze(b.evidence(b.ranks(2), looks, group_waits=waits)).verdict
    assert (verdict.state, verdict.symptom) == (State.HUNG, Kind.RENDEZVOUS_MISSING_RANK)
    assert [who.rank for who in verdict.culprits] == [0]


def test_one_that_is_met_on_the_cpu_as_it_looks_into_the_file_waits_no_less() -> None:
    def naps(pid: int, run_ns: int, **changes: Any) -> Any:
        return b.sleeper(
            pid, frames=IN_FILE_STORE, syscall=b.SLEEP, timeout_s=0.01, run_ns=run_ns, moved=True, **changes
        )

    asleep = b.asleep(100, seconds=7200)
    looks = (
        b.look(asleep, naps(101, 10), naps(102, 10)),
        b.look(asleep, naps(101, 20), naps(102, 20, state="R"), at=0.5),
    )
    waits = tuple(GroupWait(pid=pid, tid=pid, keys=("ready",), setters=(100,)) for pid in (101, 102))
    verdict = analyze(b.evidence(b.ranks(3), looks, group_waits=waits)).verdict
    assert (verdict.state, [who.rank for who in verdict.victims]) == (State.HUNG, [1, 2])


MESHED = (
    b.native("c10d::TCPStore::doWait(c10::ArrayRef<std::string>, std::chrono::duration<long>)"),
    b.native("gloo::transport::tcp::Context::createAndConnectAllPairs(gloo::IStore&)"),
    b.py("_new_process_group_helper", b.C10D),
    b.py("new_group", b.C10D),
    b.py("work"),
)


def meshing(pid: int, members: tuple[int, ...]) -> Any:
    """A rank that makes a group and waits for the key of a member of it."""
    local = NamedValue(
        function="_new_process_group_helper",
        name="global_ranks_in_group[]",
        value=None,
        type="list",
        address=0x10,
        length=len(members),
        members=members,
    )
    return b.sleeper(pid, frames=MESHED, syscall=b.POLL, named_values=(local,))


def test_the_key_of_a_member_names_the_rank_that_has_not_come() -> None:
    """Rank 1 has been in the group and waits for something else of the store."""
    waits = (
        GroupWait(pid=100, tid=100, keys=("1",), full_keys=("default_pg/0//1//cpu//0/1",)),
        GroupWait(pid=102, tid=102, keys=("ready",), full_keys=("ready",)),
    )
    threads = [
        meshing(100, (0, 2)),
        b.sleeper(101, frames=RUN_LOOP),
        b.sleeper(102, frames=IN_STORE, syscall=b.POLL),
    ]
    report = analyze(b.evidence(b.ranks(3), b.twice(*threads), group_waits=waits))
    wait = next(one for one in report.waits if one.pid == 100)
    assert wait.object.peer_rank == 2


def test_all_who_never_came_are_named_also_where_the_wait_leads_over_a_rank() -> None:
    """Rank 1 waits for the key of rank 0, and rank 0 for all the others."""
    in_init = b.sleeper(100, frames=(b.native("nanosleep"), b.py("init_process_group", b.C10D)))
    waits = (GroupWait(pid=101, tid=101, keys=("0",), full_keys=("default_pg/0//cpu//0/0",)),)
    threads = [in_init, meshing(101, ())]
    verdict = analyze(b.evidence(b.ranks(5)[:2], b.twice(*threads), group_waits=waits)).verdict
    assert [(who.rank, who.part) for who in verdict.culprits] == [(rank, Part.ABSENT) for rank in (2, 3, 4)]
    assert [victim.rank for victim in verdict.victims] == [0, 1]


def test_a_number_that_is_no_members_names_nobody() -> None:
    waits = (GroupWait(pid=100, tid=100, keys=("7",), full_keys=("default_pg/0//1//cpu//0/7",)),)
    threads = [meshing(100, (0, 2)), b.asleep(101, seconds=7200)]
    report = analyze(b.evidence(b.ranks(2), b.twice(*threads), group_waits=waits))
    assert next(one for one in report.waits if one.pid == 100).object.peer_rank is None


def test_an_address_where_nobody_listens_is_told() -> None:
    waits = tuple(
        GroupWait(pid=pid, tid=pid, address="127.0.0.1:29500", answer=StoreAnswer.NOBODY_LISTENS)
        for pid in (100, 101)
    )
    ranks = [b.rank(100 + number, number, 2, identity=AT_STORE) for number in (0, 1)]
    looks = b.twice(connecting(100), connecting(101))
    report = analyze(b.evidence(ranks, looks, group_waits=waits))
    assert report.verdict.cause is Kind.RENDEZVOUS_UNREACHABLE
    assert "the store at 127.0.0.1:29500, where nobody listens" in report.verdict.summary


@pytest.mark.parametrize("op", ["all_reduce", "all_gather_object"])
def test_who_is_ready_to_run_inside_the_call_has_come(op: str) -> None:
    frames = (b.py(op, "/lib/torch/distributed/distributed_c10d.py"), b.py("main"))
    ready = b.running(100, frames=frames)
    late = b.asleep(101, seconds=3600.0)
    others = [b.in_collective(pid, op) for pid in (102, 103)]
    report = analyze(b.evidence(b.ranks(4), b.twice(ready, late, *others)))
    named = [culprit.rank for culprit in report.verdict.culprits]
    # Of objects bytes are made first, which may take long: they may not have come.
    assert named == ([1] if op == "all_reduce" else [1, 0])


def test_a_rank_whose_others_are_not_seen_is_not_idle() -> None:
    processes = [b.rank(100, 0, 2, identity=(), ppid=1)]
    report = analyze(b.evidence(processes, b.twice(b.asleep(100, seconds=3600.0))))
    assert report.verdict.state is State.UNKNOWN
    assert any("rank 1 of 2 is not among" in line.reason for line in report.coverage)
