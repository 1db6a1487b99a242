"""Signals that nobody but a stuck thread could give, and locks behind somebody who naps or that record no owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.model.kinds import Confidence, Kind, Part, State
from pyhangtrace.model.report import Verdict
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b

EVENT = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("main"))
QUEUE = (b.py("Condition.wait", b.THREADING), b.py("Queue.get", "/usr/lib/python3.11/queue.py"), b.py("main"))
NATIVE = (b.native("pthread_cond_wait", "libc.so.6"), b.native("serve", "server"))


def waits_for_a_signal(
    tid: int | None = None, *, frames: Any = EVENT, kind: str = "python_lock", **changes: Any
) -> ThreadSample:
    lock = LockFacts(kind=kind, address=0x7700, uaddr=0x7700, op=9, value=0, **changes.pop("facts", {}))
    return b.sleeper(100, tid, frames=frames, lock=lock, **changes)


def verdict_of(*threads: ThreadSample, caught: tuple[int, ...] | None = (2,)) -> Verdict:
    process = b.process(100, signals_caught=caught)
    return analyze(b.evidence([process], b.twice(*threads))).verdict


@pytest.mark.parametrize(
    ("frames", "kind"),
    [(EVENT, "python_lock"), (QUEUE, "python_lock"), (NATIVE, "condition"), (NATIVE, "future")],
)
def test_who_alone_could_give_the_signal_wants_a_lock_of_the_waiter(frames: Any, kind: str) -> None:
    verdict = verdict_of(waits_for_a_signal(frames=frames, kind=kind), b.on_mutex(100, 101, owner=100))
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.LOCK_CYCLE,
        Confidence.LIKELY,
    )
    assert {(who.tid, who.part) for who in verdict.culprits} == {(100, Part.PARTY), (101, Part.PARTY)}


def test_one_that_is_met_between_two_waits_for_the_signal_is_looked_at_for_longer() -> None:
    first = waits_for_a_signal(facts={"timeout": True}, timeout_s=0.4, remaining_s=0.3, asleep_for_s=0.1)
    later = replace(b.moved(first), frames=(b.py("main", line=2),))
    wants = b.on_mutex(100, 101, owner=100, asleep_for_s=1.0)
    looks = (b.look(first, wants), b.look(later, wants, at=0.1))
    assert more_time_wanted(b.evidence([b.process(100, signals_caught=())], looks)) > 2.0


def test_of_several_that_are_stuck_behind_the_waiter_none_is_said_to_owe_the_signal() -> None:
    joins = b.sleeper(
        100,
        frames=(b.py("Thread.join", b.THREADING), b.py("main")),
        named_values=(b.local("Thread.join", "_native_id", 101),),
    )
    verdict = verdict_of(joins, waits_for_a_signal(101), b.on_mutex(100, 102, owner=101))
    assert (verdict.state, verdict.culprits, verdict.cycle) == (State.UNKNOWN, (), ())


@pytest.mark.parametrize(
    "other",
    [
        b.asleep(100, 102, seconds=30),
        b.running(100, 102),
        b.on_fd(100, 102, fd=9),
        waits_for_a_signal(102, frames=QUEUE),
        b.on_mutex(100, 102, owner=777, address=0x9900),
    ],
    ids=["naps", "works", "reads", "waits for work", "wants a lock of another one"],
)
def test_any_other_thread_may_give_it(other: ThreadSample) -> None:
    verdict = verdict_of(waits_for_a_signal(), b.on_mutex(100, 101, owner=100), other)
    assert not (verdict.state is State.HUNG and verdict.cause is Kind.LOCK_CYCLE)
    assert 100 not in {who.tid for who in verdict.culprits}


@pytest.mark.parametrize("caught", [(14,), (2, 10), None])
def test_a_handler_of_a_signal_may_give_it(caught: tuple[int, ...] | None) -> None:
    verdict = verdict_of(waits_for_a_signal(), b.on_mutex(100, 101, owner=100), caught=caught)
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_another_process_that_shares_the_object_may_give_it() -> None:
    shared = waits_for_a_signal(kind="semaphore", frames=NATIVE, facts={"shared_key": (1, 2, 3)})
    verdict = verdict_of(shared, b.on_mutex(100, 101, owner=100))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


def test_a_wait_whose_stack_is_not_whole_may_be_another_one() -> None:
    half = replace(waits_for_a_signal(), stack_complete=False)
    verdict = verdict_of(half, b.on_mutex(100, 101, owner=100))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())


# -- behind somebody who naps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slept", "state"), [(14.0, State.UNKNOWN), (0.05, State.IDLE)])
def test_who_is_kept_out_by_one_that_naps_again_and_again_is_not_idle(slept: float, state: State) -> None:
    naps = b.asleep(100, seconds=0.05, asleep_for_s=0.02)
    stuck = b.on_mutex(100, 101, owner=100, asleep_for_s=slept)
    looks = (b.look(naps, stuck), b.look(b.moved(naps), stuck, at=0.1))
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.culprits) == (state, ())


def test_who_is_kept_out_for_some_naps_only_is_looked_at_for_longer() -> None:
    naps = b.asleep(100, seconds=0.05, asleep_for_s=0.02)
    stuck = b.on_mutex(100, 101, owner=100, asleep_for_s=0.5)
    looks = (b.look(naps, stuck), b.look(b.moved(naps), stuck, at=0.1))
    assert more_time_wanted(b.evidence([b.process(100)], looks)) > 2.0


# -- initialisations ----------------------------------------------------------------------------------------------


def test_who_alone_may_run_an_initialisation_is_busy_with_it() -> None:
    facts = LockFacts(kind="once", address=0x5500, uaddr=0x5500, op=0, value=1)
    waits = b.sleeper(100, lock=facts, frames=NATIVE)
    verdict = verdict_of(waits, b.running(100, 101))
    assert (verdict.state, [who.tid for who in verdict.culprits]) == (State.BUSY, [101])
    verdict = verdict_of(waits, b.running(100, 101), b.asleep(100, 102, seconds=30))
    assert (verdict.state is State.HUNG, verdict.culprits) == (False, ())


# -- plain locks of Python -----------------------------------------------------------------------------------------


def on_plain(tid: int, address: int, **changes: Any) -> ThreadSample:
    sample = b.on_python_lock(100, tid, **changes)
    assert sample.lock is not None
    return replace(
        sample, lock=replace(sample.lock, address=address, uaddr=address, python_lock_address=address)
    )


def listening(*threads: ThreadSample) -> Verdict:
    accepts = b.on_fd(100, fd=3, syscall=b.ACCEPT)
    fds = [b.connection(100, 3, 70, state="LISTEN")]
    return analyze(b.evidence([b.process(100)], b.twice(accepts, *threads, fds=fds))).verdict


def test_two_threads_that_want_different_plain_locks_are_not_idle_behind_one_that_listens() -> None:
    verdict = listening(on_plain(101, 0x6100), on_plain(102, 0x6200))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert "tid 101" in verdict.summary
    assert "tid 102" in verdict.summary


def test_plain_locks_as_signals_of_one_that_listens_are_idle() -> None:
    assert listening(on_plain(101, 0x6100)).state is State.IDLE
    assert listening(on_plain(101, 0x6100), on_plain(102, 0x6100)).state is State.IDLE
    just_now = [on_plain(tid, 0x6000 + tid, asleep_for_s=0.5) for tid in (101, 102)]
    assert listening(*just_now).state is State.IDLE


# -- threads that only watch ---------------------------------------------------------------------------------------


def test_a_thread_that_waits_for_a_child_beside_one_that_listens_is_not_its_process() -> None:
    accepts = b.on_fd(100, fd=3, syscall=b.ACCEPT)
    watches = b.sleeper(100, 101, syscall=b.WAIT4, args=(200, 0, 0, 0, 0, 0))
    naps = b.asleep(200, seconds=20.0, left=9.0)
    fds = [b.connection(100, 3, 70, state="LISTEN")]
    processes = [b.process(100), b.process(200, ppid=100)]
    verdict = analyze(b.evidence(processes, b.twice(accepts, watches, naps, fds=fds))).verdict
    assert (verdict.state, verdict.culprits) == (State.IDLE, ())
    alone = analyze(b.evidence(processes, b.twice(replace(watches, tid=100), naps))).verdict
    assert alone.state is State.SLOW
