"""Hangs, one kind a test: what a report must say of evidence made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted, outsiders_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, Kind, Part, Role, State
from pyhangtrace.model.open_files import FileLock, Holder, LockFile
from pyhangtrace.model.report import Report
from tests.unit.analyze import builders as b


def named(report: Report) -> list[tuple[int | None, int | None, int | None, str]]:
    return [(who.rank, who.pid, who.tid, who.part.value) for who in report.verdict.culprits]


def kinds_of_chain(report: Report) -> list[str]:
    waits = {wait.id: wait for wait in report.waits}
    return [waits[one].kind.value for one in report.verdict.chain]


def check(
    evidence: Evidence,
    cause: Kind,
    *,
    symptom: Kind = Kind.COLLECTIVE_MISSING_RANK,
    state: State = State.HUNG,
    first: tuple[int | None, int, int | None] = (3, 103, 103),
) -> Report:
    report = analyze(evidence)
    verdict = report.verdict
    assert (verdict.state, verdict.symptom, verdict.cause) == (state, symptom, cause), verdict
    assert named(report)[0][:3] == first
    assert verdict.summary
    assert verdict.next_steps
    return report


def test_rank_that_sleeps_for_an_hour() -> None:
    report = check(b.missing_rank(b.asleep(103, seconds=3600)), Kind.TIMER)
    assert [victim.rank for victim in report.verdict.victims] == [0, 1, 2]
    assert report.verdict.confidence is Confidence.LIKELY
    (collective,) = report.collectives
    assert (collective.op, collective.missing, collective.entered) == ("all_reduce", (3,), (0, 1, 2))
    assert "rank 3" in report.verdict.summary.lower()


def test_stopped_rank_is_proven_at_once() -> None:
    evidence = b.missing_rank(b.stopped(103))
    report = check(evidence, Kind.PEER_STOPPED)
    assert report.verdict.confidence is Confidence.PROVEN
    assert "kill -CONT 103" in report.verdict.next_steps
    assert more_time_wanted(evidence) == 0.0


def test_rank_stopped_inside_the_collective_is_missing_all_the_same() -> None:
    inside = b.in_collective(103, state="T")
    report = check(b.missing_rank(inside), Kind.PEER_STOPPED)
    assert report.collectives[0].missing == (3,)
    assert report.collectives[0].entered == (0, 1, 2, 3)


def test_python_lock_with_recorded_holder() -> None:
    evidence = b.missing_rank(b.on_python_lock(103, owner=203), b.asleep(103, 203, seconds=3600))
    report = check(evidence, Kind.LOCK_HELD, first=(3, 103, 203))
    assert kinds_of_chain(report) == ["collective", "python_lock", "timer"]
    assert 103 not in {victim.pid for victim in report.verdict.victims}


def test_python_lock_without_recorded_holder_names_the_main_thread() -> None:
    evidence = b.missing_rank(
        b.on_python_lock(103), b.on_fd(103, 203, fd=9), fds=[b.pipe(103, 9, 5, Holder(pid=103, mode="w"))]
    )
    report = check(evidence, Kind.LOCK_HELD)
    wait = next(wait for wait in report.waits if wait.kind.value == "python_lock")
    assert wait.holder is None
    assert [who.tid for who in wait.candidates] == [203]


def test_mutex_held_by_another_thread() -> None:
    evidence = b.missing_rank(b.on_mutex(103, owner=203), b.asleep(103, 203, seconds=3600))
    check(evidence, Kind.LOCK_HELD, first=(3, 103, 203))


def test_file_lock_of_a_stopped_stranger() -> None:
    waiting = b.sleeper(103, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    lock = FileLock(
        kind="flock", access="write", pid=9911, device=1, inode=42, waiters=(103,), path="/c/lock"
    )
    stranger = b.process(9911, ppid=1, role=Role.OUTSIDER, state="T")
    evidence = b.missing_rank(waiting, b.stopped(9911), extra=[stranger], file_locks=[lock])
    report = check(evidence, Kind.FILE_LOCK_HELD)
    assert named(report)[1] == (None, 9911, 9911, "culprit")
    assert kinds_of_chain(report) == ["collective", "file_lock", "stopped"]
    assert report.verdict.next_steps[0] == "kill -CONT 9911"


def test_file_lock_holder_is_asked_for() -> None:
    waiting = b.sleeper(103, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    lock = FileLock(kind="flock", access="write", pid=9911, device=1, inode=42, waiters=(103,))
    evidence = b.missing_rank(waiting, file_locks=[lock])
    assert outsiders_wanted(evidence).pids == (9911,)
    assert analyze(evidence).verdict.state is State.UNKNOWN


def test_silent_child_behind_a_pipe() -> None:
    child = b.process(300, ppid=103)
    evidence = b.missing_rank(
        b.on_fd(103, fd=5),
        b.sleeper(300, syscall=34),
        extra=[child],
        fds=[b.pipe(103, 5, 77, Holder(pid=300, mode="w"))],
    )
    report = check(evidence, Kind.IPC_PEER_SILENT)
    assert named(report)[1][:2] == (None, 300)


def test_silent_server_behind_a_socket() -> None:
    server = b.process(900, ppid=1, role=Role.OUTSIDER)
    listening = b.connection(900, 3, 88, state="LISTEN")
    evidence = b.missing_rank(
        b.on_fd(103, fd=5, syscall=b.RECV),
        b.on_fd(900, fd=3, syscall=b.ACCEPT),
        extra=[server],
        fds=[b.connection(103, 5, 77, Holder(pid=900, mode="rw")), listening],
    )
    check(evidence, Kind.IPC_PEER_SILENT)


def test_own_write_end_keeps_the_end_of_file_away() -> None:
    evidence = b.missing_rank(b.on_fd(103, fd=5), fds=[b.pipe(103, 5, 77, Holder(pid=103, fd=6, mode="w"))])
    check(evidence, Kind.IPC_NO_EOF)


def test_full_pipe_that_the_child_does_not_read() -> None:
    evidence = b.missing_rank(
        b.on_fd(103, fd=6, syscall=b.WRITE),
        b.sleeper(300, syscall=34),
        extra=[b.process(300, ppid=103)],
        fds=[b.pipe(103, 6, 77, Holder(pid=300, mode="r"), mode="w")],
    )
    check(evidence, Kind.IPC_PIPE_FULL)


def test_stuck_data_worker() -> None:
    loader = (
        b.py("poll", "/usr/lib/python3.11/multiprocessing/connection.py"),
        b.py("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py"),
        b.py("_MultiProcessingDataLoaderIter._try_get_data", "/x/torch/utils/data/dataloader.py"),
        b.py("_BaseDataLoaderIter.__next__", "/x/torch/utils/data/dataloader.py"),
        b.py("train"),
    )
    main = b.sleeper(103, syscall=b.POLL, frames=loader, timeout_s=5.0)
    good = (
        b.py("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py"),
        b.py("_worker_loop", "/x/torch/utils/data/_utils/worker.py"),
    )
    workers = [b.process(pid, ppid=103, role=Role.DATA_WORKER) for pid in (301, 302)]
    evidence = b.missing_rank(
        main,
        b.sleeper(301, syscall=b.POLL, frames=good),
        b.asleep(302, seconds=3600),
        extra=workers,
    )
    report = check(evidence, Kind.WORKER_STUCK)
    assert named(report)[1][:2] == (None, 302)


def test_stale_lock_file_has_no_culprit() -> None:
    waiting = b.asleep(
        103,
        seconds=0.1,
        named_values=(b.local("FileBaton.wait", "self.lock_file_path", "/c/lock"),),
    )
    waiting = b.replace(
        waiting, frames=(b.py("FileBaton.wait", "/x/torch/utils/file_baton.py"), b.py("load"))
    )
    others = [b.in_collective(pid) for pid in (100, 101, 102)]
    file = LockFile(path="/c/lock", exists=True, pid=103, age_s=900, older_than_job=True)
    looks = (
        b.look(*others, waiting, lock_files=[file]),
        b.look(*others, b.moved(waiting), at=3.0, lock_files=[file]),
    )
    report = check(b.evidence(b.ranks(4), looks), Kind.FILE_LOCK_STALE)
    assert report.verdict.culprits[0].part is Part.PARTY
    assert report.verdict.next_steps == ("rm /c/lock",)


def test_baton_that_nobody_has_open_is_stale_however_young() -> None:
    waiting = b.replace(
        b.asleep(103, seconds=0.1), frames=(b.py("FileBaton.wait", "/x/torch/utils/file_baton.py"),)
    )
    others = [b.in_collective(pid) for pid in (100, 101, 102)]
    file = LockFile(path="/c/lock", exists=True, pid=103, inode=7, older_than_job=False)

    def cause(window: float, *, complete: bool = True) -> Kind | None:
        found = b.replace(file, openers_complete=complete)
        looks = (
            b.look(*others, waiting, lock_files=[found]),
            b.look(*others, b.moved(waiting), at=window, lock_files=[found]),
        )
        return analyze(b.evidence(b.ranks(4), looks)).verdict.cause

    assert cause(3.0) is Kind.FILE_LOCK_STALE
    assert cause(0.2) is not Kind.FILE_LOCK_STALE
    assert cause(3.0, complete=False) is not Kind.FILE_LOCK_STALE


@pytest.mark.parametrize(
    "change",
    [
        {"openers": (555,)},
        {"older_than_job": False},
        {"fs_type": "nfs4"},
        {"owner_pid": 555, "owner_alive": True},
    ],
)
def test_lock_file_that_somebody_may_hold_is_not_stale(change: dict[str, Any]) -> None:
    waiting = b.asleep(103, seconds=0.1)
    waiting = b.replace(waiting, frames=(b.py("FileBaton.wait", "/x/torch/utils/file_baton.py"),))
    others = [b.in_collective(pid) for pid in (100, 101, 102)]
    fields: dict[str, Any] = {"path": "/c/lock", "exists": True, "pid": 103, "older_than_job": True, **change}
    looks = b.twice(*others, waiting, lock_files=[LockFile(**fields)])
    assert analyze(b.evidence(b.ranks(4), looks)).verdict.cause is not Kind.FILE_LOCK_STALE


def test_child_that_sleeps() -> None:
    waiting = b.sleeper(103, syscall=b.WAIT4, args=(300, 0, 0, 0, 0, 0))
    evidence = b.missing_rank(waiting, b.asleep(300, seconds=3600), extra=[b.process(300, ppid=103)])
    report = check(evidence, Kind.CHILD_STUCK)
    assert named(report)[1][:2] == (None, 300)


def test_rank_that_never_started() -> None:
    frames = (
        b.native("c10d::TCPStore::doWait(c10::ArrayRef<std::string>)"),
        b.py("_new_process_group_helper", b.C10D),
        b.py("init_process_group", b.C10D),
        b.py("main"),
    )
    processes = [b.rank(100 + number, number, 4) for number in range(3)]
    looks = b.twice(*(b.sleeper(100 + number, syscall=b.POLL, frames=frames) for number in range(3)))
    report = analyze(b.evidence(processes, looks))
    assert report.verdict.state is State.HUNG
    assert report.verdict.symptom is Kind.RENDEZVOUS_MISSING_RANK
    assert named(report) == [(3, None, None, "absent")]
    assert report.workload.ranks_missing == (3,)
    assert [victim.rank for victim in report.verdict.victims] == [0, 1, 2]


def test_rank_that_exited() -> None:
    processes = [*b.ranks(4)[:3], b.process(103, state="Z", title="", exe="", exit_code=256)]
    looks = b.twice(*(b.in_collective(100 + number) for number in range(3)))
    report = analyze(b.evidence(processes, looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.PEER_EXITED)
    assert named(report) == [(3, 103, None, "culprit")]
    assert report.verdict.confidence is Confidence.PROVEN


def test_mutexes_taken_in_opposite_order() -> None:
    looks = b.twice(
        b.sleeper(100, lock=None, syscall=b.SLEEP, timeout_s=3600.0, remaining_s=3000.0),
        b.on_mutex(100, 201, owner=202, address=0x8000, asleep_for_s=0.2),
        b.on_mutex(100, 202, owner=201, address=0x9000, asleep_for_s=0.2),
    )
    evidence = b.evidence([b.process(100)], looks)
    report = analyze(evidence)
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
    assert report.verdict.confidence is Confidence.PROVEN
    assert {(who.tid, who.part) for who in report.verdict.culprits} == {(201, Part.PARTY), (202, Part.PARTY)}
    assert len(report.verdict.cycle) == 2
    assert more_time_wanted(evidence) == 0.0


def test_mutex_that_its_own_thread_holds() -> None:
    report = analyze(b.evidence([b.process(100)], b.twice(b.on_mutex(100, owner=100))))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)


def test_gil_against_mutex() -> None:
    waiting = b.on_gil(100, 202)
    holder = b.on_mutex(100, 201, owner=202, holds_gil=True)
    looks = (b.look(holder, waiting), b.look(holder, b.moved(waiting), at=0.1))
    report = analyze(b.evidence([b.process(100)], looks))
    assert (report.verdict.state, report.verdict.symptom, report.verdict.cause) == (
        State.HUNG,
        Kind.LOCK_GIL,
        Kind.LOCK_CYCLE,
    )


def test_gil_held_by_a_sleeper() -> None:
    waiting = b.on_gil(100)
    holder = b.asleep(100, 201, seconds=3600, holds_gil=True)
    looks = (b.look(holder, waiting), b.look(holder, b.moved(waiting), at=0.1))
    report = analyze(b.evidence([b.process(100)], looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_GIL)
    assert named(report)[0][:3] == (None, 100, 201)


def test_mutex_inherited_through_fork() -> None:
    parent = b.process(100, exe="/usr/bin/python3", title="python serve.py")
    child = b.process(101, ppid=100, exe="/usr/bin/python3", title="python serve.py")
    looks = b.twice(
        b.sleeper(100, syscall=b.WAIT4, args=(101, 0, 0, 0, 0, 0)),
        b.asleep(100, 201, seconds=3600),
        b.on_mutex(101, owner=201),
    )
    report = analyze(b.evidence([parent, child], looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_AFTER_FORK)
    assert named(report)[0][:3] == (None, 101, 101)
    assert [victim.pid for victim in report.verdict.victims] == [100]


@pytest.mark.parametrize(("owner", "cause"), [(201, Kind.LOCK_AFTER_FORK), (303, Kind.LOCK_OWNER_GONE)])
def test_who_locked_a_mutex_before_the_fork_and_has_ended_since_is_told_from_a_thread_of_the_child(
    owner: int, cause: Kind
) -> None:
    parent = b.process(100, exe="/usr/bin/python3", title="python serve.py")
    child = b.process(300, ppid=100, exe="/usr/bin/python3", title="python serve.py")
    looks = b.twice(
        b.sleeper(100, syscall=b.WAIT4, args=(300, 0, 0, 0, 0, 0)),
        b.on_mutex(300, owner=owner),
        b.asleep(300, 302, seconds=3600),
    )
    report = analyze(b.evidence([parent, child], looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, cause)


def test_mutex_whose_owner_ended() -> None:
    looks = b.twice(b.on_mutex(100, owner=999), b.asleep(100, 201, seconds=5))
    report = analyze(b.evidence([b.process(100)], looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.LOCK_OWNER_GONE)
    wait = next(wait for wait in report.waits if wait.kind.value == "mutex")
    assert wait.holder is not None
    assert not wait.holder.alive


def test_two_processes_that_read_from_each_other() -> None:
    ends = [
        b.connection(100, 5, 70, Holder(pid=101, mode="rw")),
        b.connection(101, 6, 71, Holder(pid=100, mode="rw")),
    ]
    looks = b.twice(b.on_fd(100, fd=5, asleep_for_s=70.0), b.on_fd(101, fd=6, asleep_for_s=70.0), fds=ends)
    report = analyze(b.evidence([b.process(100), b.process(101)], looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.IPC_CYCLE)
    assert {who.part for who in report.verdict.culprits} == {Part.PARTY}


def test_cycle_with_a_way_out_is_no_deadlock() -> None:
    """The pipe has a second writer that works: any of them may write."""
    ends = [
        b.pipe(100, 5, 70, Holder(pid=101, mode="w"), Holder(pid=102, mode="w")),
        b.pipe(101, 6, 71, Holder(pid=100, mode="w")),
    ]
    looks = b.twice(b.on_fd(100, fd=5), b.on_fd(101, fd=6), b.running(102), fds=ends)
    report = analyze(b.evidence([b.process(pid) for pid in (100, 101, 102)], looks))
    assert report.verdict.state is not State.HUNG


def test_ranks_in_different_operations_are_all_parties() -> None:
    looks = b.twice(
        b.in_collective(100, "all_reduce"),
        b.in_collective(101, "all_reduce"),
        b.in_collective(102, "broadcast", line=9),
    )
    report = analyze(b.evidence(b.ranks(3), looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.COLLECTIVE_OP_MISMATCH)
    assert {(who.rank, who.part) for who in report.verdict.culprits} == {(n, Part.PARTY) for n in range(3)}
    assert report.verdict.cycle == ()
    assert report.verdict.diverged_at is not None
    assert {side.ranks for side in report.verdict.diverged_at.sides} == {(0, 1), (2,)}


def test_two_groups_in_opposite_order() -> None:
    looks = b.twice(b.in_collective(100, line=10), b.in_collective(101, line=14))
    report = analyze(b.evidence(b.ranks(2), looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.COLLECTIVE_GROUP_CYCLE)
    assert len(report.verdict.cycle) == 2
    assert report.verdict.confidence is Confidence.POSSIBLE


def test_both_receive() -> None:
    def receiving(pid: int, source: int) -> Any:
        frames = (b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("recv", b.C10D), b.py("main"))
        return b.sleeper(pid, frames=frames, named_values=(b.local("recv", "src", source),))

    report = analyze(b.evidence(b.ranks(2), b.twice(receiving(100, 1), receiving(101, 0))))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.P2P_CYCLE)
    assert {who.part for who in report.verdict.culprits} == {Part.PARTY}


def test_receive_from_a_rank_that_sleeps() -> None:
    frames = (b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("recv", b.C10D), b.py("main"))
    receiving = b.sleeper(100, frames=frames, named_values=(b.local("recv", "src", 2),))
    looks = b.twice(receiving, b.asleep(101, seconds=1), b.asleep(102, seconds=3600))
    report = analyze(b.evidence(b.ranks(3), looks))
    assert (report.verdict.state, report.verdict.symptom) == (State.HUNG, Kind.P2P_UNMATCHED)
    assert named(report)[0][:2] == (2, 102)


def test_barrier_of_multiprocessing() -> None:
    looks = b.twice(b.in_barrier(100), b.in_barrier(101), b.asleep(102, seconds=3600))
    report = analyze(b.evidence(b.ranks(3), looks))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.TIMER)
    assert named(report)[0][:2] == (2, 102)
    assert report.collectives[0].backend == "multiprocessing"


def test_job_that_is_stopped_as_a_whole() -> None:
    report = analyze(b.evidence([b.process(100)], b.twice(b.stopped(100), b.stopped_thread(100, 201))))
    verdict = report.verdict
    assert (verdict.state, verdict.symptom, verdict.cause) == (State.HUNG, None, Kind.PEER_STOPPED)
    assert "kill -CONT 100" in verdict.next_steps
    assert verdict.confidence is Confidence.PROVEN


def test_traced_process_names_its_tracer() -> None:
    traced = b.replace(b.stopped(100), state="t")
    report = analyze(b.evidence([b.process(100, state="t", tracer_pid=77)], b.twice(traced)))
    assert report.verdict.cause is Kind.OBSERVER_STUCK
    assert "77" in report.verdict.summary


@pytest.mark.parametrize(("seconds", "state"), [(10.0, State.SLOW), (300.0, State.HUNG)])
def test_file_server_that_does_not_answer(seconds: float, state: State) -> None:
    reading = b.on_fd(103, fd=5, state="D", wchan="rpc_wait_bit_killable", asleep_for_s=seconds)
    file = b.FdFacts(pid=103, fd=5, kind=b.FdKind.FILE, target="/mnt/weights", inode=9)
    check(b.missing_rank(reading, fds=[file]), Kind.IO_STALLED, state=state)


def test_rank_that_holds_a_file_lock_another_rank_needs_is_in_a_cycle_with_it() -> None:
    """Rank 2 went on to the collective with the lock still held; rank 3 cannot come without it."""
    waiting = b.sleeper(103, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    lock = FileLock(kind="flock", access="write", pid=102, device=1, inode=42, waiters=(103,), path="/c/lock")
    report = analyze(b.missing_rank(waiting, file_locks=[lock]))
    verdict = report.verdict
    assert (verdict.state, verdict.symptom, verdict.cause) == (
        State.HUNG,
        Kind.COLLECTIVE_MISSING_RANK,
        Kind.LOCK_CYCLE,
    )
    assert {(who.rank, who.part) for who in verdict.culprits} == {(2, Part.PARTY), (3, Part.PARTY)}
    assert {victim.rank for victim in verdict.victims} == {0, 1}


def test_rank_whose_output_nobody_reads() -> None:
    reader = b.process(900, ppid=1, role=Role.OUTSIDER, state="T")
    evidence = b.missing_rank(
        b.on_fd(103, fd=1, syscall=b.WRITE),
        b.stopped(900),
        extra=[reader],
        fds=[b.pipe(103, 1, 77, Holder(pid=900, mode="r"), mode="w")],
    )
    report = check(evidence, Kind.IPC_PIPE_FULL)
    assert named(report)[1][:2] == (None, 900)
    assert "kill -CONT 900" in report.verdict.next_steps


def test_two_ranks_missing_for_reasons_of_their_own_are_both_named() -> None:
    looks = b.twice(b.in_collective(100), b.in_collective(101), b.asleep(102, seconds=3600), b.stopped(103))
    report = analyze(b.evidence(b.ranks(4), looks))
    assert {who.rank for who in report.verdict.culprits} == {2, 3}


def test_rank_that_waits_for_another_missing_rank_is_no_culprit_of_its_own() -> None:
    looks = b.twice(
        b.in_collective(100),
        b.in_collective(101),
        b.asleep(102, seconds=3600),
        b.on_fd(103, fd=5),
        fds=[b.pipe(103, 5, 77, Holder(pid=102, mode="w"))],
    )
    report = analyze(b.evidence(b.ranks(4), looks))
    assert report.verdict.state is State.HUNG
    assert named(report)[0][:2] == (2, 102)


def test_kernel_without_counters_proves_nothing() -> None:
    threads = [
        b.in_collective(100, run_ns=0, slices=0, asleep_for_s=None),
        b.asleep(101, seconds=3600, run_ns=0, slices=0, asleep_for_s=None),
    ]
    report = analyze(b.evidence(b.ranks(2), b.twice(*threads)))
    assert report.verdict.state is State.UNKNOWN


def test_phase_is_told() -> None:
    loading = b.asleep(103, seconds=3600)
    loading = b.replace(
        loading, frames=(*loading.frames, b.py("ModelRunner.load_model", "/x/sglang/model_runner.py"))
    )
    report = analyze(b.missing_rank(loading))
    assert report.workload.phase is not None
    assert report.workload.phase.name == "weight_loading"
    assert "weight loading" in report.verdict.summary


def test_named_pipe_that_nobody_opens_at_the_other_end() -> None:
    opening = b.sleeper(103, syscall=257, wchan="wait_for_partner")
    check(b.missing_rank(opening), Kind.IPC_PEER_SILENT)


def test_parent_of_a_vfork_whose_child_sleeps() -> None:
    waiting = b.sleeper(103, state="D", syscall=58, wchan="kernel_clone")
    evidence = b.missing_rank(waiting, b.asleep(300, seconds=3600), extra=[b.process(300, ppid=103)])
    check(evidence, Kind.CHILD_STUCK)


def test_read_write_lock_held_by_a_writer() -> None:
    lock = b.LockFacts(
        kind="rwlock_read", address=0x40, uaddr=0x48, op=0, value=2, owner_tid=203, owner_exact=True
    )
    report = check(
        b.missing_rank(b.sleeper(103, lock=lock), b.asleep(103, 203, seconds=3600)),
        Kind.LOCK_HELD,
        first=(3, 103, 203),
    )
    assert kinds_of_chain(report) == ["collective", "rwlock", "timer"]


def test_mutex_shared_between_processes() -> None:
    waiting = b.on_mutex(103, owner=102, shared_key=(1, 2, 3))
    looks = b.twice(b.in_collective(100), b.in_collective(101), b.asleep(102, seconds=3600), waiting)
    report = analyze(b.evidence(b.ranks(4), looks))
    assert (report.verdict.state, report.verdict.culprits[0].rank) == (State.HUNG, 2)
    wait = next(wait for wait in report.waits if wait.pid == 103)
    assert wait.holder is not None
    assert wait.holder.pid == 102


def test_serving_thread_met_on_the_cpu_for_a_moment_is_no_way_out() -> None:
    """A loop of gloo wakes now and then; that a lock's holder waits for data does not end by it."""
    loop = b.sleeper(103, 204, comm="gloo_tcp_loop", frames=())
    awake = b.replace(b.moved(loop, 50_000), state="R", running=True, syscall=None)
    threads = [
        *(b.in_collective(pid) for pid in (100, 101, 102)),
        b.on_python_lock(103, owner=203),
        b.on_fd(103, 203, fd=9),
    ]
    fds = [b.pipe(103, 9, 5, Holder(pid=103, mode="w"))]
    looks = (b.look(*threads, loop, fds=fds), b.look(*threads, awake, at=0.1, fds=fds))
    check(b.evidence(b.ranks(4), looks), Kind.LOCK_HELD, first=(3, 103, 203))
