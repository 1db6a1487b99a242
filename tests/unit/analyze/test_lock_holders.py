"""Who holds a lock, where that is not simply written down, and whom nobody may blame for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.analyze.holders import NO_SUCH_OWNER, OWNER_UNREAD, RUNNING_BLOCK, WHOSE_UNKNOWN
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, Part, State
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder, LockRequest
from pyhangtrace.model.processes import PythonFacts
from pyhangtrace.model.report import Report, Verdict
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b


def flock(pid: int, tid: int | None = None) -> ThreadSample:
    """A thread in flock(7, LOCK_EX)."""
    return b.sleeper(pid, tid, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))


def lock(inode: int, pid: int, *waiters: int, kind: str = "flock", holders: tuple[int, ...] = ()) -> FileLock:
    carriers = tuple(Holder(pid=each, fd=7, mode="rw") for each in holders)
    return FileLock(
        kind=kind,
        access="write",
        pid=pid,
        device=1,
        inode=inode,
        waiters=waiters,
        path=f"/c/{inode}",
        holders=carriers,
    )


def crossed(*threads: ThreadSample, seconds: float = 10.0) -> Report:
    """Two processes, each in flock of a file that the other one has, for so long."""
    locks = [lock(1, 200, 100), lock(2, 100, 200)]
    processes = [b.process(100), b.process(200, ppid=100)]
    both = (replace(flock(pid), asleep_for_s=seconds) for pid in (100, 200))
    return analyze(b.evidence(processes, b.twice(*both, *threads, file_locks=locks)))


def cycle_of(report: Report, names: tuple[str, ...]) -> set[tuple[int, int]]:
    waits = {wait.id: (wait.pid, wait.tid) for wait in report.waits}
    return {waits[name] for name in names}


def test_who_runs_in_a_with_of_a_lock_has_it_as_long_as_its_waiter_sleeps() -> None:
    waiter = b.on_python_lock(100, 201, owner=202)
    assert waiter.lock is not None
    waiter = replace(waiter, lock=replace(waiter.lock, owner_from=RUNNING_BLOCK))
    works = b.running(100, 202)
    cases = (
        ((waiter, waiter), True),
        ((waiter, b.moved(waiter)), False),  # it was woken: the lock was let go in between
        ((replace(waiter, lock=replace(waiter.lock, owner_tid=None)), waiter), False),
    )
    for seen, known in cases:
        looks = tuple(b.look(each, works, at=at) for each, at in zip(seen, (0.0, 3.0), strict=True))
        report = analyze(b.evidence([b.process(100)], looks))
        holder = next(wait.holder for wait in report.waits if wait.tid == 201)
        assert (holder is not None) is known


def test_processes_of_one_thread_that_want_each_others_files_are_a_proven_deadlock() -> None:
    verdict = crossed().verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_CYCLE,
        Confidence.PROVEN,
    )


def test_a_flock_that_no_descriptor_carries_has_no_known_holder() -> None:
    taken = replace(lock(1, 100, 100), openers=(100,))
    verdict = analyze(b.evidence([b.process(100)], b.twice(flock(100), file_locks=[taken]))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    carried = replace(lock(1, 100, 100, holders=(100,)), openers=(100,))
    verdict = analyze(b.evidence([b.process(100)], b.twice(flock(100), file_locks=[carried]))).verdict
    assert verdict.state is State.HUNG


def test_a_consumer_beside_the_only_thread_at_work_is_no_doubt_while_that_one_waits_for_a_day_long_sleep() -> (
    None
):
    idle = b.sleeper(
        100,
        102,
        frames=(b.py("Condition.wait", b.THREADING), b.py("Queue.get", "/usr/lib/python3.11/queue.py")),
        lock=LockFacts(kind="python_lock", address=0x7700, uaddr=0x7700, op=9, value=0),
    )
    locks = [lock(1, 100, 200), lock(2, 300, 100)]
    processes = [b.process(100), b.process(200, ppid=100), b.process(300, ppid=100)]
    sleeps = b.asleep(300, seconds=86400)
    verdict = analyze(
        b.evidence(processes, b.twice(flock(100), idle, flock(200), sleeps, file_locks=locks))
    ).verdict
    assert verdict.state is State.HUNG
    assert sorted(who.pid for who in verdict.victims) == [100, 200]
    assert [who.pid for who in verdict.culprits] == [300]


def test_files_that_one_of_several_sleepers_may_have_are_no_sign_of_health() -> None:
    idle = b.sleeper(
        100,
        102,
        frames=(b.py("Condition.wait", b.THREADING), b.py("Queue.get", "/usr/lib/python3.11/queue.py")),
        lock=LockFacts(kind="python_lock", address=0x7700, uaddr=0x7700, op=9, value=0),
    )
    for others in ((b.asleep(100, 101, seconds=86400), idle), (b.asleep(100, 101, seconds=0.2),)):
        verdict = crossed(*others, seconds=0.3).verdict
        assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_another_thread_may_have_the_file_and_give_it_back() -> None:
    report = crossed(b.asleep(100, 101, seconds=0.02), b.asleep(200, 201, seconds=0.02))
    assert report.verdict.state is State.UNKNOWN
    assert not report.verdict.culprits
    assert not report.verdict.cycle
    holders = {wait.pid: wait.holder for wait in report.waits if wait.kind.value == "file_lock"}
    assert {pid: held.pid for pid, held in holders.items() if held is not None} == {100: 200, 200: 100}


def test_threads_that_wait_for_work_have_no_file() -> None:
    idle = b.sleeper(100, 101, lock=None, frames=(b.py("wait", b.THREADING), b.py("next_job")))
    verdict = crossed(idle).verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_CYCLE,
        Confidence.LIKELY,
    )


def test_threads_that_wait_for_the_one_with_the_file_change_nothing() -> None:
    verdict = crossed(b.on_mutex(100, 101, owner=100)).verdict
    assert verdict.state is State.HUNG
    assert len(verdict.cycle) == 2


def test_a_process_all_of_whose_threads_are_in_the_circle_is_a_proof() -> None:
    for among in ([b.on_mutex(100, 101, owner=100)], [flock(100, 101)]):
        verdict = crossed(*among).verdict
        assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
        assert verdict.confidence is Confidence.PROVEN
        assert {(who.pid, who.part) for who in verdict.culprits} == {(100, Part.PARTY), (200, Part.PARTY)}
        # Which of its threads has the file is recorded nowhere.
        assert [who.tid for who in verdict.culprits if who.pid == 100] == [None]


def test_a_serving_thread_has_no_file() -> None:
    tqdm = b.asleep(100, 101, seconds=10)
    serving = replace(tqdm, frames=(b.py("TMonitor.run", "/usr/lib/python3/site-packages/tqdm/_monitor.py"),))
    assert crossed(serving).verdict.confidence is Confidence.PROVEN


def test_a_thread_that_sleeps_for_long_may_have_the_file() -> None:
    verdict = crossed(b.asleep(200, 201, seconds=9000)).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.LIKELY)
    assert not verdict.cycle


def test_a_thread_that_listens_may_have_the_file() -> None:
    listening = b.connection(200, 5, 70, state="LISTEN")
    locks = [lock(1, 200, 100), lock(2, 100, 200)]
    looks = b.twice(
        flock(100),
        flock(200),
        b.on_fd(200, 201, fd=5, syscall=b.ACCEPT),
        fds=[listening],
        file_locks=locks,
    )
    verdict = analyze(b.evidence([b.process(100), b.process(200, ppid=100)], looks)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_a_process_whose_threads_all_work_lets_go_in_time() -> None:
    threads = [flock(100), b.asleep(200, seconds=20), b.asleep(200, 201, seconds=30)]
    looks = b.twice(*threads, file_locks=[lock(1, 200, 100)])
    report = analyze(b.evidence([b.process(100), b.process(200, ppid=100)], looks))
    assert report.verdict.state is State.SLOW
    assert [(who.pid, who.tid) for who in report.verdict.culprits] == [(200, None)]
    (wait,) = [wait for wait in report.waits if wait.kind.value == "file_lock"]
    assert wait.holder is not None
    assert (wait.holder.pid, wait.holder.tid) == (200, None)


def test_the_two_threads_of_a_process_that_want_each_others_files() -> None:
    locks = [lock(1, 100, 100), lock(2, 100, 100)]
    one = b.process(100)
    verdict = analyze(b.evidence([one], b.twice(flock(100), flock(100, 101), file_locks=locks))).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.PROVEN)


def of_one_process(*threads: ThreadSample) -> Report:
    """One process that has both of the files that threads of it want."""
    locks = [lock(1, 100, 100), lock(2, 100, 100)]
    return analyze(b.evidence([b.process(100)], b.twice(*threads, file_locks=locks)))


def test_a_process_all_of_whose_threads_are_stuck_in_it_is_a_deadlock_of_nobody_in_it() -> None:
    waits_for_one = b.on_mutex(100, owner=101)
    others = ((flock(100, 101), flock(100, 102)), (b.on_mutex(100, 101, owner=102), flock(100, 102)))
    for among in others:
        verdict = of_one_process(waits_for_one, *among).verdict
        assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_CYCLE)
        assert verdict.confidence is Confidence.PROVEN
        # Which of its threads are the circle is recorded nowhere.
        assert [(who.pid, who.tid, who.part) for who in verdict.culprits] == [(100, None, Part.PARTY)]
        assert (verdict.cycle, verdict.other_cycles, verdict.victims) == ((), (), ())
        assert "is not recorded" in verdict.summary


def test_one_thread_of_the_process_that_may_go_on_leaves_it_open() -> None:
    for third in (b.asleep(100, seconds=5), b.running(100)):
        report = of_one_process(third, flock(100, 101), flock(100, 102))
        assert report.verdict.state is not State.HUNG
        assert not report.verdict.culprits


def test_a_circle_that_the_threads_of_a_process_close_apart_from_its_file() -> None:
    report = of_one_process(
        b.on_mutex(100, owner=101), b.on_mutex(100, 101, owner=100, address=0x9000), flock(100, 102)
    )
    verdict = report.verdict
    assert verdict.confidence is Confidence.PROVEN
    assert cycle_of(report, verdict.cycle) == {(100, 100), (100, 101)}
    assert {(who.pid, who.tid) for who in verdict.culprits} == {(100, 100), (100, 101)}


def wants(pid: int, tid: int, inode: int) -> tuple[ThreadSample, FdFacts]:
    """A thread in flock of one of several files, by a descriptor of its own."""
    sample = b.sleeper(pid, tid, syscall=b.FLOCK, args=(tid, 2, 0, 0, 0, 0))
    return sample, replace(b.pipe(pid, tid, inode), kind=b.FdKind.FILE, target=f"/c/{inode}")


def over_processes(locks: list[FileLock], *waiting: tuple[ThreadSample, FdFacts]) -> Report:
    pids = sorted({sample.pid for sample, _ in waiting})
    processes = [b.process(pid, ppid=50 if pid == pids[0] else pids[0]) for pid in pids]
    looks = b.twice(*(sample for sample, _ in waiting), file_locks=locks, fds=[facts for _, facts in waiting])
    return analyze(b.evidence(processes, looks))


def test_who_waits_for_one_in_a_circle_is_not_named_where_the_circle_closes_without_him_as_well() -> None:
    # What 200 wants a thread of 100 has, and 300 has a part in it by one of the two only.
    locks = [lock(1, 100, 200), lock(2, 200, 100, 300), lock(3, 300, 100)]
    for to_second, to_third in ((100, 101), (101, 100)):
        report = over_processes(
            locks, wants(100, to_second, 2), wants(100, to_third, 3), wants(200, 200, 1), wants(300, 300, 2)
        )
        verdict = report.verdict
        assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.PROVEN)
        assert {(who.pid, who.tid) for who in verdict.culprits} == {(100, None), (200, 200)}
        assert cycle_of(report, verdict.cycle) == {(100, to_second), (200, 200)}


def test_nobody_is_named_where_each_circle_may_close_without_him() -> None:
    locks = [lock(1, 100, 200), lock(2, 200, 100, 400), lock(3, 300, 100, 400), lock(4, 400, 300)]
    report = over_processes(
        locks,
        wants(100, 100, 2),
        wants(100, 101, 3),
        wants(200, 200, 1),
        wants(300, 300, 4),
        wants(400, 400, 2),
        wants(400, 401, 3),
    )
    assert report.verdict.state is State.UNKNOWN
    assert not report.verdict.culprits
    assert not report.verdict.cycle


def test_a_process_stuck_in_itself_is_named_and_not_who_else_one_of_its_threads_waits_for() -> None:
    locks = [lock(1, 100, 100, 200), lock(2, 200, 100)]
    report = over_processes(
        locks, wants(100, 100, 2), wants(100, 101, 1), wants(100, 102, 1), wants(200, 200, 1)
    )
    verdict = report.verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.PROVEN)
    assert [(who.pid, who.tid) for who in verdict.culprits] == [(100, None)]
    assert {victim.pid for victim in verdict.victims} == {200}


def test_the_file_of_a_thread_of_the_same_process() -> None:
    report = analyze(
        b.evidence(
            [b.process(100)],
            b.twice(
                b.asleep(100, seconds=9000),
                flock(100, 101),
                b.on_mutex(100, 102, owner=101),
                file_locks=[lock(1, 100, 100)],
            ),
        )
    )
    assert report.verdict.state is State.UNKNOWN
    assert not report.verdict.culprits


def test_the_lock_of_an_open_file_is_with_whose_descriptor_carries_it() -> None:
    waiting = b.sleeper(100, syscall=72, args=(7, 38, 0, 0, 0, 0))
    held = lock(1, -1, kind="ofd", holders=(200,))
    facts = replace(b.pipe(100, 7, 1), kind=b.FdKind.FILE, target="/c/1")
    looks = b.twice(waiting, b.asleep(200, seconds=9000), fds=[facts], file_locks=[held])
    verdict = analyze(b.evidence([b.process(100), b.process(200, ppid=100)], looks)).verdict
    assert [(who.pid, who.tid) for who in verdict.culprits] == [(200, 200)]


def test_the_heir_of_a_lock_is_named_and_not_who_died_with_it() -> None:
    held = lock(1, 999, 100, holders=(200,))
    looks = b.twice(flock(100), b.asleep(200, seconds=9000), file_locks=[held])
    verdict = analyze(b.evidence([b.process(100), b.process(200, ppid=100)], looks)).verdict
    assert [(who.pid, who.tid) for who in verdict.culprits] == [(200, 200)]


def test_all_deadlocks_are_told() -> None:
    pairs = [(101, 102, 0x8000), (103, 104, 0x9000)]
    threads = [
        b.on_mutex(100, tid, owner=owner, address=address + tid)
        for one, two, address in pairs
        for tid, owner in ((one, two), (two, one))
    ]
    report = analyze(b.evidence([b.process(100)], b.twice(b.asleep(100, seconds=9000), *threads)))
    verdict = report.verdict
    assert verdict.confidence is Confidence.PROVEN
    shown = [cycle_of(report, names) for names in (verdict.cycle, *verdict.other_cycles)]
    assert shown == [{(100, 101), (100, 102)}, {(100, 103), (100, 104)}]
    assert {(who.tid, who.part) for who in verdict.culprits} == {
        (tid, Part.PARTY) for tid in (101, 102, 103, 104)
    }
    assert "Another one" in verdict.summary


def shared_lock(pid: int, key: int) -> ThreadSample:
    """A thread in a lock of multiprocessing, which records no owner."""
    held = LockFacts(kind="semaphore", address=key, uaddr=key, op=9, value=0, shared_key=(1, key, 0))
    return b.sleeper(pid, lock=held, frames=(b.native("semlock_acquire"), b.py("work")))


def test_a_lock_that_children_share_may_be_with_their_parent() -> None:
    processes = [b.process(100), b.process(200, ppid=100), b.process(300, ppid=100)]
    locks = [lock(1, 200, 100), lock(2, 300, 200)]
    looks = b.twice(flock(100), flock(200), shared_lock(300, 5), file_locks=locks)
    verdict = analyze(b.evidence(processes, looks)).verdict
    assert not verdict.cycle
    assert not verdict.culprits


def test_the_watchdog_of_faulthandler_is_nobody() -> None:
    watchdog = b.on_python_lock(
        100,
        101,
        frames=(
            b.native("PyThread_acquire_lock_timed", "libpython3.11.so"),
            b.native("faulthandler_thread", "libpython3.11.so"),
        ),
    )
    for beside in (b.running(100), b.asleep(100, seconds=1)):
        verdict = analyze(b.evidence([b.process(100)], b.twice(beside, watchdog))).verdict
        assert verdict.state is not State.HUNG
        assert not verdict.culprits


def test_c_code_that_waits_on_a_python_lock_proves_nothing() -> None:
    waiting = b.on_python_lock(
        100, 101, frames=(b.native("PyThread_acquire_lock_timed"), b.native("some_extension_loop"))
    )
    verdict = analyze(b.evidence([b.process(100)], b.twice(b.asleep(100, seconds=1), waiting))).verdict
    assert verdict.state is not State.HUNG


def test_an_rlock_whose_owner_has_ended_has_a_holder_that_is_gone() -> None:
    waiting = b.on_python_lock(100)
    assert waiting.lock is not None
    gone = replace(waiting, lock=replace(waiting.lock, kind="python_rlock", problem=NO_SUCH_OWNER))
    report = analyze(b.evidence([b.process(100)], b.twice(gone, b.asleep(100, 101, seconds=9000))))
    (wait,) = [wait for wait in report.waits if wait.kind.value == "python_lock"]
    assert wait.holder is not None
    assert (wait.holder.tid, wait.holder.alive) == (None, False)
    assert report.verdict.cause is Kind.LOCK_OWNER_GONE


def test_an_rlock_whose_owner_may_be_among_threads_that_were_not_read_accuses_nobody() -> None:
    waiting = b.on_python_lock(100)
    assert waiting.lock is not None
    unread = replace(waiting, lock=replace(waiting.lock, kind="python_rlock", problem=OWNER_UNREAD))
    verdict = analyze(b.evidence([b.process(100)], b.twice(unread, b.asleep(100, 101, seconds=9000)))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_a_child_that_reads_orders_is_kept_waiting_by_nobody() -> None:
    child = b.process(200, ppid=100)
    orders = b.pipe(200, 0, 70, Holder(pid=100, mode="w"))
    reads = b.on_fd(200, fd=0)
    looks = b.twice(b.running(100), reads, fds=[orders], window=0.2)
    verdict = analyze(b.evidence([b.process(100), child], looks)).verdict
    assert verdict.state is State.RUNNING
    assert not verdict.culprits
    waits = b.on_mutex(100, 101, owner=100)
    looks = b.twice(b.running(100), waits, reads, fds=[orders], window=0.2)
    verdict = analyze(b.evidence([b.process(100), child], looks)).verdict
    assert verdict.state is State.BUSY
    assert {(victim.pid, victim.tid) for victim in verdict.victims} == {(100, 101)}


def rwlock(pid: int, tid: int, **changes: Any) -> ThreadSample:
    """A thread that wants a read-write lock which somebody has for reading."""
    lock = LockFacts(
        kind="rwlock_write",
        address=0x7000,
        uaddr=0x7008,
        op=0,
        value=2,
        readers=1,
        problem="held for reading; readers are only counted",
        **changes,
    )
    return b.sleeper(pid, tid, lock=lock, frames=(b.native("___pthread_rwlock_wrlock", "libc.so.6"),))


def verdict_on(*threads: ThreadSample, pids: tuple[int, ...] = (100,), **more: Any) -> Verdict:
    return analyze(b.evidence([b.process(pid) for pid in pids], b.twice(*threads, **more))).verdict


def test_a_lock_whose_readers_are_only_counted_is_open_while_one_of_them_may_go_on() -> None:
    assert verdict_on(rwlock(100, 101), b.asleep(100, seconds=40)).state is State.UNKNOWN
    fds = [b.connection(100, 5, 70, state="LISTEN")]
    assert verdict_on(rwlock(100, 101), b.on_fd(100, fd=5, syscall=43), fds=fds).state is State.UNKNOWN


def test_a_lock_whose_readers_are_only_counted_is_no_proof_where_nobody_can_go_on() -> None:
    verdict = verdict_on(rwlock(100, 101), b.asleep(100, seconds=9000))
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_HELD)
    assert verdict.confidence is Confidence.LIKELY
    assert {culprit.part for culprit in verdict.culprits} <= {Part.PARTY}


def test_readers_of_a_shared_lock_may_be_in_any_process() -> None:
    shared = rwlock(100, 100, shared_key=(1, 2, 3))
    assert verdict_on(shared, b.asleep(200, seconds=40), pids=(100, 200)).state is State.UNKNOWN
    assert verdict_on(shared, b.asleep(200, seconds=9000), pids=(100, 200)).state is State.HUNG
    named = rwlock(100, 100, shared_key=(1, 2, 3), shared_file="/dev/shm/lock")
    assert verdict_on(named, b.asleep(200, seconds=9000), pids=(100, 200)).state is State.UNKNOWN


def test_an_owner_whose_id_may_be_that_of_another_is_nobody() -> None:
    problem = f"owner id 1 of a lock shared across pid namespaces{WHOSE_UNKNOWN}"
    waits = b.on_mutex(100, owner=None, shared_key=(1, 2, 3))
    assert waits.lock is not None
    waits = replace(waits, lock=replace(waits.lock, owner_exact=False, problem=problem))
    verdict = verdict_on(waits, b.asleep(100, 101, seconds=9000))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_a_thread_that_was_started_after_everybody_fell_asleep_holds_nothing() -> None:
    def asked(since_s: float, *, age_s: float, owner_s: float = 10.0) -> Verdict:
        waits = b.on_mutex(100, owner=101, asleep_for_s=since_s)
        assert waits.lock is not None
        waits = replace(waits, lock=replace(waits.lock, owner_age_s=age_s))
        return verdict_on(waits, b.asleep(100, 101, seconds=9000, asleep_for_s=owner_s))

    verdict = asked(60.0, age_s=30.0)
    assert (verdict.cause, verdict.confidence) == (Kind.LOCK_OWNER_GONE, Confidence.LIKELY)
    assert 101 not in {culprit.tid for culprit in verdict.culprits}
    assert asked(30.0, age_s=60.0).cause is not Kind.LOCK_OWNER_GONE
    # Who has slept for longer than it has lived shows that the clocks do not agree.
    assert asked(60.0, age_s=30.0, owner_s=59.0).cause is not Kind.LOCK_OWNER_GONE
    # One who has waited from before and one who has just looked again: it may have been taken in between.
    waits = [b.on_mutex(100, tid, owner=101, asleep_for_s=since) for tid, since in ((100, 60.0), (102, 2.0))]
    waits = [replace(one, lock=replace(one.lock, owner_age_s=30.0)) for one in waits if one.lock is not None]
    assert verdict_on(*waits, b.asleep(100, 101, seconds=9000)).cause is not Kind.LOCK_OWNER_GONE


def on_rlock(tid: int, owner: int | None) -> ThreadSample:
    """A thread of 100 in `acquire` of an RLock that records this owner; None: one that no thread is."""
    waiting = b.on_python_lock(100, tid)
    assert waiting.lock is not None
    problem = None if owner is not None else NO_SUCH_OWNER
    recorded = replace(
        waiting.lock, kind="python_rlock", owner_tid=owner, owner_exact=owner is not None, problem=problem
    )
    return replace(waiting, lock=recorded)


def of_two_looks(before: tuple[ThreadSample, ...], after: tuple[ThreadSample, ...]) -> Verdict:
    main = b.asleep(100, seconds=9000)
    looks = (b.look(main, *before, at=0.0), b.look(main, *after, at=0.1))
    return analyze(b.evidence([b.process(100)], looks)).verdict


def test_a_thread_does_not_wait_for_a_recursive_lock_that_it_has() -> None:
    waiting = on_rlock(101, 101)
    verdict = of_two_looks((waiting,), (waiting,))
    assert verdict.confidence is not Confidence.PROVEN
    assert not verdict.cycle


def test_threads_that_come_and_go_are_in_no_deadlock() -> None:
    mutual = (b.on_mutex(100, 101, owner=102), b.on_mutex(100, 102, owner=101, address=0x9000))
    assert of_two_looks(mutual, mutual).state is State.HUNG
    verdict = of_two_looks((), mutual)
    assert verdict.state is not State.HUNG
    assert not verdict.culprits


def test_only_who_had_a_lock_in_all_looks_can_have_ended_with_it() -> None:
    gone = on_rlock(101, None)
    assert of_two_looks((gone,), (gone,)).cause is Kind.LOCK_OWNER_GONE
    for before in (on_rlock(101, 103), on_rlock(101, 77)):
        assert of_two_looks((before,), (gone,)).cause is not Kind.LOCK_OWNER_GONE
    here, then = b.on_mutex(100, 101, owner=77), b.on_mutex(100, 101, owner=78)
    assert of_two_looks((here,), (here,)).cause is Kind.LOCK_OWNER_GONE
    assert of_two_looks((then,), (here,)).cause is not Kind.LOCK_OWNER_GONE


@pytest.mark.timeout(30)
def test_a_circle_of_very_many_threads_is_found_in_little_time() -> None:
    count = 2000
    threads = [
        b.on_mutex(100, 1000 + one, owner=1000 + (one + 1) % count, address=0x8000 + 64 * one)
        for one in range(count)
    ]
    report = analyze(b.evidence([b.process(100)], b.twice(*threads)))
    assert report.verdict.state is State.HUNG
    assert len(report.verdict.cycle) == count


@pytest.mark.parametrize(
    ("other", "state", "sure"),
    [
        (None, State.HUNG, Confidence.PROVEN),
        (b.asleep(300, seconds=40.0), State.UNKNOWN, Confidence.POSSIBLE),
        (b.on_fd(300, fd=3), State.UNKNOWN, Confidence.POSSIBLE),
        # Stuck behind the two itself, it gives nothing back.
        (b.on_mutex(300, owner=100, shared_key=(1, 2, 3)), State.HUNG, Confidence.LIKELY),
    ],
    ids=["nobody", "sleeps", "reads", "stuck"],
)
def test_a_flock_that_others_have_open_too_may_be_given_back_by_them(
    other: ThreadSample | None, state: State, sure: Confidence
) -> None:
    carriers = (101,) if other is None else (101, 300)
    locks = (lock(7, 101, 100, holders=carriers), lock(8, 100, 101))
    reads = [b.pipe(300, 3, 9, Holder(pid=400, mode="w"))]
    threads = (flock(100), flock(101), *([other] if other is not None else []))
    looks = b.twice(*threads, file_locks=locks, fds=reads)
    processes = [b.process(100), b.process(101), *([b.process(300)] if other is not None else [])]
    report = analyze(b.evidence(processes, looks))
    assert (report.verdict.state, report.verdict.confidence) == (state, sure)
    wait = next(wait for wait in report.waits if wait.pid == 100)
    assert wait.holder is not None
    assert wait.holder.pid == 101
    assert wait.candidates == ()
    assert ("pid 300 has it by the same open file" in wait.evidence) == (other is not None)


def test_of_several_that_have_one_open_file_the_one_that_the_others_got_it_from_is_the_holder() -> None:
    locks = (lock(7, 999, 100, holders=(101, 102)),)  # whoever took it has ended
    processes = [b.process(100), b.process(101), b.process(102, ppid=101)]
    waits_for_child = b.sleeper(101, syscall=b.WAIT4, args=(102, 0, 0, 0, 0, 0))
    report = analyze(
        b.evidence(processes, b.twice(flock(100), waits_for_child, b.stopped(102), file_locks=locks))
    )
    wait = next(wait for wait in report.waits if wait.pid == 100)
    assert wait.holder is not None
    assert wait.holder.pid == 101


@pytest.mark.parametrize(
    ("handled", "of_python", "sure"),
    [((), False, Confidence.PROVEN), ((14,), False, Confidence.LIKELY), ((14,), True, Confidence.LIKELY)],
)
def test_a_handler_of_a_timer_may_end_a_deadlock(
    handled: tuple[int, ...], of_python: bool, sure: Confidence
) -> None:
    python = PythonFacts(version="3.12", layout_from="3.12") if of_python else None
    process = b.process(100, signals_caught=handled, python=python)
    looks = b.twice(b.on_mutex(100, owner=101), b.on_mutex(100, 101, owner=100, address=0x9000))
    report = analyze(b.evidence([process], looks))
    assert report.verdict.state is State.HUNG
    assert report.verdict.cause is Kind.LOCK_CYCLE
    assert report.verdict.confidence is sure


def test_a_sleeper_is_not_accused_where_the_circle_may_go_past_its_process() -> None:
    """The files of 200 may be with threads that wait for 300, and those of 300 with ones that wait for 200."""
    threads = (
        flock(100),
        b.asleep(100, 101, seconds=9000),
        *(flock(200, tid) for tid in (None, 201)),
        *(flock(300, tid) for tid in (None, 301)),
    )
    waits_for = {100: (200, 100), 200: (300, 200), 201: (100, 201), 300: (200, 300), 301: (200, 301)}
    fds = []
    locks = []
    for number, sample in enumerate(threads):
        if sample.syscall != b.FLOCK:
            continue
        holder, inode = waits_for[sample.tid]
        fds.append(
            FdFacts(pid=sample.pid, fd=10 + number, kind=FdKind.FILE, target=f"/c/{inode}", inode=inode)
        )
        locks.append(lock(inode, holder, sample.pid))
    samples = [
        replace(sample, args=(10 + number, 2, 0, 0, 0, 0), asleep_for_s=10.0)
        if sample.syscall == b.FLOCK
        else sample
        for number, sample in enumerate(threads)
    ]
    processes = [b.process(100), b.process(200, ppid=100), b.process(300, ppid=100)]
    verdict = analyze(b.evidence(processes, b.twice(*samples, fds=fds, file_locks=locks))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def shared(pid: int, *waiters: int, holders: tuple[int, ...] = ()) -> FileLock:
    return replace(lock(7, pid, *waiters, holders=holders or (pid,)), access="read")


@pytest.mark.parametrize("first", [101, 102])
def test_all_who_have_a_flock_shared_must_give_it_back(first: int) -> None:
    other = 203 - first
    processes = [b.process(pid) for pid in (100, 101, 102)]
    looks = b.twice(
        flock(100),
        b.asleep(101, seconds=20.0),
        b.stopped(102),
        file_locks=[shared(first, 100), shared(other)],
    )
    report = analyze(b.evidence(processes, looks))
    assert report.verdict.state is State.HUNG
    assert [who.pid for who in report.verdict.culprits] == [102]
    wait = next(wait for wait in report.waits if wait.pid == 100)
    assert not any("same open file" in line for line in (*wait.evidence, report.verdict.summary))


def test_shares_of_those_who_all_nap_end_by_the_clock() -> None:
    processes = [b.process(pid) for pid in (100, 101, 102)]
    naps = (b.asleep(101, seconds=20.0), b.asleep(102, seconds=10.0))
    looks = b.twice(flock(100), *naps, file_locks=[shared(101, 100), shared(102)])
    assert analyze(b.evidence(processes, looks)).verdict.state is State.SLOW


def test_which_thread_of_one_that_has_a_share_too_is_not_known() -> None:
    processes = [b.process(pid) for pid in (100, 101, 102)]
    several = (b.asleep(102, seconds=9000), b.asleep(102, 103, seconds=20.0))
    looks = b.twice(
        flock(100), b.asleep(101, seconds=9000), *several, file_locks=[shared(101, 100), shared(102)]
    )
    # That the one of a single thread is to give it back holds in any case.
    assert [who.pid for who in analyze(b.evidence(processes, looks)).verdict.culprits] == [101]


def fcntl_wait(
    pid: int, start: int, end: int | None, *, access: str = "write", ofd: bool = False, fd: int = 7
) -> tuple[ThreadSample, FdFacts]:
    """A thread that waits to lock some bytes of file 7."""
    call = 38 if ofd else 7
    request = LockRequest(access=access, start=start, end=end, pid=-1 if ofd else pid)
    sample = b.sleeper(pid, syscall=b.FCNTL, args=(fd, call, 0x7000, 0, 0, 0))
    facts = FdFacts(pid=pid, fd=fd, kind=FdKind.FILE, target="/c/7", inode=7, device=1, mode="rw")
    return replace(sample, asleep_for_s=10.0, lock_request=request), facts


def part(
    pid: int,
    start: int,
    end: int | None,
    *asked: ThreadSample,
    access: str = "write",
    kind: str = "posix",
    holders: tuple[int, ...] = (),
) -> FileLock:
    """A lock of some bytes of file 7, and who is queued behind it."""
    requests = tuple(one.lock_request for one in asked if one.lock_request is not None)
    known = lock(7, pid, *(one.pid for one in requests), kind=kind, holders=holders)
    return replace(known, access=access, start=start, end=end, requests=requests)


def of_parts(locks: list[FileLock], *waiting: tuple[ThreadSample, FdFacts], others: Any = ()) -> Report:
    pids = {sample.pid for sample, _ in waiting} | {sample.pid for sample in others}
    processes = [b.process(pid, ppid=50) for pid in sorted(pids)]
    samples = (*(sample for sample, _ in waiting), *others)
    looks = b.twice(*samples, file_locks=locks, fds=[facts for _, facts in waiting])
    return analyze(b.evidence(processes, looks))


def test_only_who_has_locked_the_bytes_that_are_asked_for_is_in_the_way() -> None:
    waiting = fcntl_wait(100, 10, 19)
    others = [b.asleep(pid, seconds=9000) for pid in (101, 102, 103)]
    for kind in ("posix", "ofd"):
        locks = [
            part(101, 0, 9),
            part(102, 15, 30, waiting[0])
            if kind == "posix"
            else part(-1, 15, 30, waiting[0], kind="ofd", holders=(102,)),
            part(103, 20, None),
        ]
        report = of_parts(locks, waiting, others=others)
        wait = next(wait for wait in report.waits if wait.pid == 100)
        assert wait.holder is not None
        assert (wait.holder.pid, wait.candidates) == (102, ())
        assert (report.verdict.state, [who.pid for who in report.verdict.culprits]) == (State.HUNG, [102])
        assert any("bytes 15 to 30" in line for line in wait.evidence)


def test_all_who_have_some_of_the_bytes_must_give_them_back() -> None:
    waiting = fcntl_wait(100, 0, None)
    naps, stands = b.asleep(101, seconds=20.0), b.stopped(102)
    for first, second in ((101, 102), (102, 101)):
        locks = [part(first, 0, 9, waiting[0], access="read"), part(second, 5, 20, access="read")]
        report = of_parts(locks, waiting, others=(naps, stands))
        assert report.verdict.state is State.HUNG
        assert [who.pid for who in report.verdict.culprits] == [102]


def test_who_reads_is_not_in_the_way_of_who_reads() -> None:
    waiting = fcntl_wait(100, 0, 50, access="read")
    locks = [part(101, 0, 9, access="read"), part(102, 40, 60, waiting[0])]
    report = of_parts(locks, waiting, others=(b.stopped(101), b.asleep(102, seconds=20.0)))
    assert report.verdict.state is State.SLOW
    assert [who.pid for who in report.verdict.culprits] == [102]


def test_two_who_share_a_lock_and_want_it_for_themselves_are_a_proven_deadlock() -> None:
    # Each of two open files keeps the other one from what both have for reading; its own keeps nobody.
    waiting = [fcntl_wait(pid, 0, None, ofd=True) for pid in (100, 101)]
    one, two = (
        part(-1, 0, None, *asked, access="read", kind="ofd", holders=(pid,))
        for pid, asked in ((100, [waiting[1][0], waiting[0][0]]), (101, []))
    )
    verdict = of_parts([one, two], *waiting).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.PROVEN)
    assert len(verdict.cycle) == 2


def test_bytes_of_an_own_lock_are_in_nobodys_way() -> None:
    waiting = fcntl_wait(100, 0, 20)
    locks = [part(100, 0, 9, access="read"), part(101, 5, 9, waiting[0], access="read")]
    report = of_parts(locks, waiting, others=[b.asleep(101, seconds=9000)])
    assert [who.pid for who in report.verdict.culprits] == [101]
    assert not report.verdict.cycle


def test_a_request_that_the_kernel_does_not_have_is_not_believed() -> None:
    # What was read of the call's memory is of another moment: who is in the way of that is not who is asked for.
    waiting = fcntl_wait(100, 0, 9)
    sample = replace(waiting[0], lock_request=LockRequest(access="write", start=50, end=59, pid=100))
    locks = [part(101, 0, 9, waiting[0]), part(102, 50, 59)]
    report = of_parts(locks, (sample, waiting[1]), others=[b.asleep(pid, seconds=9000) for pid in (101, 102)])
    assert [who.pid for who in report.verdict.culprits] == [101]


def test_of_several_locks_of_open_files_all_who_have_one_are_candidates() -> None:
    locks = [replace(lock(7, -1, -1, kind="ofd", holders=(pid,)), access="read") for pid in (101, 102)]
    processes = [b.process(pid) for pid in (100, 101, 102)]
    file = b.FdFacts(pid=100, fd=7, kind=FdKind.FILE, target="/c/7", inode=7, mode="rw")
    others = (b.asleep(101, seconds=20.0), b.stopped(102))
    looks = b.twice(flock(100), *others, file_locks=locks, fds=[file])
    report = analyze(b.evidence(processes, looks))
    wait = next(wait for wait in report.waits if wait.pid == 100)
    assert (wait.holder, [one.pid for one in wait.candidates]) == (None, [101, 102])
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
