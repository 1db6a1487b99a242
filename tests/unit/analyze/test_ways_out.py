"""What is no proof since somebody else may end a wait by legal means, and what is one all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze.report import alarms_wanted, analyze, shared_locks_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, State
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder
from pyhangtrace.model.processes import PosixTimer, ProcessFacts, PythonFacts
from pyhangtrace.model.report import Verdict
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b

PROVEN, LIKELY = Confidence.PROVEN, Confidence.LIKELY
USR1, ALRM, INT, TERM = 10, 14, 2, 15
MONOTONIC, PROCESS_CPU = 1, 2
PAUSE, RT_SIGTIMEDWAIT = 34, 128


def nap(pid: int, tid: int | None = None, *, slept: float = 11.0, left: float = 30.0) -> ThreadSample:
    return b.asleep(pid, tid, seconds=slept + left, left=left, asleep_for_s=slept)


def mutex(tid: int, owner: int, kind: str, *, pid: int = 100, shared: bool = False) -> ThreadSample:
    key = (1, 7, tid) if shared else None
    sample = b.on_mutex(pid, tid if tid != pid else None, owner=owner, address=0x8000 + tid, shared_key=key)
    assert sample.lock is not None
    return replace(sample, lock=replace(sample.lock, kind=kind))


def circle(kind: str = "mutex_recursive") -> tuple[ThreadSample, ThreadSample]:
    """Two threads of process 100."""
    return mutex(201, 202, kind), mutex(202, 201, kind)


def apart(kind: str = "mutex_robust") -> tuple[ThreadSample, ThreadSample]:
    """Processes 100 and 101."""
    return mutex(100, 101, kind, shared=True), mutex(101, 100, kind, pid=101, shared=True)


def verdict_of(*threads: ThreadSample, **process: Any) -> Verdict:
    return analyze(evidence_of(*threads, **process)).verdict


def evidence_of(*threads: ThreadSample, **process: Any) -> Evidence:
    pids = sorted({thread.pid for thread in threads})
    return b.evidence([b.process(pid, **process) for pid in pids], b.twice(*threads))


@pytest.mark.parametrize("other", [nap(100, 203), nap(300)], ids=["thread", "brother"])
def test_a_handler_may_give_back_what_its_thread_has_where_somebody_sleeps_who_may_send_the_signal(
    other: ThreadSample,
) -> None:
    deadlock = verdict_of(*circle(), other, signals_caught=(USR1,))
    assert (deadlock.state, deadlock.cause, deadlock.confidence) == (State.HUNG, Kind.LOCK_CYCLE, LIKELY)
    assert verdict_of(*circle(), other, signals_caught=()).confidence is PROVEN
    assert verdict_of(*circle(), signals_caught=(USR1,)).confidence is PROVEN


@pytest.mark.parametrize("signal", [USR1, TERM])
def test_who_naps_may_be_the_child_of_a_child_that_sends_the_signal_then(signal: int) -> None:
    shell = b.sleeper(300, syscall=b.WAIT4, args=(301, 0, 0, 0, 0, 0))
    processes = [
        b.process(100, signals_caught=(signal,)),
        b.process(300, ppid=100),
        b.process(301, ppid=300),
    ]
    for sleeps, sure in ((nap(301), LIKELY), (nap(301, left=3600.0), PROVEN)):
        deadlock = analyze(b.evidence(processes, b.twice(*circle(), shell, sleeps))).verdict
        assert (deadlock.state, deadlock.confidence) == (State.HUNG, sure)


@pytest.mark.parametrize(
    "other",
    [nap(100, 203, slept=4.0), nap(100, 203, left=3600.0), b.on_fd(100, 203, fd=3, syscall=b.ACCEPT)],
    ids=["has run since", "for long", "serves"],
)
def test_a_handler_is_nothing_to_those_who_have_let_it_be(other: ThreadSample) -> None:
    assert verdict_of(*circle(), other, signals_caught=(USR1,)).confidence is PROVEN


def test_who_waits_for_a_signal_with_a_time_limit_sleeps_by_the_clock() -> None:
    waits = b.sleeper(300, syscall=RT_SIGTIMEDWAIT, timeout_s=40.0, remaining_s=29.0, asleep_for_s=11.0)
    assert verdict_of(*circle(), waits, signals_caught=(USR1,)).confidence is LIKELY


@pytest.mark.parametrize(
    ("timers", "sure"),
    [
        ((PosixTimer(signal=USR1, clock=MONOTONIC),), LIKELY),
        ((PosixTimer(signal=USR1, clock=PROCESS_CPU),), PROVEN),  # stands still while all sleep
        ((PosixTimer(signal=None, clock=MONOTONIC),), PROVEN),
        ((), PROVEN),
    ],
)
def test_a_timer_may_call_a_handler(timers: tuple[PosixTimer, ...], sure: Confidence) -> None:
    deadlock = verdict_of(*circle(), signals_caught=(USR1,), timers=timers)
    assert (deadlock.state, deadlock.confidence) == (State.HUNG, sure)


def rlocks(main: bool) -> tuple[ThreadSample, ThreadSample]:
    def one(tid: int, owner: int) -> ThreadSample:
        at = 0x6000 + tid * 16
        lock = LockFacts(
            kind="python_rlock", address=at, uaddr=at, op=9, value=0, owner_tid=owner, owner_exact=True
        )
        return b.sleeper(100, None if tid == 100 else tid, lock=lock, frames=(b.py("step"),))

    first = 100 if main else 201
    return one(first, 202), one(202, first)


@pytest.mark.parametrize(("main", "sure"), [(True, LIKELY), (False, PROVEN)])
def test_sigint_may_end_what_the_main_thread_of_python_waits_for(main: bool, sure: Confidence) -> None:
    python = PythonFacts(version="3.12", layout_from="3.12")
    deadlock = verdict_of(*rlocks(main), nap(100, 203), signals_caught=(INT,), python=python)
    assert (deadlock.state, deadlock.cause, deadlock.confidence) == (State.HUNG, Kind.LOCK_CYCLE, sure)
    assert verdict_of(*rlocks(main), signals_caught=(INT,), python=python).confidence is PROVEN


@pytest.mark.parametrize("kind", ["mutex_robust", "mutex_recursive", "mutex_errorcheck"])
def test_that_somebody_may_kill_a_process_takes_nothing_from_a_proof(kind: str) -> None:
    watched = verdict_of(*apart(kind), nap(300))
    assert (watched.state, watched.confidence) == (State.HUNG, PROVEN)
    assert not any("unless" in step for step in watched.next_steps)


@pytest.mark.parametrize(
    ("other", "caught", "sure"),
    [
        (nap(300), (INT,), PROVEN),  # as any supervisor may
        (nap(300), (INT, TERM), PROVEN),
        (nap(300), (INT, USR1), LIKELY),
        (nap(100, 203), (TERM,), LIKELY),
    ],
    ids=["Ctrl-C", "asked to end", "signalled", "by itself"],
)
def test_a_signal_that_asks_to_end_lets_go_on_where_its_own_process_sends_it(
    other: ThreadSample, caught: tuple[int, ...], sure: Confidence
) -> None:
    assert verdict_of(*circle(), other, signals_caught=caught).confidence is sure


@pytest.mark.parametrize(
    ("sharers", "sure"),
    [
        (None, LIKELY),  # by descent a brother may have it
        ((100, 101), PROVEN),  # a launcher that naps, and has not
        ((100, 101, 300), LIKELY),
        ((100, 101, 900), LIKELY),  # outside the job
    ],
)
def test_who_has_the_memory_of_a_normal_mutex_may_unlock_it(
    sharers: tuple[int, ...] | None, sure: Confidence
) -> None:
    deadlock = verdict_of(*apart("mutex_normal"), nap(300), lock_sharers=sharers)
    assert (deadlock.state, deadlock.cause, deadlock.confidence) == (State.HUNG, Kind.LOCK_CYCLE, sure)
    assert verdict_of(*apart("mutex_robust"), nap(300), lock_sharers=sharers).confidence is PROVEN


def test_who_has_the_memory_is_asked_for_where_others_could_unlock_a_lock_of_it() -> None:
    wanted = {100: frozenset({(1, 7)}), 101: frozenset({(1, 7)})}
    assert shared_locks_wanted(evidence_of(*apart("mutex_normal"))) == wanted
    assert shared_locks_wanted(evidence_of(*apart("mutex_robust"))) == {}
    assert shared_locks_wanted(evidence_of(*circle("mutex_normal"))) == {}


def flocks(*others: ThreadSample, **second: Any) -> Verdict:
    """Processes 100 and 101 that want each other's files; `second`: changes to what is known of 101."""
    locks = [
        FileLock(kind="flock", access="write", pid=holder, device=1, inode=inode, waiters=(waiter,))
        for inode, holder, waiter in ((7, 101, 100), (8, 100, 101))
    ]
    fds = [FdFacts(pid=pid, fd=7, kind=FdKind.FILE, target="/c/f", inode=pid - 93) for pid in (100, 101)]
    waits = [b.sleeper(pid, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0)) for pid in (100, 101)]
    processes: list[ProcessFacts] = [b.process(100), b.process(101, **second)]
    processes += [b.process(other.pid) for other in others]
    return analyze(b.evidence(processes, b.twice(*waits, *others, fds=fds, file_locks=locks))).verdict


