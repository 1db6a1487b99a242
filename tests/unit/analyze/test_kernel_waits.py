"""Waits for objects that the kernel keeps: what they are called, who is recorded, and that nobody is accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Edge, FdKind, Kind, Role, State, WaitKind
from pyhangtrace.model.open_files import FdFacts, Holder, IpcFacts
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.report import Report, Wait
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

SEMOP, MSGSND, IO_URING, WAITID, OPENAT, VFORK, WAIT4, EPOLL_WAIT, PAUSE = (
    65,
    69,
    426,
    247,
    257,
    58,
    61,
    232,
    34,
)
NOBODY = "no owner recorded"


def fd(pid: int, number: int, kind: FdKind, target: str, **more: object) -> FdFacts:
    return FdFacts(pid=pid, fd=number, kind=kind, target=target, mode="rw", **more)  # type: ignore[arg-type]


def report_of(
    *threads: ThreadSample,
    fds: list[FdFacts] | None = None,
    ipc: tuple[IpcFacts, ...] = (),
    processes: list[ProcessFacts] | None = None,
) -> Report:
    looks = tuple(replace(look, ipc=ipc) for look in b.twice(*threads, fds=fds or []))
    pids = sorted({thread.pid for thread in threads})
    return analyze(b.evidence(processes or [b.process(pid) for pid in pids], looks))


def wait_of(report: Report, pid: int) -> Wait:
    return next(wait for wait in report.waits if wait.pid == pid)


def says(wait: Wait, words: str) -> bool:
    return any(words in line for line in wait.evidence)


def test_who_else_has_an_event_counter_is_a_candidate_and_not_accused() -> None:
    counter = fd(
        100,
        5,
        FdKind.EVENTFD,
        "anon_inode:[eventfd]",
        info=(("eventfd-count", 0), ("eventfd-id", 7)),
        others=(Holder(pid=101, fd=5, mode="rw"),),
    )
    report = report_of(b.on_fd(100, fd=5), b.asleep(101, seconds=3600), fds=[counter])
    wait = wait_of(report, 100)
    assert [one.pid for one in wait.candidates] == [101]
    assert wait.holder is None
    assert wait.object.name == "eventfd"
    assert says(wait, NOBODY)
    assert says(wait, "counter 0")
    assert report.verdict.state is State.IDLE


def test_timer_with_the_time_left() -> None:
    timer = fd(100, 5, FdKind.TIMERFD, "anon_inode:[timerfd]", info=(("it_value_ns", 90_000_000_000),))
    wait = wait_of(report_of(b.on_fd(100, fd=5), fds=[timer]), 100)
    assert (wait.kind, wait.ends_by_itself, wait.object.remaining_s) == (WaitKind.TIMER, True, 90.0)
    unset = replace(timer, info=(("it_value_ns", 0),))
    wait = wait_of(report_of(b.on_fd(100, fd=5), fds=[unset]), 100)
    assert (wait.ends_by_itself, wait.object.remaining_s) == (False, None)


def test_members_of_a_set_and_who_could_make_them_ready() -> None:
    fds = [
        b.pipe(100, 5, 70, Holder(pid=101, mode="w")),
        fd(100, 6, FdKind.EVENTFD, "anon_inode:[eventfd]", info=(("eventfd-count", 0),)),
    ]
    waiting = b.sleeper(100, syscall=b.POLL, args=(1, 2, 0, 0, 0, 0), io_fds=(5, 6))
    report = report_of(waiting, b.asleep(101, seconds=3600), fds=fds)
    wait = wait_of(report, 100)
    assert wait.edge is Edge.ANY
    assert [one.pid for one in wait.candidates] == [101]
    assert says(wait, "any of 2 descriptors")
    assert says(wait, "could be made ready by pid 101")
    assert report.verdict.state is State.IDLE


def test_who_reads_makes_a_pipe_ready_that_is_watched_for_room() -> None:
    full = b.pipe(100, 5, 70, Holder(pid=101, mode="r"), Holder(pid=102, mode="w"), mode="w")
    waiting = b.sleeper(100, syscall=b.POLL, args=(1, 1, 0, 0, 0, 0), io_fds=(5,), room_fds=(5,))
    wait = wait_of(
        report_of(waiting, b.asleep(101, seconds=3600), b.asleep(102, seconds=3600), fds=[full]), 100
    )
    assert wait.holder is not None
    assert wait.holder.pid == 101
    assert says(wait, "is full")
    closing = replace(waiting, room_fds=())
    wait = wait_of(report_of(closing, b.asleep(101, seconds=3600), fds=[full]), 100)
    assert wait.holder is not None
    assert wait.holder.pid == 101
    assert not says(wait, "is full")
    assert not says(wait, "is empty")


def test_a_set_in_a_set() -> None:
    fds = [
        fd(100, 3, FdKind.EPOLL, "anon_inode:[eventpoll]", watches=(4, 3)),
        fd(100, 4, FdKind.EPOLL, "anon_inode:[eventpoll]", watches=(5, 3)),
        b.pipe(100, 5, 70, Holder(pid=101, mode="w")),
    ]
    waiting = b.sleeper(100, syscall=EPOLL_WAIT, args=(3, 0, 0, 0, 0, 0), io_fds=(3,))
    wait = wait_of(report_of(waiting, b.asleep(101, seconds=3600), fds=fds), 100)
    assert (wait.kind, wait.object.fd) == (WaitKind.PIPE, 5)


@pytest.mark.parametrize(
    ("syscall", "args"),
    [(WAIT4, (-102 % (1 << 64), 0)), (WAIT4, (0, 0)), (WAITID, (2, 102)), (WAITID, (2, 0))],
)
def test_children_of_a_process_group(syscall: int, args: tuple[int, ...]) -> None:
    group = 102 if args[-1] == 102 or args[0] > 102 else 100
    processes = [
        b.process(100, pgid=100),
        b.process(101, ppid=100, pgid=101),
        b.process(102, ppid=100, pgid=group),
    ]
    waiting = b.sleeper(100, syscall=syscall, args=(*args, 0, 0))
    report = report_of(waiting, b.asleep(101, seconds=3600), b.asleep(102, seconds=3600), processes=processes)
    wait = wait_of(report, 100)
    assert wait.holder is not None
    assert wait.holder.pid == 102
    assert says(wait, "process group")


def test_cycle_through_a_set_with_a_way_out_is_no_proof() -> None:
    """100 polls pipes of 101 and 102; 101 reads from 100, and 102 works."""
    fds = [
        b.pipe(100, 5, 70, Holder(pid=101, mode="w")),
        b.pipe(100, 6, 71, Holder(pid=102, mode="w")),
        b.pipe(101, 7, 72, Holder(pid=100, mode="w")),
    ]
    waiting = b.sleeper(100, syscall=b.POLL, args=(1, 2, 0, 0, 0, 0), io_fds=(5, 6))
    caught = report_of(waiting, b.on_fd(101, fd=7), b.running(102), fds=fds)
    assert caught.verdict.state is not State.HUNG
    assert caught.verdict.cycle == ()


def test_cycle_through_a_set_all_of_whose_members_are_caught_is_one() -> None:
    fds = [
        b.pipe(100, 5, 70, Holder(pid=101, mode="w")),
        b.pipe(100, 6, 71, Holder(pid=101, mode="w")),
        b.pipe(101, 7, 72, Holder(pid=100, mode="w")),
    ]
    waiting = b.sleeper(100, syscall=b.POLL, args=(1, 2, 0, 0, 0, 0), io_fds=(5, 6))
    verdict = report_of(waiting, b.on_fd(101, fd=7), fds=fds).verdict
    assert verdict.state is State.HUNG
    assert len(verdict.cycle) == 2


def test_process_behind_a_pidfd() -> None:
    handle = fd(100, 5, FdKind.PIDFD, "anon_inode:[pidfd]", info=(("Pid", 101),))
    processes = [b.process(100), b.process(101, ppid=100), b.process(102, ppid=100)]
    waiting = b.sleeper(100, syscall=WAITID, args=(3, 5, 0, 4, 0, 0))
    threads = (b.asleep(101, seconds=3600), b.asleep(102, seconds=3600))
    for each in (waiting, b.sleeper(100, syscall=b.POLL, args=(1, 1, 0, 0, 0, 0), io_fds=(5,))):
        wait = wait_of(report_of(each, *threads, fds=[handle], processes=processes), 100)
        assert wait.kind is WaitKind.CHILD
        assert wait.holder is not None
        assert wait.holder.pid == 101


def semaphore(last: int, value: int = 0) -> IpcFacts:
    return IpcFacts(pid=100, kind="sem", id=4, key=17, number=1, value=value, waiting=1, last_pid=last)


def test_who_changed_a_semaphore_last_is_a_candidate_and_not_accused() -> None:
    taker = b.sleeper(100, syscall=SEMOP, args=(4, 1, 1, 0, 0, 0), semaphores=((1, -1),))
    report = report_of(taker, b.asleep(101, seconds=3600), ipc=(semaphore(101),))
    wait = wait_of(report, 100)
    assert wait.kind is WaitKind.SEMAPHORE
    assert wait.object.name == "semaphore 1 of set 4, key 0x11"
    assert [one.pid for one in wait.candidates] == [101]
    assert says(wait, "value 0")
    assert says(wait, NOBODY)
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()
    own = wait_of(report_of(taker, ipc=(semaphore(100),)), 100)
    assert own.candidates == ()


def test_full_message_queue_accuses_nobody() -> None:
    queue = IpcFacts(pid=100, kind="msg", id=9, messages=4, queued=400, last_sender=100, last_receiver=101)
    report = report_of(
        b.sleeper(100, syscall=MSGSND, args=(9, 0, 0, 0, 0, 0)), b.asleep(101, seconds=3600), ipc=(queue,)
    )
    wait = wait_of(report, 100)
    assert [one.pid for one in wait.candidates] == [101]
    assert says(wait, "full: 4 messages")
    assert report.verdict.culprits == ()


def test_pending_requests_of_a_ring() -> None:
    ring = fd(
        100,
        5,
        FdKind.IO_URING,
        "anon_inode:[io_uring]",
        info=(("CachedSqHead", 9), ("CachedCqTail", 7), ("CqHead", 7), ("CqTail", 7), ("SqThread", 33)),
    )
    wait = wait_of(report_of(b.sleeper(100, syscall=IO_URING, args=(5, 0, 2, 1, 0, 0)), fds=[ring]), 100)
    assert wait.object.name == "io_uring"
    assert says(
        wait, "waits for 2 completions; 2 requests pending, 0 completions not taken, polled by thread 33"
    )


def test_lease_that_is_to_be_given_back() -> None:
    waiting = b.sleeper(
        100, syscall=OPENAT, args=(0, 1, 0, 0, 0, 0), wchan="__break_lease", path="/c/file", timeout_s=45.0
    )
    lock = b.FileLock(kind="lease", access="unlck", pid=101, device=1, inode=2, waiters=(100,))
    looks = tuple(replace(look, file_locks=(lock,)) for look in b.twice(waiting, b.asleep(101, seconds=3600)))
    wait = wait_of(analyze(b.evidence([b.process(100), b.process(101)], looks)), 100)
    assert wait.holder is not None
    assert (wait.holder.pid, wait.object.path, wait.ends_by_itself) == (101, "/c/file", True)


def test_frozen_process() -> None:
    group = "/sys/fs/cgroup/freezer/jobs"
    processes = [b.process(100), replace(b.process(101, ppid=100), frozen_by=group)]
    waiting = b.sleeper(100, syscall=b.WAIT4, args=(101, 0, 0, 0, 0, 0))
    report = report_of(waiting, b.sleeper(101, state="D"), processes=processes)
    wait = wait_of(report, 101)
    assert (wait.kind, wait.object.name, wait.object.path) == (WaitKind.STOPPED, "freezer", group)
    assert says(wait, NOBODY)
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.PEER_STOPPED)
    assert f"frozen by the control group {group}" in report.verdict.summary
    assert any("echo THAWED" in step for step in report.verdict.next_steps)


def test_process_that_has_been_thawed_meanwhile() -> None:
    process = replace(b.process(100), frozen_by="/sys/fs/cgroup/freezer/jobs")
    for wchan, kind in (("__refrigerator", WaitKind.STOPPED), ("hrtimer_nanosleep", WaitKind.TIMER)):
        report = report_of(b.asleep(100, seconds=0.5, wchan=wchan), processes=[process])
        assert wait_of(report, 100).kind is kind


def test_process_that_the_unified_hierarchy_froze() -> None:
    group = "/sys/fs/cgroup/jobs"
    process = replace(b.process(100), frozen_by=group)
    report = report_of(b.sleeper(100, wchan="get_signal"), processes=[process])
    assert (wait_of(report, 100).kind, wait_of(report, 100).object.path) == (WaitKind.STOPPED, group)


def test_loop_that_looks_for_a_file_is_not_decided() -> None:
    naps = b.asleep(100, seconds=0.1, polls_for="except FileExistsError")
    report = report_of(naps)
    wait = wait_of(report, 100)
    assert (wait.kind, wait.ends_by_itself) == (WaitKind.LOCK_FILE, False)
    assert says(wait, NOBODY)
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())


def test_process_that_its_quota_keeps_off_the_cpu() -> None:
    group = "/sys/fs/cgroup/cpu/jobs"
    for took, state in (
        (0.09, State.SLOW),
        (0.04, State.RUNNING),
        (0.0, State.RUNNING),
        (None, State.RUNNING),
    ):
        process = replace(b.process(100), cpu_cgroup=group, throttled_s_in_window=took)
        verdict = report_of(b.running(100), processes=[process]).verdict
        assert verdict.state is state
        assert verdict.cause is (Kind.CPU_THROTTLED if state is State.SLOW else None)
        assert any(group in step for step in verdict.next_steps) is (state is State.SLOW)


def test_tracer_of_one_thread() -> None:
    report = report_of(b.sleeper(100), b.sleeper(100, 105, state="t", tracer_pid=900))
    wait = next(wait for wait in report.waits if wait.tid == 105)
    assert wait.holder is not None
    assert wait.holder.pid == 900


@pytest.mark.parametrize("tracer", [b.on_fd(102, fd=5, syscall=b.ACCEPT), b.sleeper(102, syscall=PAUSE)])
@pytest.mark.parametrize("role", [Role.OTHER, Role.LAUNCHER])
def test_tracer_inside_of_the_job_keeps_it_stopped(tracer: ThreadSample, role: Role) -> None:
    waits = b.sleeper(100, syscall=WAIT4, args=(101, 0, 0, 0, 0, 0))
    stopped = b.sleeper(101, state="t", tracer_pid=102)
    processes = [b.process(100, role=role), b.process(101, ppid=100), b.process(102, ppid=100)]
    fds = [b.connection(102, 5, 70, state="LISTEN")]
    verdict = report_of(waits, stopped, tracer, fds=fds, processes=processes).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.OBSERVER_STUCK)
    assert "102" in verdict.summary
    # One that others of the job go on beside, and that a signal stopped, is somebody's business.
    by_signal = replace(stopped, state="T", tracer_pid=0)
    beside = report_of(by_signal, tracer, fds=fds, processes=processes[1:]).verdict
    assert beside.state is State.IDLE


def test_vfork_waits_for_the_child_that_runs_in_its_memory() -> None:
    waiting = b.sleeper(100, state="D", syscall=VFORK, wchan="kernel_clone")
    processes = [
        b.process(100, exe="/bin/x", title="x"),
        b.process(101, ppid=100, exe="/bin/x", title="x"),
        b.process(102, ppid=100, exe="/bin/y", title="y"),
    ]
    threads = (b.asleep(101, seconds=3600), b.asleep(102, seconds=3600))
    wait = wait_of(report_of(waiting, *threads, processes=processes), 100)
    assert wait.holder is not None
    assert wait.holder.pid == 101


def test_server_of_a_file_system_is_a_candidate() -> None:
    file = fd(
        100,
        5,
        FdKind.FILE,
        "/m/file",
        fs_type="fuse.x",
        mount="/m",
        peers=(Holder(pid=101, fd=3, mode="rw"),),
    )
    reading = b.on_fd(100, fd=5, state="D", wchan="request_wait_answer")
    wait = wait_of(report_of(reading, b.asleep(101, seconds=3600), fds=[file]), 100)
    assert [one.pid for one in wait.candidates] == [101]
    assert says(wait, "file system of type fuse.x mounted at /m")


def test_server_of_a_mapped_file_is_a_candidate() -> None:
    fault = b.sleeper(
        100,
        state="D",
        syscall=-1,
        args=(),
        wchan="request_wait_answer",
        path="/m/file",
        path_mount="fuse.sshfs mounted at /m from host:/",
        fuse_connection=39,
    )
    served = fd(101, 3, FdKind.DEVICE, "/dev/fuse", info=(("fuse_connection", 39),))
    other = fd(102, 3, FdKind.DEVICE, "/dev/fuse", info=(("fuse_connection", 40),))
    sleepers = [b.asleep(pid, seconds=3600) for pid in (101, 102)]
    wait = wait_of(report_of(fault, *sleepers, fds=[served, other]), 100)
    assert (wait.kind, wait.object.path) == (WaitKind.PAGE_FAULT, "/m/file")
    assert [one.pid for one in wait.candidates] == [101]
    assert wait.holder is None
    assert says(wait, f"served by pid 101; {NOBODY}")


def test_fault_that_a_userfaultfd_has_to_answer() -> None:
    handle = fd(101, 3, FdKind.USERFAULTFD, "anon_inode:[userfaultfd]", info=(("pending", 1),))
    faulting = b.sleeper(100, state="D", syscall=-1, args=(), wchan="handle_userfault")
    wait = wait_of(report_of(faulting, b.asleep(101, seconds=3600), fds=[handle]), 100)
    assert wait.kind is WaitKind.PAGE_FAULT
    assert [one.pid for one in wait.candidates] == [101]
    assert says(wait, NOBODY)


def test_who_sleeps_inside_of_a_memory_map_that_others_queue_for() -> None:
    inside = b.sleeper(100, 104, state="D", syscall=11, wchan="request_wait_answer")
    queued = b.sleeper(100, 105, state="D", syscall=9, wchan="rwsem_down_write_slowpath")
    faulting = b.sleeper(100, 106, state="D", syscall=-1, args=(), wchan="rwsem_down_read_slowpath")
    report = report_of(b.sleeper(100), inside, queued, faulting)
    for tid in (105, 106):
        wait = next(wait for wait in report.waits if wait.tid == tid)
        assert [(one.pid, one.tid) for one in wait.candidates] == [(100, 104)]
        assert says(wait, NOBODY)


def test_the_kernel_says_who_has_a_memory_map_that_others_queue_for() -> None:
    inside = b.sleeper(100, 104, state="D", syscall=11, wchan="request_wait_answer")
    reads = b.sleeper(100, 105, state="D", syscall=-1, args=(), wchan="request_wait_answer")
    queued = b.sleeper(100, 106, state="D", syscall=9, wchan="rwsem_down_write_slowpath")
    process = b.process(100, problem="mmap_lock_held", map_lock_tid=104)
    report = report_of(b.sleeper(100), inside, reads, queued, processes=[process])
    wait = next(wait for wait in report.waits if wait.tid == 106)
    assert wait.holder is not None
    assert (wait.holder.pid, wait.holder.tid) == (100, 104)
    assert wait.candidates == ()
    assert says(wait, "which thread 104 has")
    assert not says(wait, NOBODY)
