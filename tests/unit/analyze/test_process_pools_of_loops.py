"""Event loops whose tasks await what processes of a pool do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import FdKind, Kind, State
from pyhangtrace.model.open_files import FdFacts, Holder
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import NamedValue, TaskSample, ThreadSample
from tests.unit.analyze import builders as b
from tests.unit.analyze.test_event_loops import LOOP, calling

_POOL = "/usr/lib/python3.11/concurrent/futures/process.py"
_LOOP_PID, _FUTURE, _NUMBER = 100, 0x5000, 7


def _manager(tid: int, *, future: int, number: int = _NUMBER, pids: tuple[int, ...]) -> ThreadSample:
    """A thread that manages a pool in which one piece of work is under way."""
    run = "_ExecutorManagerThread.run"
    members = {
        "pending_work_items": (number, future + 0x100),
        "pending_work_items[].future": (future,),
        "processes": tuple(each for pid in pids for each in (pid, 0x9000 + pid)),
    }
    sample = b.on_fd(_LOOP_PID, tid, fd=8, frames=(b.py(run, _POOL),))
    values = (
        NamedValue(function=run, name=name, value=None, type="dict", length=1, members=found)
        for name, found in members.items()
    )
    return replace(sample, named_values=tuple(values))


def _worker(sample: ThreadSample, number: int = _NUMBER) -> ThreadSample:
    return replace(
        sample,
        frames=(*sample.frames, b.py("_process_worker", _POOL)),
        named_values=(b.local("_process_worker", "call_item.work_id", number),),
    )


def _report(
    *workers: ThreadSample,
    managers: tuple[ThreadSample, ...],
    tasks: tuple[TaskSample, ...] = (calling("one", 0x1000, _FUTURE),),
    inherited_by: tuple[int, ...] = (),
    watches: tuple[int, ...] = (5,),
) -> Report:
    loop = b.on_fd(_LOOP_PID, fd=4, syscall=b.EPOLL, frames=LOOP)
    ends = [Holder(pid=pid, fd=6, mode="rw") for pid in (_LOOP_PID, *inherited_by)]
    fds = [
        FdFacts(pid=_LOOP_PID, fd=4, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=watches),
        *(b.connection(_LOOP_PID, fd, 70 + fd, *ends) for fd in watches),
    ]
    looks = tuple(replace(look, tasks=tasks) for look in b.twice(loop, *managers, *workers, fds=fds))
    alike = {"exe": "/usr/bin/python3", "title": "python3 job.py"}
    children = [b.process(sample.pid, ppid=_LOOP_PID, **alike) for sample in workers]
    return analyze(b.evidence([b.process(_LOOP_PID, signals_caught=(2,), **alike), *children], looks))


def _held_by(report: Report) -> int | None:
    wait = next(each for each in report.waits if each.tid == _LOOP_PID)
    return wait.holder.pid if wait.holder is not None else None


def test_loop_waits_for_the_process_that_works_for_its_task() -> None:
    report = _report(
        _worker(b.asleep(201, seconds=3600)),
        _worker(b.asleep(202, seconds=3600), number=8),
        managers=(_manager(110, future=_FUTURE, pids=(201, 202)),),
    )
    assert _held_by(report) == 201
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.WORKER_STUCK)
    assert [one.pid for one in report.verdict.culprits] == [201]
    wait = next(each for each in report.waits if each.tid == _LOOP_PID)
    assert "task one awaits a call in another thread, run by pid 201" in wait.evidence


def test_pools_that_count_alike_are_told_apart_by_their_processes() -> None:
    workers = (_worker(b.asleep(201, seconds=3600)), _worker(b.asleep(202, seconds=3600)))
    other = _manager(111, future=0x6000, pids=(201,))
    assert _held_by(_report(*workers, managers=(_manager(110, future=_FUTURE, pids=(202,)), other))) == 202
    # Pids of another namespace say nothing.
    assert _held_by(_report(*workers, managers=(_manager(110, future=_FUTURE, pids=(2,)), other))) is None


def test_nobody_is_named_for_work_that_no_process_has_begun() -> None:
    report = _report(
        _worker(b.asleep(201, seconds=3600), number=8),
        managers=(_manager(110, future=_FUTURE, pids=(201,)),),
    )
    assert _held_by(report) is None
    assert report.verdict.culprits == ()


@pytest.mark.parametrize(("watches", "state"), [((5,), State.HUNG), ((5, 7), State.IDLE)])
def test_children_have_the_wake_up_pair_of_the_loop_by_fork(watches: tuple[int, ...], state: State) -> None:
    """They may well use any other pair that they have inherited."""
    report = _report(
        _worker(b.asleep(201, seconds=3600)),
        managers=(_manager(110, future=_FUTURE, pids=(201,)),),
        inherited_by=(201,),
        watches=watches,
    )
    assert report.verdict.state is state