def test_a_ring_of_files_is_one_whoever_may_kill_one_of_it() -> None:
    assert (flocks().state, flocks().confidence) == (State.HUNG, PROVEN)
    watched = flocks(nap(300))
    assert (watched.state, watched.confidence) == (State.HUNG, PROVEN)


def rings(
    *others: ThreadSample, parents: dict[int, int], fds: tuple[FdFacts, ...] = (), **grand: Any
) -> Verdict:
    """The same ring of files beside other processes; 100 and 101 are children of 50, which is one of 40.

    `parents` of the others, by pid; `grand`: what is known of 40.
    """
    locks = [
        FileLock(kind="flock", access="write", pid=holder, device=1, inode=inode, waiters=(waiter,))
        for inode, holder, waiter in ((7, 101, 100), (8, 100, 101))
    ]
    files = [FdFacts(pid=pid, fd=7, kind=FdKind.FILE, target="/c/f", inode=pid - 93) for pid in (100, 101)]
    waits = [b.sleeper(pid, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0)) for pid in (100, 101)]
    processes = [b.process(100), b.process(101), b.process(40, ppid=1, **grand)]
    processes += [b.process(pid, ppid=ppid) for pid, ppid in parents.items()]
    looks = b.twice(*waits, *others, fds=[*files, *fds], file_locks=locks)
    return analyze(b.evidence(processes, looks)).verdict


