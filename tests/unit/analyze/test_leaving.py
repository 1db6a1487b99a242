"""The rank where the waiting leaves the group is named, wherever it is among the ranks."""

from __future__ import annotations

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import State
from pyhangtrace.model.open_files import Holder
from tests.unit.analyze import builders as b


def test_the_rank_that_the_others_wait_for_comes_before_what_it_waits_for() -> None:
    holders = (
        b.on_mutex(101, owner=100, shared_key=(1, 2, 3)),
        b.on_mutex(102, owner=100, shared_key=(1, 2, 3)),
    )
    first = b.on_mutex(100, owner=300, shared_key=(1, 2, 4))
    stranger = b.asleep(300, seconds=7200)
    processes = [*b.ranks(3), b.process(300, ppid=1)]
    verdict = analyze(b.evidence(processes, b.twice(first, *holders, stranger))).verdict
    assert verdict.state is State.HUNG
    assert [(who.rank, who.pid) for who in verdict.culprits] == [(0, 100), (None, 300)]
    assert [who.rank for who in verdict.victims] == [1, 2]


def test_who_waits_for_a_signal_from_a_thread_that_naps_is_slow() -> None:
    signal = b.sleeper(101, frames=(b.py("Event.wait", b.THREADING, 629), b.py("step")))
    nap, held = b.asleep(101, 202, seconds=30), b.on_mutex(101, 201, owner=202)
    looks = b.twice(b.in_collective(100), signal, held, nap)
    verdict = analyze(b.evidence(b.ranks(2), looks)).verdict
    assert verdict.state is not State.HUNG


def test_the_own_end_of_a_pipe_may_be_written_once_somebody_elses_work_is_done() -> None:
    fds = [b.pipe(101, 3, 70, Holder(pid=101, mode="w"))]
    ranks = [b.rank(100, 0, 2), b.rank(101, 1, 2, signals_caught=())]
    for working, state in ((b.running(300), State.BUSY), (b.on_mutex(300, owner=301), State.HUNG)):
        held = b.on_mutex(101, 201, owner=300, shared_key=(1, 2, 3))
        reads = b.on_fd(101, fd=3)
        looks = b.twice(b.in_collective(100), reads, held, working, fds=fds)
        assert analyze(b.evidence([*ranks, b.process(300)], looks)).verdict.state is state
