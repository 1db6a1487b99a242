"""Locks and channels within one process that record nobody: hung only where nobody in it can go on."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, Kind, State, WaitKind
from pyhangtrace.model.open_files import Holder
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b


def one_process(*threads: ThreadSample, fds: tuple[b.FdFacts, ...] = ()) -> Evidence:
    return b.evidence([b.process(100)], b.twice(*threads, fds=list(fds)))


def on_event(tid: int, *, timeout_s: float | None) -> ThreadSample:
    """In threading.Event.wait()."""
    frames = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("later"))
    lock = LockFacts(
        kind="python_lock", address=0x7700, uaddr=0x7700, op=9, value=0, timeout=timeout_s is not None
    )
    left = None if timeout_s is None else timeout_s / 2
    return b.sleeper(100, tid, frames=frames, lock=lock, timeout_s=timeout_s, remaining_s=left)


@pytest.mark.parametrize(
    "other",
    [b.asleep(100, 101, seconds=30), on_event(101, timeout_s=25.0)],
    ids=["naps", "waits with a timeout"],
)
def test_who_has_time_to_pass_may_yet_release_a_plain_lock(other: ThreadSample) -> None:
    verdict = analyze(one_process(b.on_python_lock(100), other)).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_a_plain_lock_is_hung_where_the_clock_wakes_the_others_only_after_long() -> None:
    verdict = analyze(one_process(b.on_python_lock(100), b.asleep(100, 101, seconds=9000))).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.LIKELY)
    assert 101 not in {who.tid for who in verdict.culprits}


def test_a_plain_lock_that_was_wanted_only_just_now_is_looked_at_for_longer() -> None:
    evidence = one_process(b.on_python_lock(100, asleep_for_s=1.0), b.asleep(100, 101, seconds=30))
    assert analyze(evidence).verdict.state is State.UNKNOWN
    assert more_time_wanted(evidence) > 0


def test_a_plain_lock_is_hung_where_all_others_are() -> None:
    stuck = b.on_mutex(100, 101, owner=100)
    verdict = analyze(one_process(b.on_python_lock(100), stuck)).verdict
    assert verdict.state is State.HUNG


def test_nobody_else_is_there_to_release_it() -> None:
    verdict = analyze(one_process(b.on_python_lock(100))).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_HELD)


def own_connection() -> b.FdFacts:
    return b.connection(100, 4, 9, Holder(pid=100, fd=5, mode="rw"))


def test_a_sleeper_may_be_about_to_answer_on_a_connection_within_the_process() -> None:
    threads = (b.on_mutex(100, owner=101), b.on_fd(100, 101, fd=4), b.asleep(100, 102, seconds=15))
    verdict = analyze(one_process(*threads, fds=(own_connection(),))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_nobody_answers_on_a_connection_within_the_process() -> None:
    threads = (b.on_mutex(100, owner=101), b.on_fd(100, 101, fd=4), b.on_mutex(100, 102, owner=101))
    verdict = analyze(one_process(*threads, fds=(own_connection(),))).verdict
    assert verdict.state is State.HUNG


def test_long_sleepers_without_anybody_to_blame_are_not_watched() -> None:
    semaphore = LockFacts(kind="semaphore", address=0x100, uaddr=0x100, op=9, value=0)
    evidence = one_process(*(b.sleeper(100, tid, lock=semaphore) for tid in (100, 101)))
    assert analyze(evidence).verdict.state is State.UNKNOWN
    assert more_time_wanted(evidence) == 0.0


def test_who_waits_for_a_bare_lock_of_the_c_library_is_not_idle() -> None:
    problem = "lock inside the C library, which records no owner"
    lock = LockFacts(kind="futex", address=0x7700, uaddr=0x7700, op=0, value=2, problem=problem)
    waits = b.sleeper(
        100, frames=(b.native("malloc", "libc.so.6"),), lock=lock, args=(0x7700, 0x80, 2, 0, 0, 0)
    )
    report = analyze(one_process(waits, b.asleep(100, 101, seconds=3600)))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    wait = next(one for one in report.waits if one.tid == 100)
    assert (wait.kind, [one.tid for one in wait.candidates]) == (WaitKind.MUTEX, [101])


def on_shared_futex(pid: int, tid: int) -> ThreadSample:
    lock = LockFacts(kind="semaphore", address=0x9000, uaddr=0x9000, op=9, value=0, shared_key=(1, 77, 0))
    return b.sleeper(
        pid, tid, frames=(b.native("sem_wait", "libc.so.6"), b.native("serve", "job")), lock=lock
    )


def reads_elsewhere(other: ThreadSample) -> Evidence:
    """A thread that wants a lock of nobody, one that waits in shared memory, and another process."""
    threads = (b.on_python_lock(100), on_shared_futex(100, 101), other)
    return b.evidence([b.process(100), b.process(200, ppid=100)], b.twice(*threads))


@pytest.mark.parametrize("other", [b.asleep(200, seconds=30), b.running(200)], ids=["naps", "works"])
def test_another_process_may_serve_whom_it_shares_memory_with(other: ThreadSample) -> None:
    verdict = analyze(reads_elsewhere(other)).verdict
    assert (verdict.state is State.HUNG, verdict.culprits) == (False, ())


def test_one_that_sleeps_for_long_serves_nobody() -> None:
    verdict = analyze(reads_elsewhere(b.asleep(200, seconds=9000))).verdict
    assert verdict.state is State.HUNG


def test_memory_of_its_own_is_served_by_its_own_threads() -> None:
    threads = (b.on_python_lock(100), on_event(101, timeout_s=None), b.asleep(200, seconds=30))
    evidence = b.evidence([b.process(100), b.process(200, ppid=100)], b.twice(*threads))
    assert analyze(evidence).verdict.state is State.HUNG
