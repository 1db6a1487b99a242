"""Programs that must not be called hung, busy ones, slow ones, and evidence that does not decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze, more_time_wanted
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, Role, State
from pyhangtrace.model.open_files import FdFacts, Holder
from pyhangtrace.model.processes import RankClaim
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

LOOP = (
    b.py("EpollSelector.select", "/usr/lib/python3.11/selectors.py"),
    b.py("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py"),
    b.py("BaseEventLoop.run_forever", "/usr/lib/python3.11/asyncio/base_events.py"),
    b.py("main"),
)
POOL = (b.py("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py"),)


def state_of(evidence: Evidence) -> State:
    report = analyze(evidence)
    if report.verdict.state in (State.IDLE, State.RUNNING):
        assert report.verdict.culprits == ()
    return report.verdict.state


def test_idle_asyncio_server_with_a_thread_pool() -> None:
    server = b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP)
    pool = [b.on_python_lock(100, 200 + number, frames=POOL) for number in range(4)]
    epoll = FdFacts(pid=100, fd=4, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=(5,))
    listening = b.connection(100, 5, 70, state="LISTEN")
    evidence = b.evidence([b.process(100)], b.twice(server, *pool, fds=[epoll, listening]))
    assert state_of(evidence) is State.IDLE
    assert more_time_wanted(evidence) == 0.0


def test_main_thread_that_joins_an_idle_server_thread() -> None:
    frames = (b.py("Thread.join", b.THREADING), b.py("main"))
    main = b.sleeper(100, frames=frames, named_values=(b.local("Thread.join", "self._native_id", 201),))
    server = b.on_fd(100, 201, fd=5, syscall=b.ACCEPT)
    evidence = b.evidence(
        [b.process(100)], b.twice(main, server, fds=[b.connection(100, 5, 70, state="LISTEN")])
    )
    assert state_of(evidence) is State.IDLE


def test_idle_worker_that_its_parent_gives_no_work() -> None:
    frames = (
        b.py("Connection._recv", "/usr/lib/python3.11/multiprocessing/connection.py"),
        b.py("SimpleQueue.get", "/usr/lib/python3.11/multiprocessing/queues.py"),
        b.py("worker", "/usr/lib/python3.11/multiprocessing/pool.py"),
    )
    looks = b.twice(
        b.asleep(100, seconds=3600),
        b.on_fd(101, fd=3, frames=frames),
        fds=[b.pipe(101, 3, 70, Holder(pid=100, mode="w"), Holder(pid=101, mode="w"))],
    )
    assert state_of(b.evidence([b.process(100), b.process(101, ppid=100)], looks)) is State.IDLE


def test_serving_ranks_wait_in_broadcast_for_the_one_that_listens() -> None:
    listening = b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP)
    fds = [
        FdFacts(pid=100, fd=4, kind=FdKind.EPOLL, target="", watches=(5,)),
        b.connection(100, 5, 70, state="LISTEN"),
    ]
    looks = b.twice(listening, *(b.in_collective(100 + rank, "broadcast") for rank in (1, 2, 3)), fds=fds)
    assert state_of(b.evidence(b.ranks(4), looks)) is State.IDLE


def test_rank_that_is_idle_while_the_others_reduce_is_missing() -> None:
    listening = b.on_fd(103, fd=4, syscall=b.EPOLL, frames=LOOP)
    fds = [
        FdFacts(pid=103, fd=4, kind=FdKind.EPOLL, target="", watches=(5,)),
        b.connection(103, 5, 70, state="LISTEN"),
    ]
    looks = b.twice(*(b.in_collective(100 + rank) for rank in range(3)), listening, fds=fds)
    report = analyze(b.evidence(b.ranks(4), looks))
    assert report.verdict.state is State.HUNG
    assert report.verdict.culprits[0].rank == 3


def test_training_at_full_speed() -> None:
    first = [b.in_collective(100, asleep_for_s=0.0), b.running(101), b.in_collective(102, asleep_for_s=0.0)]
    later = [b.moved(thread, 50_000_000) for thread in first]
    evidence = b.evidence(b.ranks(3), [b.look(*first), b.look(*later, at=0.1)])
    assert state_of(evidence) is State.RUNNING
    assert more_time_wanted(evidence) == 0.0


def straggling(*, nap: float, window: float, moves: bool) -> Evidence:
    waiting = [b.in_collective(100 + rank, asleep_for_s=0.05 if moves else 1.0) for rank in (0, 2, 3)]
    late = b.asleep(101, seconds=nap, asleep_for_s=0.2)
    later = [b.moved(thread) for thread in waiting] if moves else waiting
    again = b.moved(late) if moves else late
    processes = b.ranks(4)
    return b.evidence(processes, [b.look(*waiting, late), b.look(*later, again, at=window)])


def test_a_window_that_is_hardly_short_is_still_short() -> None:
    evidence = straggling(nap=2.0, window=2.9997, moves=False)
    assert 0 < more_time_wanted(evidence) < 0.01


def test_straggler_of_two_seconds_is_given_time_first() -> None:
    evidence = straggling(nap=2.0, window=0.1, moves=False)
    assert more_time_wanted(evidence) == pytest.approx(2.9)
    assert analyze(evidence).verdict.state is State.SLOW


def test_straggler_of_two_seconds_is_slow() -> None:
    report = analyze(straggling(nap=2.0, window=3.0, moves=True))
    assert (report.verdict.state, report.verdict.cause) == (State.SLOW, Kind.TIMER)
    assert [who.rank for who in report.verdict.culprits] == [1]


@pytest.mark.parametrize(
    ("waited_s", "state"),
    [(2.0, State.BUSY), (0.1, State.RUNNING)],  # a step whose parts take a little longer here or there
)
def test_straggler_that_computes_is_busy(waited_s: float, state: State) -> None:
    looks = []
    for number in range(3):
        waiting = [b.in_collective(100 + rank, asleep_for_s=waited_s) for rank in (0, 2, 3)]
        for _ in range(number):  # each look finds the next step
            waiting = [b.moved(thread) for thread in waiting]
        looks.append(b.look(*waiting, b.running(101), at=float(number)))
    report = analyze(b.evidence(b.ranks(4), looks))
    assert report.verdict.state is state
    assert [who.rank for who in report.verdict.culprits] == ([1] if state is State.BUSY else [])


def test_request_loop_of_four_hundred_milliseconds_runs() -> None:
    assert state_of(straggling(nap=0.4, window=3.0, moves=True)) is State.RUNNING


def test_short_timer_is_never_hung() -> None:
    looks = b.twice(
        *(b.in_collective(100 + rank) for rank in range(3)), b.asleep(103, seconds=40, asleep_for_s=20)
    )
    report = analyze(b.evidence(b.ranks(4), looks))
    assert report.verdict.state is State.SLOW
    assert report.verdict.culprits[0].rank == 3


def test_recent_sleep_is_given_time() -> None:
    looks = b.twice(b.in_collective(100), b.asleep(101, seconds=3600, asleep_for_s=0.5))
    assert more_time_wanted(b.evidence(b.ranks(2), looks)) == pytest.approx(2.5)
    looks = b.twice(b.in_collective(100), b.asleep(101, seconds=3600, asleep_for_s=None))
    assert more_time_wanted(b.evidence(b.ranks(2), looks)) == pytest.approx(2.9)
    looks = b.twice(b.in_collective(100), b.asleep(101, seconds=3600, asleep_for_s=5.0))
    assert more_time_wanted(b.evidence(b.ranks(2), looks)) == 0.0


def test_rank_on_the_cpu_is_busy() -> None:
    looks = b.twice(b.in_collective(100), b.running(101, frames=(b.py("compute"),)))
    report = analyze(b.evidence(b.ranks(2), looks))
    assert (report.verdict.state, report.verdict.cause) == (State.BUSY, Kind.CPU_BUSY)
    assert report.verdict.culprits[0].rank == 1
    assert [victim.rank for victim in report.verdict.victims] == [0]
    assert report.verdict.next_steps


def test_compiler_below_a_rank_is_busy() -> None:
    waiting = b.sleeper(101, syscall=b.WAIT4, args=(300, 0, 0, 0, 0, 0))
    driver = b.sleeper(300, syscall=b.WAIT4, args=(301, 0, 0, 0, 0, 0), frames=())
    processes = [
        *b.ranks(2),
        b.process(300, ppid=101, role=Role.COMPILER, comm="g++"),
        b.process(301, ppid=300, role=Role.COMPILER, comm="cc1plus", cpu_s_in_window=0.1),
    ]
    looks = b.twice(b.in_collective(100), waiting, driver, b.running(301, frames=()))
    report = analyze(b.evidence(processes, looks))
    assert (report.verdict.state, report.verdict.cause) == (State.BUSY, Kind.COMPILE_RUNNING)
    assert [(who.rank, who.pid) for who in report.verdict.culprits] == [(1, 101), (None, 301)]


def test_a_build_between_two_compilers_is_busy() -> None:
    """One was on the CPU in an earlier look and is gone; the tool that runs them waits for the next."""
    waiting = b.sleeper(101, syscall=b.WAIT4, args=(300, 0, 0, 0, 0, 0))
    driver = b.sleeper(300, syscall=b.WAIT4, args=(302, 0, 0, 0, 0, 0), frames=())
    processes = [
        *b.ranks(2),
        b.process(300, ppid=101, role=Role.COMPILER, comm="ninja"),
        b.process(301, ppid=300, role=Role.COMPILER, comm="cc1plus", gone=True),
    ]
    common = (b.in_collective(100), waiting, b.moved(driver))
    looks = (
        b.look(b.in_collective(100), waiting, driver, b.running(301, frames=())),
        *(b.look(*common, at=at) for at in (0.5, 1.0)),
    )
    report = analyze(b.evidence(processes, looks))
    assert (report.verdict.state, report.verdict.cause) == (State.BUSY, Kind.COMPILE_RUNNING)
    assert [(who.rank, who.pid) for who in report.verdict.culprits] == [(1, 101), (None, 300)]


def test_mutex_whose_owner_works_is_not_hung() -> None:
    looks = b.twice(b.on_mutex(100, owner=201), b.running(100, 201))
    assert state_of(b.evidence([b.process(100)], looks)) in (State.BUSY, State.RUNNING)


def test_python_lock_that_a_working_thread_may_hold_is_not_hung() -> None:
    looks = b.twice(b.in_collective(100), b.on_python_lock(101), b.running(101, 201))
    assert state_of(b.evidence(b.ranks(2), looks)) is not State.HUNG


def test_gil_waiters_of_a_working_thread_are_not_hung() -> None:
    waiting = b.on_gil(100)
    looks = (
        b.look(waiting, b.running(100, 201, holds_gil=True)),
        b.look(b.moved(waiting), b.moved(b.running(100, 201, holds_gil=True)), at=0.1),
    )
    assert state_of(b.evidence([b.process(100)], looks)) in (State.RUNNING, State.BUSY)


@pytest.mark.parametrize(
    ("ran_ns", "slices", "hung"),
    [
        (15_000_000, 620, True),  # woke each 5 ms to look at the clock
        (270_000_000, 12_450, False),  # had it now and then
        (900_000_000, 620, False),
    ],
)
def test_who_waits_for_the_gil_again_has_had_it_meanwhile(ran_ns: int, slices: int, hung: bool) -> None:
    waiting = b.on_gil(100)
    later = b.replace(waiting, run_ns=waiting.run_ns + ran_ns, slices=waiting.slices + slices)
    looks = (b.look(waiting), b.look(later, at=3.0))
    assert (state_of(b.evidence([b.process(100)], looks)) is State.HUNG) is hung


def test_a_gil_whose_holder_two_looks_have_missed_is_nobodys() -> None:
    waiting = b.on_gil(100)
    later = b.replace(waiting, run_ns=waiting.run_ns + 500_000, slices=waiting.slices + 22)
    verdict = analyze(b.evidence([b.process(100)], (b.look(waiting), b.look(later, at=0.1)))).verdict
    assert verdict.state is State.UNKNOWN


def test_a_gil_that_is_free_keeps_nobody_waiting() -> None:
    waiting = b.on_gil(100, problem="released meanwhile")
    looks = (b.look(waiting), b.look(b.moved(waiting), at=0.1))
    report = analyze(b.evidence([b.process(100)], looks))
    assert report.verdict.state is not State.HUNG
    assert not report.verdict.culprits


def test_wait_that_moved_between_the_looks_is_no_hang() -> None:
    first = [
        b.in_collective(100),
        b.on_mutex(101, owner=201, asleep_for_s=0.01),
        b.asleep(101, 201, seconds=3600),
    ]
    later = [b.moved(thread) for thread in first]
    assert state_of(b.evidence(b.ranks(2), [b.look(*first), b.look(*later, at=0.1)])) is not State.HUNG


def test_ranks_that_nap_in_one_loop_are_idle_and_in_several_nobody_knows() -> None:
    naps = [b.asleep(100, seconds=0.01), b.asleep(101, seconds=0.01)]
    assert state_of(b.evidence(b.ranks(2), b.twice(*naps))) is State.IDLE
    elsewhere = b.replace(b.asleep(101, seconds=3600), frames=(b.native("nanosleep"), b.py("serve")))
    assert state_of(b.evidence(b.ranks(2), b.twice(naps[0], elsewhere))) is State.UNKNOWN


def test_naps_of_native_code_are_told_apart_by_where_they_return_to() -> None:
    def nap(pid: int, address: int) -> ThreadSample:
        frames = (b.native("usleep", "libc.so.6"), b.replace(b.native("main", "solver"), address=address))
        return b.replace(b.asleep(pid, seconds=0.01), frames=frames)

    # Loaded at another address in each process.
    same = b.twice(nap(100, 0x55000123), nap(101, 0x57000123))
    assert state_of(b.evidence(b.ranks(2), same)) is State.IDLE
    assert (
        state_of(b.evidence(b.ranks(2), b.twice(nap(100, 0x55000123), nap(101, 0x570001AB)))) is State.UNKNOWN
    )


def test_a_lock_that_goes_from_hand_to_hand_between_naps_is_work() -> None:
    naps, wants = b.asleep(100, seconds=0.5), b.on_mutex(100, 101, owner=100)
    for again, state in ((b.moved(wants), State.RUNNING), (wants, State.UNKNOWN)):
        looks = (b.look(naps, wants), b.look(b.moved(naps), again, at=3.1))
        verdict = analyze(b.evidence([b.process(100)], looks)).verdict
        assert (verdict.state, verdict.culprits) == (state, ())


def test_lone_sleeper_is_idle() -> None:
    assert state_of(b.evidence([b.process(100)], b.twice(b.asleep(100, seconds=3600)))) is State.IDLE


def test_reader_of_a_strangers_pipe_is_idle() -> None:
    stranger = b.process(900, ppid=1, role=Role.OUTSIDER)
    looks = b.twice(
        b.on_fd(100, fd=0), b.asleep(900, seconds=3600), fds=[b.pipe(100, 0, 70, Holder(pid=900, mode="w"))]
    )
    assert state_of(b.evidence([b.process(100), stranger], looks)) is State.IDLE


def test_launcher_that_waits_for_running_ranks_is_no_victim() -> None:
    launcher = b.process(50, ppid=1, role=Role.LAUNCHER)
    waiting = b.sleeper(50, syscall=b.WAIT4, args=(100, 0, 0, 0, 0, 0))
    evidence = b.evidence([launcher, *b.ranks(2)], b.twice(waiting, b.running(100), b.running(101)))
    assert state_of(evidence) is State.RUNNING


def test_everybody_gone_has_ended() -> None:
    processes = [b.process(100, state="Z"), b.process(101, state="S", gone=True)]
    assert state_of(b.evidence(processes, [b.look(), b.look(at=0.1)])) is State.ENDED


# -- evidence that does not decide ---------------------------------------------------------------------------


def test_one_look_without_ages_accuses_nobody() -> None:
    threads = [b.in_collective(100, asleep_for_s=None), b.asleep(101, seconds=3600, asleep_for_s=None)]
    evidence = b.evidence(b.ranks(2), [b.look(*threads)])
    report = analyze(evidence)
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()
    assert more_time_wanted(evidence) == pytest.approx(0.1)


def test_rank_that_could_not_be_looked_at_is_not_accused() -> None:
    processes = [*b.ranks(2)[:1], b.rank(101, 1, 2, problem="mmap_lock_held")]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100))))
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()


def test_nothing_readable_is_unknown() -> None:
    blind = b.sleeper(100, syscall=None, args=(), frames=(), asleep_for_s=None)
    assert state_of(b.evidence([b.process(100)], b.twice(blind))) is State.UNKNOWN


@pytest.mark.parametrize("second", [2, None])
def test_conflicting_ranks_are_null_with_a_reason(second: int | None) -> None:
    claims: tuple[Any, ...] = (
        RankClaim(source="environ RANK", rank=1, world_size=2),
        RankClaim(source="title", rank=second),
    )
    processes = [b.rank(100, 0, 2), b.rank(101, 1, 2, claims=claims)]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100), b.asleep(101, seconds=3600))))
    disputed = next(process for process in report.processes if process.pid == 101)
    if second is None:
        assert disputed.rank == 1
    else:
        assert disputed.rank is None
        assert any(line.source == "ranks" and "101" in line.reason for line in report.coverage)


def test_start_order_alone_gives_no_rank() -> None:
    claims = (RankClaim(source="start order", rank=1),)
    report = analyze(b.evidence([b.rank(100, 0, claims=claims)], b.twice(b.asleep(100, seconds=1))))
    assert report.processes[0].rank is None


def test_child_that_inherits_the_rank_of_its_parent_is_no_rank() -> None:
    processes = [b.rank(100, 0, 2), b.rank(101, 1, 2), b.rank(300, 1, 2, ppid=101)]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100), b.asleep(101, seconds=3600))))
    assert {process.pid: process.rank for process in report.processes} == {100: 0, 101: 1, 300: None}


def test_ranks_on_other_hosts_are_not_missing() -> None:
    processes = [
        replace(
            b.rank(100 + rank, rank, 8), identity=(("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "10.0.0.9"))
        )
        for rank in range(2)
    ]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100), b.in_collective(101))))
    assert report.workload.ranks_missing == ()
    assert not any(who.part.value in ("absent", "culprit") for who in report.verdict.culprits)


def test_majority_does_not_decide() -> None:
    """One rank in another operation than seven: it may be the only one that is right."""
    looks = b.twice(
        *(b.in_collective(100 + rank) for rank in range(7)), b.in_collective(107, "barrier", line=9)
    )
    report = analyze(b.evidence(b.ranks(8), looks))
    assert {who.part.value for who in report.verdict.culprits} == {"party"}
    assert len(report.verdict.culprits) == 8


def test_frames_alone_are_never_proof() -> None:
    looks = b.twice(b.in_collective(100), b.asleep(101, seconds=3600))
    assert analyze(b.evidence(b.ranks(2), looks)).verdict.confidence is Confidence.LIKELY


def test_rank_is_not_called_absent_while_a_nameless_process_stands_beside_the_others() -> None:
    processes = [b.rank(100, 0, 2), b.process(101)]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100), b.asleep(101, seconds=3600))))
    assert report.workload.ranks_missing == ()
    assert report.verdict.culprits == ()
    assert any(line.source == "ranks" and "101" in line.reason for line in report.coverage)


def test_straggler_that_is_about_to_wake_is_given_time() -> None:
    evidence = straggling(nap=2.0, window=0.1, moves=False)
    looks = tuple(
        replace(
            look,
            threads=tuple(
                replace(thread, remaining_s=0.2) if thread.timeout_s is not None else thread
                for thread in look.threads
            ),
        )
        for look in evidence.looks
    )
    assert more_time_wanted(replace(evidence, looks=looks)) == pytest.approx(2.9)


def test_poll_loop_is_given_time_and_then_called_undecided() -> None:
    def polling(window: float) -> Evidence:
        waiting = [b.in_collective(100 + rank, asleep_for_s=window) for rank in (0, 2, 3)]
        late = b.asleep(101, seconds=0.1, asleep_for_s=0.05)
        return b.evidence(b.ranks(4), [b.look(*waiting, late), b.look(*waiting, b.moved(late), at=window)])

    assert more_time_wanted(polling(0.2)) == pytest.approx(2.8)
    report = analyze(polling(3.0))
    # What it looks for does not show: the rank is in the chain, and nobody is accused.
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert len(report.verdict.chain) == 2
    assert analyze(polling(0.2)).verdict.culprits == ()
    assert analyze(polling(0.2)).verdict.chain == ()


def test_ranks_in_a_ring_of_parents_have_no_rank() -> None:
    processes = [b.rank(100, 1, 2, ppid=101), b.rank(101, 1, 2, ppid=100)]
    report = analyze(b.evidence(processes, b.twice(b.asleep(100, seconds=1), b.asleep(101, seconds=1))))
    assert [process.rank for process in report.processes] == [None, None]


def test_rank_whose_autograd_thread_works_is_not_hung() -> None:
    lock = b.LockFacts(kind="condition", address=1, uaddr=2, op=9, value=0)
    main = b.sleeper(101, lock=lock, frames=(b.native("GraphTask::exec"), b.py("backward")))
    engine = b.running(101, 201, comm="pt_autograd_0", frames=(b.native("sgemm"),))
    evidence = b.evidence(b.ranks(2), b.twice(b.in_collective(100), main, engine))
    assert state_of(evidence) is State.BUSY


def test_a_loop_of_gloo_on_the_cpu_is_no_work_of_a_rank_that_waits_for_an_event() -> None:
    lock = b.LockFacts(kind="condition", address=1, uaddr=2, op=9, value=0)
    frames = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("main"))
    main = b.sleeper(101, lock=lock, frames=frames)
    loop = b.running(101, 201, comm="gloo_tcp_loop", frames=(b.native("epoll_wait"),))
    report = analyze(b.evidence(b.ranks(2), b.twice(b.in_collective(100), main, loop)))
    assert report.verdict.state is State.HUNG
    assert [(who.rank, who.tid) for who in report.verdict.culprits] == [(1, 101)]


def test_rank_that_spins_in_the_driver_is_undecided() -> None:
    frames = (
        b.native("", "/usr/lib/libcuda.so.1"),
        b.native("cudaStreamSynchronize", "libcudart.so.12"),
        b.py("item"),
    )
    evidence = b.evidence(b.ranks(2), b.twice(b.running(100, frames=frames), b.running(101, frames=frames)))
    assert state_of(evidence) is State.UNKNOWN
    assert analyze(evidence).verdict.culprits == ()


@pytest.mark.parametrize(("seconds", "state"), [(5.0, State.SLOW), (300.0, State.HUNG)])
def test_another_host_is_given_a_minute(seconds: float, state: State) -> None:
    reading = b.on_fd(101, fd=5, syscall=b.RECV, asleep_for_s=seconds)
    looks = b.twice(b.in_collective(100), reading, fds=[b.connection(101, 5, 70)])
    report = analyze(b.evidence(b.ranks(2), looks))
    assert (report.verdict.state, report.verdict.cause) == (state, Kind.IPC_PEER_SILENT)


def test_idle_data_workers_are_not_accused() -> None:
    loader = (b.py("_next_data", "/x/torch/utils/data/dataloader.py"), b.py("train"))
    idle = (b.py("_worker_loop", "/x/torch/utils/data/_utils/worker.py"),)
    workers = [b.process(pid, ppid=101, role=Role.DATA_WORKER) for pid in (301, 302)]
    looks = b.twice(
        b.in_collective(100),
        b.sleeper(101, syscall=b.POLL, frames=loader),
        *(b.sleeper(worker.pid, syscall=b.POLL, frames=idle) for worker in workers),
    )
    report = analyze(b.evidence([*b.ranks(2), *workers], looks))
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()


def queue_worker(tid: int) -> Any:
    frames = (b.py("Queue.get", "/usr/lib/python3.11/queue.py"), b.py("work"))
    lock = b.LockFacts(kind="python_lock", address=tid, uaddr=tid, op=9, value=0)
    return b.sleeper(100, tid, frames=frames, lock=lock)


def test_threads_that_wait_for_signals_are_no_deadlock() -> None:
    """Any of them could wake any other: candidates by role prove nothing."""
    main = b.sleeper(100, frames=(b.py("Event.wait", b.THREADING), b.py("main")))
    evidence = b.evidence([b.process(100)], b.twice(main, *(queue_worker(tid) for tid in (201, 202, 203))))
    report = analyze(evidence)
    assert report.verdict.state is not State.HUNG
    assert report.verdict.culprits == ()


def test_thread_with_an_hourly_job_is_not_what_an_event_waits_for() -> None:
    main = b.sleeper(100, frames=(b.py("Event.wait", b.THREADING), b.py("main")))
    evidence = b.evidence([b.process(100)], b.twice(main, b.asleep(100, 201, seconds=3600)))
    assert state_of(evidence) is State.IDLE


def test_rank_that_waits_for_an_event_is_named_but_not_its_idle_threads() -> None:
    main = b.sleeper(101, frames=(b.py("Event.wait", b.THREADING), b.py("main")))
    others = [b.asleep(101, tid, seconds=3600) for tid in (201, 202)]
    report = analyze(b.evidence(b.ranks(2), b.twice(b.in_collective(100), main, *others)))
    assert (report.verdict.state, report.verdict.culprits[0].tid) == (State.HUNG, 101)


def test_plain_lock_that_a_listening_thread_may_release_is_no_hang() -> None:
    listening = b.on_fd(100, 201, fd=5, syscall=b.ACCEPT)
    fds = [b.connection(100, 5, 70, state="LISTEN")]
    evidence = b.evidence([b.process(100)], b.twice(b.on_python_lock(100), listening, fds=fds))
    assert state_of(evidence) is State.IDLE


def _between_steps(*, ran: bool) -> Evidence:
    loop = (b.native("c10d::ProcessGroupGloo::runLoop(int)"),)
    looks = []
    for at in (0.0, 3.0):
        threads = []
        for pid in (100, 101):
            for thread in (
                b.asleep(pid, seconds=0.8),
                *(b.sleeper(pid, pid + n, frames=loop) for n in (10, 20)),
            ):
                threads.append(b.moved(thread) if ran and at else thread)
        looks.append(b.look(*threads, at=at))
    return b.evidence(b.ranks(2), looks)


def test_a_job_that_takes_steps_between_the_looks_runs() -> None:
    assert state_of(_between_steps(ran=True)) is State.RUNNING


def test_a_job_in_a_nap_is_looked_at_for_longer_before_it_is_called_idle() -> None:
    evidence = _between_steps(ran=False)
    early = b.replace(evidence, looks=(evidence.looks[0], b.replace(evidence.looks[1], at_s=0.1)))
    assert state_of(evidence) is State.IDLE
    assert more_time_wanted(early) > 2.0
    assert more_time_wanted(evidence) == 0.0


def test_a_server_says_where_it_listens() -> None:
    listening = b.connection(100, 3, 88, state="LISTEN")
    assert listening.socket is not None
    listening = replace(listening, socket=replace(listening.socket, family="tcp", local="127.0.0.1:8000"))
    looks = b.twice(b.on_fd(100, fd=3, syscall=b.ACCEPT), fds=[listening])
    report = analyze(b.evidence([b.process(100)], looks))
    assert report.verdict.state is State.IDLE
    (wait,) = report.waits
    assert (wait.object.name, wait.object.path) == ("connection", "127.0.0.1:8000")