def in_wait(pid: int, child: int) -> ThreadSample:
    return b.sleeper(pid, syscall=b.WAIT4, args=(child & 0xFFFFFFFF, 0, 0, 0, 0, 0))


def test_launchers_of_a_ring_that_sleep_or_have_a_timer_take_nothing_from_it() -> None:
    shell = in_wait(50, -1)
    assert rings(shell, in_wait(40, 50), parents={50: 40}).confidence is PROVEN
    assert rings(shell, nap(40), parents={50: 40}).confidence is PROVEN
    timer = PosixTimer(signal=ALRM, clock=MONOTONIC)
    timed = rings(
        shell,
        in_wait(40, 50),
        parents={50: 40},
        timers=(timer,),
        signals_caught=(ALRM,),
        comm="timeout",
        title="timeout -k 5 1h bash run.sh",
        started_s_ago=600.0,
    )
    assert (timed.state, timed.confidence) == (State.HUNG, PROVEN)
    assert timed.deadline is not None
    assert (timed.deadline.in_s, "pid 40" in timed.deadline.what) == (3000.0, True)


@pytest.mark.parametrize("watcher", [50, 300], ids=["parent", "brother"])
def test_a_ring_stays_one_beside_one_that_hears_of_others(watcher: int) -> None:
    """Another process, in accept(), has the other end of its pipe; or it waits for that one to end."""
    serves = b.on_fd(301, fd=4, syscall=b.ACCEPT)
    listens = b.connection(301, 4, 19, state="LISTEN")
    parents = {50: 40, 301: watcher, **({300: 50} if watcher == 300 else {})}
    for hears in (b.on_fd(watcher, fd=3), in_wait(watcher, 301)):
        pipe = b.pipe(watcher, 3, 9, Holder(pid=301, mode="w"))
        verdict = rings(hears, serves, parents=parents, fds=(pipe, listens))
        assert (verdict.state, verdict.cause, verdict.confidence) == (State.HUNG, Kind.LOCK_CYCLE, PROVEN)


