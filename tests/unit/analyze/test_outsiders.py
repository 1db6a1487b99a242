"""At whom else to look, and who of them belongs to the job after all."""

from __future__ import annotations

from dataclasses import replace

from pyhangtrace.analyze import analyze, outsiders_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import FdKind, Role, State
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b


def flock(pid: int, tid: int | None = None, *, inode: int) -> tuple[ThreadSample, FdFacts]:
    sample = b.sleeper(pid, tid, syscall=b.FLOCK, args=(inode, 2, 0, 0, 0, 0))
    file = FdFacts(
        pid=pid, fd=inode, kind=FdKind.FILE, target=f"/c/{inode}", inode=inode, device=1, mode="rw"
    )
    return replace(sample, asleep_for_s=10.0), file


def held(inode: int, pid: int, *waiters: int) -> FileLock:
    return FileLock(kind="flock", access="write", pid=pid, device=1, inode=inode, waiters=waiters)


def seen(
    *waiting: tuple[ThreadSample, FdFacts],
    locks: list[FileLock],
    outside: tuple[int, ...] = (),
    others: tuple[ThreadSample, ...] = (),
) -> Evidence:
    """Process 100 is the job."""
    pids = sorted({100, *outside})
    processes = [b.process(pid, role=Role.OUTSIDER if pid in outside else Role.OTHER) for pid in pids]
    samples = (*(sample for sample, _ in waiting), *others)
    looks = b.twice(*samples, fds=[facts for _, facts in waiting], file_locks=locks)
    return b.evidence(processes, looks)


def test_what_outsiders_wait_for_is_followed_as_far_as_it_goes() -> None:
    locks = [held(1, 200, 100), held(2, 300, 200)]
    wanted = outsiders_wanted(seen(flock(100, inode=1), locks=locks))
    assert (wanted.pids, wanted.partners) == ((200,), ())
    wanted = outsiders_wanted(seen(flock(100, inode=1), flock(200, inode=2), locks=locks, outside=(200,)))
    assert (wanted.pids, wanted.partners) == ((300,), ())


def test_who_waits_for_the_job_that_waits_for_him_is_part_of_it() -> None:
    locks = [held(1, 200, 100), held(2, 300, 200, 400), held(3, 100, 300)]
    evidence = seen(
        flock(100, inode=1),
        flock(200, inode=2),
        flock(300, inode=3),
        flock(400, inode=2),
        locks=locks,
        outside=(200, 300, 400),
    )
    # 400 wants the same, but nobody waits for him.
    assert outsiders_wanted(evidence).partners == (200, 300)


def test_two_servers_with_threads_that_wait_for_each_other_are_no_circle() -> None:
    # The main thread of each serves whoever comes.
    ends = [
        b.connection(100, 7, 1, b.Holder(pid=200, fd=8)),
        b.connection(200, 8, 2, b.Holder(pid=100, fd=7)),
    ]
    listeners = [b.connection(pid, 3, pid, state="LISTEN") for pid in (100, 200)]
    threads = (
        b.on_fd(100, fd=3, syscall=b.ACCEPT),
        b.on_fd(100, 101, fd=7, syscall=b.RECV),
        b.on_fd(200, fd=3, syscall=b.ACCEPT),
        b.on_fd(200, 201, fd=8, syscall=b.RECV),
    )
    looks = b.twice(*threads, fds=[*ends, *listeners])
    evidence = b.evidence([b.process(100), b.process(200, role=Role.OUTSIDER)], looks)
    assert outsiders_wanted(evidence).partners == ()


def test_the_owner_that_a_shared_lock_records_is_looked_for_by_its_thread() -> None:
    waiter = b.on_mutex(100, owner=None)
    assert waiter.lock is not None
    waiter = replace(waiter, lock=replace(waiter.lock, unseen_owner=4711))
    assert outsiders_wanted(seen(locks=[], others=(waiter,))).owners == (4711,)


def test_a_parent_that_waits_for_any_child_has_them_looked_at() -> None:
    parent = b.sleeper(100, syscall=b.WAIT4, args=((1 << 64) - 1, 0, 0, 0, 0, 0))
    assert outsiders_wanted(seen(locks=[], others=(parent,))).parents == (100,)


def test_nothing_is_idle_that_a_file_lock_keeps_of_one_that_was_not_looked_at() -> None:
    locks = [held(1, 200, 100), held(2, 300, 200)]
    young = [
        (replace(sample, asleep_for_s=0.5), facts)
        for sample, facts in (flock(100, inode=1), flock(200, inode=2))
    ]
    evidence = seen(*young, locks=locks, outside=(200,))
    assert analyze(evidence).verdict.state is State.UNKNOWN


def _script(*, group: int) -> Evidence:
    """The job has a lock by the open file of 200, who took it; 300 wants it, in a process group of its own or not."""
    lock = replace(
        held(1, 200, 300), holders=(Holder(pid=200, fd=3, mode="rw"), Holder(pid=100, fd=3, mode="rw"))
    )
    evidence = seen(
        flock(300, inode=1), locks=[lock], outside=(200, 300), others=(b.asleep(100, seconds=900),)
    )
    processes = [
        replace(process, pgid=group if process.pid == 300 else 7, sid=7) for process in evidence.processes
    ]
    return replace(evidence, processes=tuple(processes))


def test_who_wants_a_lock_that_a_command_of_the_same_script_keeps_is_of_one_job() -> None:
    assert outsiders_wanted(_script(group=7)).partners == (300,)
    assert outsiders_wanted(_script(group=8)).partners == ()


def test_who_queues_for_a_lock_of_the_job_is_looked_at() -> None:
    evidence = seen(locks=[held(1, 100, 300)], others=(b.asleep(100, seconds=900),))
    assert outsiders_wanted(evidence).pids == (300,)
