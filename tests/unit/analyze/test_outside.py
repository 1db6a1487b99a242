"""Idle only on positive evidence: somebody waits for the world outside, and everybody else waits for him."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence, Look
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, Role, State
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder, LockFile
from pyhangtrace.model.processes import ProcessFacts, PythonFacts
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

LISTENING = b.connection(100, 5, 70, state="LISTEN")
LOOP = (
    b.py("EpollSelector.select", "/usr/lib/python3.11/selectors.py"),
    b.py("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py"),
    b.py("main"),
)
EVENT = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("main"))
SIGTERM = 15
PYTHON = PythonFacts(version="3.11.2", layout_from="test")


def verdict_of(evidence: Evidence) -> Any:
    verdict = analyze(evidence).verdict
    if verdict.state in (State.IDLE, State.UNKNOWN):
        assert verdict.culprits == ()
    return verdict


def state_of(processes: list[ProcessFacts], looks: tuple[Look, ...]) -> State:
    return verdict_of(b.evidence(processes, looks)).state  # type: ignore[no-any-return]


def behind_flock(pid: int, holder: int) -> tuple[Any, FdFacts, FileLock]:
    file = FdFacts(pid=pid, fd=9, kind=FdKind.FILE, target="/run/accept.lock", inode=7, device=1, mode="w")
    lock = FileLock(
        kind="flock",
        access="write",
        pid=holder,
        device=1,
        inode=7,
        waiters=(pid,),
        openers=(holder,),
        holders=(Holder(pid=holder, fd=7, mode="rw"),),
    )
    return b.on_fd(pid, fd=9, syscall=b.FLOCK), file, lock


def test_accept_mutex_of_threads() -> None:
    first = b.on_fd(100, 201, fd=5, syscall=b.ACCEPT)
    others = [b.on_python_lock(100, 202 + number, owner=201) for number in range(2)]
    looks = b.twice(b.asleep(100, seconds=30), first, *others, fds=[LISTENING])
    assert state_of([b.process(100)], looks) is State.IDLE


def test_accept_mutex_of_processes() -> None:
    waiter, file, lock = behind_flock(101, 100)
    looks = b.twice(b.on_fd(100, fd=5, syscall=b.ACCEPT), waiter, fds=[LISTENING, file], file_locks=[lock])
    assert state_of([b.process(100), b.process(101, ppid=100)], looks) is State.IDLE


def test_lock_of_an_idle_stranger_that_a_rank_waits_for_keeps_the_group() -> None:
    waiter, file, lock = behind_flock(101, 900)
    server = b.on_fd(900, fd=5, syscall=b.ACCEPT)
    listening = b.connection(900, 5, 70, state="LISTEN")
    looks = b.twice(b.in_collective(100), waiter, server, fds=[file, listening], file_locks=[lock])
    stranger = b.process(900, ppid=1, role=Role.OUTSIDER)
    verdict = verdict_of(b.evidence([*b.ranks(2), stranger], looks))
    assert (verdict.state, verdict.cause, verdict.culprits[0].rank) == (State.HUNG, Kind.FILE_LOCK_HELD, 1)


@pytest.mark.parametrize(("program", "state"), [("httpd", State.IDLE), ("other", State.UNKNOWN)])
def test_turns_are_taken_by_processes_that_belong_together(program: str, state: State) -> None:
    waiter, file, lock = behind_flock(101, 900)
    server = b.on_fd(900, fd=5, syscall=b.ACCEPT)
    listening = b.connection(900, 5, 70, state="LISTEN")
    looks = b.twice(waiter, server, fds=[file, listening], file_locks=[lock])
    stranger = b.process(900, ppid=1, role=Role.OUTSIDER, comm=program)
    assert state_of([b.process(101, comm="httpd"), stranger], looks) is state


def test_lock_held_by_one_that_waits_for_a_thread_is_no_turn() -> None:
    holder = b.sleeper(100, 201, frames=EVENT)
    looks = b.twice(b.on_python_lock(100, owner=201), holder)
    assert state_of([b.process(100)], looks) is State.UNKNOWN


@pytest.mark.parametrize("owner", [201, None])
def test_lock_held_while_reading_standard_input(owner: int | None) -> None:
    reader = b.on_fd(100, 201, fd=0)
    stdin = b.pipe(100, 0, 70, Holder(pid=900, mode="w"))
    shell = b.sleeper(900, syscall=b.WAIT4, args=(0, 0, 0, 0, 0, 0))
    looks = b.twice(b.on_python_lock(100, owner=owner), reader, shell, fds=[stdin])
    assert state_of([b.process(100), b.process(900, ppid=1, role=Role.OUTSIDER)], looks) is State.IDLE


@pytest.mark.parametrize(
    ("caught", "state"),
    [((), State.HUNG), ((2,), State.HUNG), ((2, SIGTERM), State.IDLE), (None, State.UNKNOWN)],
)
def test_pipe_to_oneself_is_written_by_handlers_of_signals(
    caught: tuple[int, ...] | None, state: State
) -> None:
    looks = b.twice(b.on_fd(100, fd=3), fds=[b.pipe(100, 3, 70, Holder(pid=100, mode="w"))])
    verdict = verdict_of(b.evidence([b.process(100, signals_caught=caught)], looks))
    assert verdict.state is state
    assert verdict.cause is (Kind.IPC_NO_EOF if state is State.HUNG else verdict.cause)


def test_pipe_to_oneself_beside_a_thread_that_may_write_it() -> None:
    looks = b.twice(
        b.on_fd(100, fd=3),
        b.on_fd(100, 201, fd=5, syscall=b.ACCEPT),
        fds=[b.pipe(100, 3, 70, Holder(pid=100, mode="w")), LISTENING],
    )
    assert state_of([b.process(100, signals_caught=())], looks) is State.IDLE


@pytest.mark.parametrize(("caught", "state"), [((), State.HUNG), (None, State.UNKNOWN)])
def test_exit_that_waits_for_the_reader_of_its_own_pair(caught: tuple[int, ...] | None, state: State) -> None:
    frames = (b.py("_shutdown", b.THREADING),)
    reader = b.on_fd(100, 201, fd=3, syscall=b.RECV)
    looks = b.twice(
        b.on_python_lock(100, frames=frames), reader, fds=[b.connection(100, 3, 70, Holder(pid=100))]
    )
    verdict = verdict_of(b.evidence([b.process(100, signals_caught=caught)], looks))
    assert verdict.state is state
    if state is State.HUNG:
        assert (verdict.cause, verdict.culprits[0].tid) == (Kind.LOCK_TEARDOWN, 201)


@pytest.mark.parametrize(
    ("watches", "caught", "state"),
    [
        ((5,), (), State.IDLE),
        ((6,), (), State.UNKNOWN),
        ((6,), (SIGTERM,), State.IDLE),
        ((6,), None, State.UNKNOWN),
    ],
)
def test_event_loop_without_anything_from_outside_is_not_idle(
    watches: tuple[int, ...], caught: tuple[int, ...] | None, state: State
) -> None:
    epoll = FdFacts(pid=100, fd=4, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=watches)
    own = b.connection(100, 6, 71, Holder(pid=100))
    looks = b.twice(b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP), fds=[epoll, own, LISTENING])
    assert state_of([b.process(100, signals_caught=caught)], looks) is state


@pytest.mark.parametrize(("timeout", "state"), [(600.0, State.IDLE), (None, State.UNKNOWN)])
def test_event_that_nobody_sets(timeout: float | None, state: State) -> None:
    assert state_of([b.process(100)], b.twice(b.sleeper(100, frames=EVENT, timeout_s=timeout))) is state


def test_receive_from_a_rank_that_waits_for_nobody() -> None:
    frames = (
        b.native("c10d::ProcessGroupGloo::RecvWork::wait(std::chrono::duration<long>)"),
        b.py("recv", b.C10D, 2500),
        b.py("step"),
    )
    receiver = b.sleeper(100, frames=frames, named_values=(b.local("recv", "src", 1),))
    looks = b.twice(receiver, b.sleeper(101, frames=EVENT))
    verdict = verdict_of(b.evidence(b.ranks(2), looks))
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_HANDOFF_LOST)
    assert verdict.confidence is Confidence.POSSIBLE


def test_pool_that_waits_for_workers_that_wait_for_it() -> None:
    asks = (
        b.py("Event.wait", b.THREADING),
        b.py("ApplyResult.wait", "/usr/lib/python3.11/multiprocessing/pool.py"),
        b.py("Pool.map", "/usr/lib/python3.11/multiprocessing/pool.py"),
        b.py("main"),
    )
    works = (
        b.py("SimpleQueue.get", "/usr/lib/python3.11/multiprocessing/queues.py"),
        b.py("worker", "/usr/lib/python3.11/multiprocessing/pool.py"),
    )
    looks = b.twice(
        b.on_python_lock(100, frames=asks),
        b.on_fd(101, fd=3, frames=works),
        fds=[b.pipe(101, 3, 70, Holder(pid=100, mode="w"))],
    )
    assert state_of([b.process(100), b.process(101, ppid=100)], looks) is State.UNKNOWN


def test_lock_between_processes_whose_holder_sleeps_is_not_idle() -> None:
    waiter = b.sleeper(
        101, lock=b.LockFacts(kind="semaphore", address=1, uaddr=1, op=9, value=0, shared_key=(1, 2, 0))
    )
    looks = b.twice(b.asleep(100, seconds=9000, left=8000), waiter)
    assert state_of([b.process(100), b.process(101)], looks) is State.UNKNOWN


def test_child_that_has_exited_while_another_process_keeps_its_output_open() -> None:
    reads = b.on_fd(
        100,
        fd=3,
        frames=(b.py("Popen.communicate", "/usr/lib/python3.11/subprocess.py"), b.py("main")),
        named_values=(b.local("Popen.communicate", "pid", 101),),
    )
    looks = b.twice(
        reads,
        b.asleep(102, seconds=4000, left=3000),
        fds=[b.pipe(100, 3, 70, Holder(pid=102, mode="w"))],
    )
    processes = [
        b.process(100),
        b.process(101, ppid=100, state="Z"),
        b.process(102, ppid=1, role=Role.OUTSIDER),
    ]
    verdict = verdict_of(b.evidence(processes, looks))
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.IPC_NO_EOF)
    assert verdict.confidence is Confidence.LIKELY
    assert verdict.culprits[0].pid == 102
    assert "the child that wrote there has exited" in verdict.summary
    assert "end pid 102" in verdict.next_steps[0]


@pytest.mark.parametrize(
    ("holder", "state"),
    [
        (b.on_fd(102, fd=5, syscall=b.ACCEPT), State.UNKNOWN),
        (b.asleep(102, seconds=20), State.IDLE),
    ],
)
def test_who_keeps_the_output_of_a_child_open_and_may_yet_write_is_not_blamed(
    holder: ThreadSample, state: State
) -> None:
    reads = b.on_fd(
        100,
        fd=3,
        frames=(b.py("Popen.communicate", "/usr/lib/python3.11/subprocess.py"), b.py("main")),
        named_values=(b.local("Popen.communicate", "pid", 101),),
    )
    listening = b.connection(102, 5, 70, state="LISTEN")
    looks = b.twice(reads, holder, fds=[b.pipe(100, 3, 70, Holder(pid=102, mode="w")), listening])
    processes = [
        b.process(100),
        b.process(101, ppid=100, state="Z"),
        b.process(102, ppid=1, role=Role.OUTSIDER),
    ]
    report = analyze(b.evidence(processes, looks))
    assert report.verdict.state is state
    assert not report.verdict.culprits
    (wait,) = [wait for wait in report.waits if wait.pid == 100]
    assert wait.holder is not None
    assert wait.holder.pid == 102


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.UNKNOWN),
        ({"started_s_ago": 60.0}, State.IDLE),  # it was there before: whoever feeds the reader
        ({"started_s_ago": None}, State.IDLE),
        ({"ppid": 100}, State.IDLE),  # a child of the reader that is still its own
    ],
)
def test_a_write_end_that_was_left_behind_is_told_and_nobody_blamed(
    changes: dict[str, Any], state: State
) -> None:
    left = b.process(102, **{"ppid": 1, "role": Role.OUTSIDER, "started_s_ago": 20.0, **changes})
    reader = b.process(100, started_s_ago=30.0)
    looks = b.twice(
        b.on_fd(100, fd=3),
        b.asleep(102, seconds=4000, left=3000),
        fds=[b.pipe(100, 3, 70, Holder(pid=102, mode="w"))],
    )
    verdict = analyze(b.evidence([reader, left], looks)).verdict
    assert (verdict.state, verdict.culprits) == (state, ())


def test_who_runs_us_is_no_part_of_the_job() -> None:
    fds = [
        b.pipe(100, 3, 70, Holder(pid=900, mode="w")),
        b.connection(101, 4, 71, Holder(pid=900, mode="rw")),
    ]
    looks = b.twice(b.on_fd(100, fd=3), b.on_fd(101, fd=4, syscall=b.RECV), fds=fds)
    evidence = b.evidence([b.process(100, ppid=900), b.process(101, ppid=100)], looks)
    report = analyze(b.replace(evidence, job=b.replace(evidence.job, observers=(900, 1))))
    assert report.verdict.state is State.IDLE
    assert {process.pid for process in report.processes} == {100, 101}
    for wait in report.waits:
        assert wait.holder is None
        assert any("runs this look" in line for line in wait.evidence)


def test_lock_that_its_own_thread_holds() -> None:
    looks = b.twice(b.on_python_lock(100, owner=100))
    verdict = verdict_of(b.evidence([b.process(100)], looks))
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_CYCLE,
        Confidence.LIKELY,
    )
    assert "that it holds itself" in verdict.summary


def test_rlock_whose_owner_ended() -> None:
    lock = b.LockFacts(
        kind="python_rlock",
        address=1,
        uaddr=1,
        op=9,
        value=0,
        problem="no thread has the ident of its owner",
    )
    looks = b.twice(b.sleeper(100, lock=lock), b.sleeper(100, 201, frames=EVENT))
    verdict = verdict_of(b.evidence([b.process(100)], looks))
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_OWNER_GONE)


@pytest.mark.parametrize(("left", "state"), [(20.0, State.SLOW), (3000.0, State.HUNG)])
def test_sleeper_that_holds_what_another_wants(left: float, state: State) -> None:
    looks = b.twice(b.on_python_lock(100, owner=201), b.asleep(100, 201, seconds=left, left=left - 5))
    verdict = verdict_of(b.evidence([b.process(100)], looks))
    assert (verdict.state, verdict.cause, verdict.culprits[0].tid) == (state, Kind.LOCK_HELD, 201)


def waits_for_child(pid: int, child: int) -> Any:
    return b.sleeper(pid, syscall=b.WAIT4, args=(child, 0, 0, 0, 0, 0))


def test_supervisor_of_a_server_that_polls_is_not_slow() -> None:
    polls = b.on_fd(101, fd=5, syscall=b.POLL, timeout_s=0.5, asleep_for_s=0.1, frames=LOOP[:1])
    looks = (
        b.look(waits_for_child(100, 101), polls, fds=[b.connection(101, 5, 70, state="LISTEN")]),
        b.look(
            waits_for_child(100, 101),
            b.moved(polls),
            at=3.5,
            fds=[b.connection(101, 5, 70, state="LISTEN")],
        ),
    )
    processes = [b.process(100), b.process(101, ppid=100)]
    assert state_of(processes, looks) is State.IDLE


def test_child_that_only_sleeps_is_no_proof_of_a_hang() -> None:
    looks = b.twice(waits_for_child(100, 101), b.asleep(101, seconds=300, left=297))
    verdict = verdict_of(b.evidence([b.process(100), b.process(101, ppid=100)], looks))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert "to go" in verdict.summary


SQLITE = (b.native("clock_nanosleep", "libc.so.6"), b.native("", "libsqlite3.so.0"), b.py("insert"))


@pytest.mark.parametrize("openers", [(100, 101), (100,)])
def test_database_lock_held_by_the_parent_that_waits_for_the_child(openers: tuple[int, ...]) -> None:
    lock = FileLock(
        kind="posix", access="write", pid=100, device=1, inode=7, openers=openers, path="/data/x.db"
    )
    child = b.sleeper(101, syscall=b.SLEEP, timeout_s=0.1, remaining_s=0.05, frames=SQLITE)
    looks = b.twice(waits_for_child(100, 101), child, file_locks=[lock])
    verdict = verdict_of(b.evidence([b.process(100), b.process(101, ppid=100)], looks))
    if 101 in openers:
        assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
        assert {who.pid for who in verdict.culprits} == {100, 101}
    else:
        assert verdict.state is State.UNKNOWN


@pytest.mark.parametrize("held", [True, False])
def test_filelock_package_polls_for_a_lock_of_the_kernel(held: bool) -> None:
    frames = (
        b.py("LockAcquisition._poll_until_acquired", "/usr/lib/python3/filelock/_core/_acquire.py"),
        b.py("BaseFileLock.acquire", "/usr/lib/python3/filelock/_core/_lock.py"),
        b.py("build"),
    )
    path = b.local("LockAcquisition._poll_until_acquired", "lock_filename", "/data/x.lock")
    polls = b.sleeper(
        101, syscall=b.SLEEP, timeout_s=0.05, remaining_s=0.01, frames=frames, named_values=(path,)
    )
    file = LockFile(path="/data/x.lock", exists=True, pid=101, inode=7)
    locks = [FileLock(kind="flock", access="write", pid=102, device=1, inode=7)] if held else []
    looks = b.twice(
        b.in_collective(100),
        polls,
        b.asleep(102, seconds=4000, left=3000),
        lock_files=[file],
        file_locks=locks,
    )
    verdict = verdict_of(b.evidence([*b.ranks(2), b.process(102, ppid=101)], looks))
    if held:
        assert (verdict.state, verdict.cause) == (State.HUNG, Kind.FILE_LOCK_HELD)
        assert [who.pid for who in verdict.culprits] == [101, 102]
    else:
        assert verdict.state is State.UNKNOWN


def test_young_lock_file_without_opener_is_looked_at_for_longer() -> None:
    polls = b.sleeper(
        101,
        syscall=b.SLEEP,
        timeout_s=0.1,
        remaining_s=0.05,
        frames=(b.py("FileBaton.wait", "/usr/lib/python3/torch/utils/file_baton.py"), b.py("build")),
        named_values=(b.local("FileBaton.wait", "lock_file_path", "/data/lock"),),
    )
    file = LockFile(path="/data/lock", exists=True, pid=101, inode=7, age_s=3.0, older_than_job=False)
    looks = b.twice(b.in_collective(100), polls, window=0.6, lock_files=[file])
    evidence = b.evidence(b.ranks(2), looks)
    assert verdict_of(evidence).state is State.UNKNOWN
    assert more_time_wanted(evidence) == pytest.approx(0.4)
    longer = b.evidence(b.ranks(2), b.twice(b.in_collective(100), polls, window=1.1, lock_files=[file]))
    assert verdict_of(longer).cause is Kind.FILE_LOCK_STALE


@pytest.mark.parametrize("stuck", [1, 2])
def test_pool_whose_only_worker_with_a_task_waits_for_nobody(stuck: int) -> None:
    asks = (
        b.py("ApplyResult.get", "/usr/lib/python3.11/multiprocessing/pool.py"),
        b.py("Pool.map", "/usr/lib/python3.11/multiprocessing/pool.py"),
        b.py("main"),
    )
    works = (
        b.py("SimpleQueue.get", "/usr/lib/python3.11/multiprocessing/queues.py"),
        b.py("worker", "/usr/lib/python3.11/multiprocessing/pool.py"),
    )
    task = (*EVENT[:2], b.py("task"), works[1])
    workers = [b.on_python_lock(101 + i, frames=task if i < stuck else works) for i in range(3)]
    processes = [b.process(100), *(b.process(101 + i, ppid=100, python=PYTHON) for i in range(3))]
    verdict = verdict_of(b.evidence(processes, b.twice(b.on_python_lock(100, frames=asks), *workers)))
    if stuck == 1:
        assert (verdict.state, verdict.cause, verdict.culprits[0].pid) == (State.HUNG, Kind.WORKER_STUCK, 101)
        assert verdict.confidence is Confidence.POSSIBLE
    else:
        assert verdict.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"syscall": b.POLL, "args": (0x7F00, 2, 5000, 0, 0, 0)}, State.UNKNOWN),  # the set could not be read
        ({"syscall": b.POLL, "args": (0, 0, 5000, 0, 0, 0), "timeout_s": 5.0}, State.IDLE),  # a nap
        ({"syscall": b.SELECT, "args": (8, 0x7F00, 0, 0, 0, 0)}, State.UNKNOWN),
        ({"syscall": b.EPOLL, "args": (5, 0x7F00, 8, 5000, 0, 0)}, State.UNKNOWN),  # nothing is known of it
        ({"syscall": b.POLL, "args": (0x7F00, 1, -1, 0, 0, 0), "io_fds": (5,)}, State.UNKNOWN),
    ],
)
def test_one_that_polls_for_what_could_not_be_read_is_no_proof_of_idleness(
    changes: dict[str, Any], state: State
) -> None:
    evidence = b.evidence([b.process(100)], b.twice(b.sleeper(100, **changes)))
    assert analyze(evidence).verdict.state is state