def test_who_waits_for_the_job_itself_takes_nothing_from_it() -> None:
    """A shell waits for any of its children, one of which serves; or for one, which has started the ring and serves."""
    serves = [b.on_fd(pid, fd=4, syscall=b.ACCEPT) for pid in (301, 50)]
    listens = tuple(b.connection(pid, 4, pid, state="LISTEN") for pid in (301, 50))
    parents = {50: 40, 301: 50}
    any_child = rings(in_wait(50, -1), serves[0], in_wait(40, 50), parents=parents, fds=listens)
    assert (any_child.state, any_child.confidence) == (State.HUNG, PROVEN)
    one = rings(serves[1], in_wait(40, 50), parents={50: 40}, fds=listens)
    assert (one.state, one.confidence) == (State.HUNG, PROVEN)


@pytest.mark.parametrize(
    ("caught", "state"),
    [((ALRM,), State.UNKNOWN), ((), State.HUNG)],
    ids=["flock -w", "dies of it"],
)
def test_a_timer_of_its_own_ends_the_wait_some_day(caught: tuple[int, ...], state: State) -> None:
    timer = PosixTimer(signal=ALRM, clock=MONOTONIC)
    verdict = flocks(timers=(timer,), signals_caught=caught)
    assert (verdict.state, verdict.confidence is PROVEN) == (state, state is State.HUNG)


@pytest.mark.parametrize(
    ("kind", "sure"), [("mutex_normal", LIKELY), ("mutex_adaptive", LIKELY), ("mutex_recursive", PROVEN)]
)
def test_a_thread_that_reads_from_others_may_unlock_a_normal_mutex(kind: str, sure: Confidence) -> None:
    hears = b.on_fd(100, 203, fd=3)
    threads = (*circle(kind), hears)
    fds = [b.pipe(100, 3, 9, Holder(pid=400, mode="w"))]
    verdict = analyze(b.evidence([b.process(100)], b.twice(*threads, fds=fds))).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, sure)
    serves = b.on_fd(100, 203, fd=3, syscall=b.ACCEPT)
    looks = b.twice(*circle(kind), serves, fds=[b.connection(100, 3, 9, state="LISTEN")])
    assert analyze(b.evidence([b.process(100)], looks)).verdict.confidence is PROVEN


SEMOP, MSGRCV, MQ_TIMEDRECEIVE = 65, 70, 243
CHILD = 101


def for_child(pid: int = CHILD) -> ThreadSample:
    return b.sleeper(100, 203, syscall=b.WAIT4, args=(pid, 0, 0, 0, 0, 0))


def on_word(kind: str, *, shared: bool) -> ThreadSample:
    key = (1, 9, 0) if shared else None
    lock = LockFacts(kind=kind, address=0xC000, uaddr=0xC000, op=9, value=0, shared_key=key)
    return b.sleeper(100, 203, lock=lock, frames=(b.native("step", "program"),))


def beside_child(
    third: ThreadSample, child: ThreadSample | None = None, *, kind: str = "mutex_normal", **look: Any
) -> Verdict:
    """A circle of two mutexes beside a third thread, and a child that is in accept() if nothing else is said."""
    serves = b.on_fd(CHILD, fd=4, syscall=b.ACCEPT)
    fds = [b.connection(CHILD, 4, 19, state="LISTEN"), *look.pop("fds", ())]
    processes = [b.process(100), b.process(CHILD, ppid=100)]
    looks = b.twice(*circle(kind), third, child if child is not None else serves, fds=fds, **look)
    return analyze(b.evidence(processes, looks)).verdict


def descriptor(kind: FdKind, *others: int) -> FdFacts:
    holders = tuple(Holder(pid=pid, mode="rw") for pid in (100, *others))
    return FdFacts(pid=100, fd=3, kind=kind, target=f"anon_inode:[{kind.value}]", others=holders)


HEARS = [
    pytest.param(for_child(), (), id="child"),
    pytest.param(b.on_fd(100, 203, fd=3), (descriptor(FdKind.EVENTFD, CHILD),), id="eventfd"),
    pytest.param(b.on_fd(100, 203, fd=3), (descriptor(FdKind.INOTIFY),), id="inotify"),
    pytest.param(b.on_fd(100, 203, fd=3), (descriptor(FdKind.SIGNALFD),), id="signalfd"),
    pytest.param(on_word("semaphore", shared=True), (), id="shared semaphore"),
    pytest.param(on_word("barrier", shared=True), (), id="shared barrier"),
    pytest.param(b.sleeper(100, 203, syscall=SEMOP, args=(1, 0, 1, 0, 0, 0)), (), id="semop"),
    pytest.param(b.sleeper(100, 203, syscall=MSGRCV, args=(1, 0, 8, 0, 0, 0)), (), id="msgrcv"),
    pytest.param(
        b.sleeper(100, 203, syscall=MQ_TIMEDRECEIVE, args=(3, 0, 8, 0, 0, 0)),
        (descriptor(FdKind.MQUEUE, CHILD),),
        id="mq_receive",
    ),
    pytest.param(b.sleeper(100, 203, syscall=RT_SIGTIMEDWAIT), (), id="sigwait"),
]


