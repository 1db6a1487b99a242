"""Readers of pipes whose write ends several processes have by inheritance: who of them works need not be the writer."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Confidence, State
from pyhangtrace.model.open_files import FdFacts, Holder
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

_MAIN, _READER, _AT_WORK, _OTHER = 100, 101, 102, 103


def _report(threads: list[ThreadSample], writers: tuple[int, ...], *fds: FdFacts) -> Report:
    """A reader of a pipe that these can write, and a process that is on the CPU."""
    ends = b.pipe(_READER, 5, 77, *(Holder(pid=pid, fd=6, mode="w") for pid in writers))
    pids = sorted({_MAIN, _READER, _AT_WORK, *(thread.pid for thread in threads)})
    processes = [b.process(pid, ppid=50 if pid == _MAIN else _MAIN) for pid in pids]
    readers = (b.on_fd(_READER, fd=5), b.running(_AT_WORK, frames=(b.py("work"),)))
    return analyze(b.evidence(processes, b.twice(*threads, *readers, window=3.0, fds=[ends, *fds])))


def _listens() -> tuple[ThreadSample, FdFacts]:
    return b.on_fd(_MAIN, fd=3, syscall=b.ACCEPT), b.connection(_MAIN, 3, 70, state="LISTEN")


def test_the_only_writer_is_at_work() -> None:
    main, listening = _listens()
    verdict = _report([main], (_AT_WORK,), listening).verdict
    assert verdict.state is State.BUSY
    assert [who.pid for who in verdict.culprits] == [_AT_WORK]
    assert verdict.confidence is Confidence.PROVEN


def test_one_of_two_writers_is_at_work_and_the_other_waits_for_orders() -> None:
    main, listening = _listens()
    verdict = _report([main], (_MAIN, _AT_WORK), listening).verdict
    assert verdict.state is State.RUNNING
    assert verdict.culprits == ()


@pytest.mark.parametrize("named_first", [True, False])
def test_one_of_two_writers_is_stopped(named_first: bool) -> None:
    writers = (_OTHER, _AT_WORK) if named_first else (_AT_WORK, _OTHER)
    main, listening = _listens()
    verdict = _report([main, b.stopped(_OTHER)], writers, listening).verdict
    assert verdict.state is State.UNKNOWN
    assert verdict.culprits == ()


def test_one_of_two_writers_waits_for_a_signal_that_nobody_gives() -> None:
    frames = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("main"))
    verdict = _report([b.on_python_lock(_MAIN, _MAIN, frames=frames)], (_MAIN, _AT_WORK)).verdict
    assert verdict.state is State.UNKNOWN
    assert verdict.culprits == ()


def test_the_other_writer_waits_for_who_is_at_work() -> None:
    """Then nothing comes before that one has done its work, whoever is to write."""
    answers = b.pipe(_MAIN, 7, 78, Holder(pid=_AT_WORK, fd=8, mode="w"), Holder(pid=_READER, fd=8, mode="w"))
    verdict = _report([b.on_fd(_MAIN, fd=7)], (_MAIN, _AT_WORK), answers).verdict
    assert verdict.state is State.BUSY
    assert [who.pid for who in verdict.culprits] == [_AT_WORK]
    assert verdict.confidence is Confidence.LIKELY


def test_a_way_out_of_a_circle_over_one_who_waits_for_orders() -> None:
    """Two readers have each other's ends, and only one of them that of who listens."""
    main, listening = _listens()
    other = b.pipe(_OTHER, 5, 79, Holder(pid=_READER, fd=8, mode="w"), Holder(pid=_AT_WORK, fd=8, mode="w"))
    verdict = _report([main, b.on_fd(_OTHER, fd=5)], (_MAIN, _OTHER, _AT_WORK), listening, other).verdict
    assert verdict.state is State.RUNNING
    assert verdict.culprits == ()


def test_one_of_two_writers_naps_and_the_other_is_stopped() -> None:
    main, listening = _listens()
    naps = b.asleep(104, seconds=2)
    verdict = _report([main, naps, b.stopped(_OTHER)], (104, _OTHER), listening).verdict
    assert verdict.state is State.UNKNOWN
    assert verdict.culprits == ()