@pytest.mark.parametrize(("third", "fds"), HEARS)
def test_a_thread_that_others_may_wake_may_unlock_a_normal_mutex(
    third: ThreadSample, fds: tuple[FdFacts, ...]
) -> None:
    verdict = beside_child(third, fds=fds)
    assert (verdict.state, verdict.cause, verdict.confidence) == (State.HUNG, Kind.LOCK_CYCLE, LIKELY)
    assert beside_child(third, kind="mutex_recursive", fds=fds).confidence is PROVEN


@pytest.mark.parametrize(
    ("third", "fds"),
    [
        pytest.param(b.on_fd(100, 203, fd=3), (descriptor(FdKind.EVENTFD),), id="eventfd of its own"),
        pytest.param(on_word("semaphore", shared=False), (), id="semaphore of its own"),
        pytest.param(on_word("condition", shared=False), (), id="condition"),
        pytest.param(b.sleeper(100, 203, syscall=PAUSE), (), id="pause, no handler"),
    ],
)
def test_who_waits_for_its_own_process_hears_of_nobody(third: ThreadSample, fds: tuple[FdFacts, ...]) -> None:
    assert beside_child(third, fds=fds).confidence is PROVEN


def test_who_waits_for_a_child_that_waits_for_the_circle_hears_nothing() -> None:
    fds = [b.pipe(CHILD, 3, 9, Holder(pid=100, mode="w"))]
    assert beside_child(for_child(), b.on_fd(CHILD, fd=3), fds=fds).confidence is PROVEN
    fds = [b.pipe(CHILD, 3, 9, Holder(pid=400, mode="w"))]
    assert beside_child(for_child(), b.on_fd(CHILD, fd=3), fds=fds).confidence is LIKELY


@pytest.mark.parametrize(("holder", "sure"), [(CHILD, LIKELY), (100, PROVEN)])
def test_who_waits_for_a_file_lock_hears_of_its_holder(holder: int, sure: Confidence) -> None:
    wants = b.sleeper(100, 203, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    locks = [FileLock(kind="flock", access="write", pid=holder, device=1, inode=7, waiters=(100,))]
    fds = [FdFacts(pid=100, fd=7, kind=FdKind.FILE, target="/c/f", inode=7)]
    assert beside_child(wants, fds=fds, file_locks=locks).confidence is sure


@pytest.mark.parametrize("ends", [False, True], ids=["its main thread is stuck, too", "its main thread naps"])
def test_who_waits_for_a_child_hears_of_its_main_thread_alone(ends: bool) -> None:
    main = nap(CHILD) if ends else mutex(CHILD, 302, "mutex_recursive", pid=CHILD)
    helpers = (mutex(302, 303, "mutex_recursive", pid=CHILD), mutex(303, 302, "mutex_recursive", pid=CHILD))
    processes = [b.process(100), b.process(CHILD, ppid=100)]
    looks = b.twice(*circle("mutex_normal"), for_child(), main, *helpers, nap(CHILD, 304))
    verdict = analyze(b.evidence(processes, looks)).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, LIKELY if ends else PROVEN)


def test_a_joined_thread_may_be_cancelled_by_one_that_reads_from_others() -> None:
    lock = LockFacts(
        kind="join", address=0x9000, uaddr=0x9000, op=9, value=0, owner_tid=202, owner_exact=True
    )
    joins = b.sleeper(100, 201, lock=lock, frames=(b.native("__pthread_clockjoin_ex", "libc.so.6"),))
    hears = b.on_fd(100, 203, fd=3)
    fds = [b.pipe(100, 3, 9, Holder(pid=400, mode="w"))]
    for others, sure in (((), PROVEN), ((hears,), LIKELY)):
        threads = (joins, mutex(202, 201, "mutex_recursive"), *others)
        verdict = analyze(b.evidence([b.process(100)], b.twice(*threads, fds=fds))).verdict
        assert (verdict.state, verdict.confidence) == (State.HUNG, sure)


def test_a_thread_that_is_stopped_by_a_tracer_that_naps_may_go_on_then() -> None:
    def of_tracer(tracer: ThreadSample) -> Verdict:
        stopped = b.sleeper(101, state="t", tracer_pid=300)
        waiter = mutex(100, 101, "mutex_recursive", shared=True)
        return verdict_of(waiter, stopped, tracer)

    assert of_tracer(b.sleeper(300, syscall=b.WAIT4, args=(101, 0, 0, 0, 0, 0))).state is State.HUNG
    assert of_tracer(nap(300)).state is State.UNKNOWN


def test_a_stopped_process_may_be_let_go_on_by_one_that_naps() -> None:
    waiter = mutex(100, 101, "mutex_recursive", shared=True)
    alone = verdict_of(waiter, b.stopped(101))
    watched = verdict_of(waiter, b.stopped(101), nap(300))
    assert (alone.state, alone.confidence) == (State.HUNG, PROVEN)
    assert (watched.state, watched.confidence) == (State.HUNG, LIKELY)


def test_the_report_says_who_may_end_it() -> None:
    steps = verdict_of(*circle(), nap(300), signals_caught=(USR1,)).next_steps
    assert "unless pid 300 (program-300), which sleeps" in steps[-1]
    assert "it may send a signal" in steps[-1]
    stopped = verdict_of(mutex(100, 101, "mutex_recursive", shared=True), b.stopped(101), nap(300))
    assert "it may let the stopped process go on" in stopped.next_steps[-1]
    timer = PosixTimer(signal=USR1, clock=MONOTONIC)
    steps = verdict_of(*circle(), signals_caught=(USR1,), timers=(timer,)).next_steps
    assert "unless a timer of pid 100 steps in" in steps[-1]
    timer = PosixTimer(signal=ALRM, clock=MONOTONIC)
    steps = flocks(timers=(timer,), signals_caught=(ALRM,)).next_steps
    assert any(step.startswith("look again in a minute, since a timer of pid 101") for step in steps)


@pytest.mark.parametrize(("seconds", "state"), [(10.0, State.UNKNOWN), (90.0, State.HUNG)])
def test_subprocess_naps_only_where_it_was_given_a_timeout(seconds: float, state: State) -> None:
    """A process waits by subprocess.run(timeout=...) for a child that wants a file of it."""
    naps = b.asleep(100, seconds=0.05, left=0.02, asleep_for_s=0.03)
    naps = replace(
        naps, frames=(b.py("Popen._wait", "/usr/lib/python3.12/subprocess.py", 2040), b.py("main"))
    )
    wants = b.sleeper(101, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0), asleep_for_s=seconds)
    locks = [FileLock(kind="flock", access="write", pid=100, device=1, inode=7, waiters=(101,))]
    fds = [FdFacts(pid=101, fd=7, kind=FdKind.FILE, target="/c/f", inode=7)]
    looks = (
        b.look(naps, wants, fds=fds, file_locks=locks),
        b.look(b.moved(naps), wants, at=3.0, fds=fds, file_locks=locks),
    )
    processes = [b.process(100), b.process(101, ppid=100)]
    assert analyze(b.evidence(processes, looks)).verdict.state is state


def signalled(tid: int | None, kind: str) -> ThreadSample:
    at = 0xB000 + (tid or 0) * 64
    lock = LockFacts(kind=kind, address=at, uaddr=at, op=9, value=0)
    return b.sleeper(100, tid, lock=lock, frames=(b.native("step", "program"),))


@pytest.mark.parametrize("kind", ["barrier", "semaphore", "condition"])
def test_that_somebody_listens_does_not_make_a_missing_party_healthy(kind: str) -> None:
    lock = LockFacts(
        kind="join", address=0x9000, uaddr=0x9000, op=9, value=0, owner_tid=202, owner_exact=True
    )
    joins = b.sleeper(100, lock=lock, frames=(b.native("__pthread_clockjoin_ex", "libc.so.6"),))
    serves = b.on_fd(100, 203, fd=3, syscall=b.ACCEPT)
    threads = (joins, signalled(202, kind), signalled(204, kind), serves)
    looks = b.twice(*threads, fds=[b.connection(100, 3, 9, state="LISTEN")])
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    # A condition is how pools of threads wait for work.
    assert verdict.state is (State.IDLE if kind == "condition" else State.UNKNOWN)


@pytest.mark.parametrize(("kind", "word"), [("futex", "a futex word"), ("atomic", "an atomic")])
def test_a_word_is_not_called_a_condition(kind: str, word: str) -> None:
    looks = b.twice(signalled(None, kind), signalled(202, "semaphore"))
    report = analyze(b.evidence([b.process(100)], looks))
    assert word in report.verdict.summary


@pytest.mark.parametrize(
    ("other", "state"),
    [(nap(101), State.UNKNOWN), (b.on_fd(101, fd=3), State.HUNG)],
    ids=["sleeps", "waits for it"],
)
def test_a_process_in_the_same_memory_may_have_the_mutex(other: ThreadSample, state: State) -> None:
    """Its locks may have the id of a thread of this process, whose storage it runs on."""
    itself = mutex(100, 100, "mutex_normal")
    processes = [b.process(100, same_memory=(101,)), b.process(101, ppid=100, same_memory=(100,))]
    fds = [b.pipe(101, 3, 9, Holder(pid=100, mode="w"))]
    verdict = analyze(b.evidence(processes, b.twice(itself, other, fds=fds))).verdict
    assert (verdict.state, verdict.confidence is PROVEN) == (state, False)


def test_a_mutex_that_a_process_in_the_same_memory_has_is_its() -> None:
    processes = [b.process(100, same_memory=(101,)), b.process(101, ppid=100, same_memory=(100,))]
    report = analyze(b.evidence(processes, b.twice(mutex(100, 101, "mutex_normal"), nap(101))))
    wait = next(wait for wait in report.waits if wait.pid == 100)
    assert wait.holder is not None
    assert (wait.holder.pid, wait.holder.alive) == (101, True)


@pytest.mark.parametrize(
    ("left", "caught", "state", "sure"),
    [
        (20.0, (), State.HUNG, PROVEN),  # it ends the process
        (20.0, (ALRM,), State.UNKNOWN, Confidence.POSSIBLE),  # it ends the wait
        (600.0, (ALRM,), State.HUNG, LIKELY),
        (None, (), State.HUNG, PROVEN),
    ],
)
def test_an_alarm_with_a_handler_ends_the_wait_of_its_process_another_one_the_process(
    left: float | None, caught: tuple[int, ...], state: State, sure: Confidence
) -> None:
    verdict = flocks(alarm_s=left, signals_caught=caught)
    assert (verdict.state, verdict.confidence) == (state, sure)
    told = verdict.deadline is not None and "the alarm of pid 101" in verdict.deadline.what
    assert told is (left is not None and not caught)
    if state is State.UNKNOWN:
        assert any("the alarm of pid 101, 20 s to go" in step for step in verdict.next_steps)


def test_alarms_are_asked_for_of_those_who_hang_only() -> None:
    assert alarms_wanted(evidence_of(*circle())) == (100,)
    assert alarms_wanted(evidence_of(nap(100))) == ()


@pytest.mark.parametrize(("slept", "state"), [(10.0, State.UNKNOWN), (90.0, State.HUNG)])
def test_an_alarm_with_a_handler_may_end_a_circle_of_mutexes(slept: float, state: State) -> None:
    threads = [replace(thread, asleep_for_s=slept) for thread in circle()]
    verdict = verdict_of(*threads, alarm_s=20.0, signals_caught=(ALRM,))
    assert (verdict.state, verdict.confidence is PROVEN) == (state, False)


@pytest.mark.parametrize(
    ("caught", "state"), [((), State.UNKNOWN), ((USR1,), State.IDLE)], ids=["no handler", "handler"]
)
def test_who_pauses_with_a_lock_and_has_no_handler_is_not_waiting_for_work(
    caught: tuple[int, ...], state: State
) -> None:
    pauses = b.sleeper(101, syscall=PAUSE, frames=(b.native("pause", "libc.so.6"),))
    waits = b.sleeper(100, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    locks = [FileLock(kind="flock", access="write", pid=101, device=1, inode=7, waiters=(100,))]
    fds = [FdFacts(pid=100, fd=7, kind=FdKind.FILE, target="/c/f", inode=7)]
    processes = [b.process(100), b.process(101, signals_caught=caught)]
    verdict = analyze(b.evidence(processes, b.twice(waits, pauses, fds=fds, file_locks=locks))).verdict
    assert verdict.state is state
