"""Event loops whose tasks wait for the processes at the other ends, and those that something else may wake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, State, WaitKind
from pyhangtrace.model.open_files import FdFacts, Holder
from pyhangtrace.model.report import Report
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import TaskSample, ThreadSample
from tests.unit.analyze import builders as b
from tests.unit.analyze.test_event_loops import LOOP, task

ASYNCIO = "/usr/lib/python3.11/asyncio"
DRAIN = b.py("FlowControlMixin._drain_helper", f"{ASYNCIO}/streams.py")
READ = b.py("StreamReader._wait_for_data", f"{ASYNCIO}/streams.py")
OLD_READ = b.py("_wait_for_data", f"{ASYNCIO}/streams.py")  # before Python 3.11
END = b.py("BaseSubprocessTransport._wait", f"{ASYNCIO}/base_subprocess.py")
WAKE_UP = b.connection(100, 5, 70, Holder(pid=100, fd=6, mode="rw"))
TO_CHILD = b.pipe(100, 7, 77, Holder(pid=101, fd=0, mode="r"), mode="w")
FROM_CHILD = b.pipe(100, 8, 88, Holder(pid=101, fd=1, mode="w"))
TO_PEER = b.connection(100, 9, 99, Holder(pid=102, fd=3, mode="rw"))
CHILD = b.sleeper(100, 200, syscall=b.WAIT4, args=(101, 0, 0, 0, 0, 0))


def awaiting(frame: Frame, name: str = "main", address: int = 0x1000, **changes: object) -> TaskSample:
    told = frame.function
    found = task(name, address, None, awaits=told, awaits_address=address + 8, frames=(frame, b.py("main")))
    return replace(found, **changes)  # type: ignore[arg-type]


def report_of(
    *tasks: TaskSample,
    fds: Sequence[FdFacts],
    out: tuple[int, ...] = (),
    threads: tuple[ThreadSample, ...] = (),
    signals: tuple[int, ...] = (2,),
    left_s: float | None = None,
) -> Report:
    """A loop in 100 that watches these, beside its wake-up pair; 101 is its child, 102 is not, and both sleep."""
    loop = b.on_fd(100, fd=4, syscall=b.EPOLL, frames=LOOP, timeout_s=left_s, remaining_s=left_s)
    epoll = FdFacts(
        pid=100,
        fd=4,
        kind=FdKind.EPOLL,
        target="anon_inode:[eventpoll]",
        watches=(5, *(facts.fd for facts in fds)),
        watches_out=out,
    )
    others = (b.asleep(101, seconds=3600), b.asleep(102, seconds=3600))
    looks = b.twice(loop, *others, *threads, fds=[epoll, WAKE_UP, *fds])
    processes = [
        b.process(100, signals_caught=signals),
        b.process(101, ppid=100),
        b.process(102),
    ]
    return analyze(b.evidence(processes, tuple(replace(look, tasks=tasks) for look in looks)))


@pytest.mark.parametrize(
    ("frame", "facts", "kind", "cause", "end"),
    [
        (DRAIN, TO_CHILD, WaitKind.PIPE, Kind.IPC_PIPE_FULL, 101),
        (DRAIN, TO_PEER, WaitKind.SOCKET, Kind.IPC_PIPE_FULL, 102),
        (READ, FROM_CHILD, WaitKind.PIPE, Kind.IPC_PEER_SILENT, 101),
        (OLD_READ, FROM_CHILD, WaitKind.PIPE, Kind.IPC_PEER_SILENT, 101),
    ],
)
def test_a_loop_waits_for_who_has_the_other_end(
    frame: Frame, facts: FdFacts, kind: WaitKind, cause: Kind, end: int
) -> None:
    out = (facts.fd,) if frame is DRAIN else ()
    report = report_of(awaiting(frame), fds=[facts], out=out, threads=(CHILD,) if end == 101 else ())
    verdict = report.verdict
    assert (verdict.state, verdict.symptom, verdict.confidence) == (State.HUNG, cause, Confidence.LIKELY)
    assert [who.pid for who in verdict.culprits] == [end]
    wait = next(wait for wait in report.waits if (wait.pid, wait.tid) == (100, 100))
    assert (wait.kind, wait.holder.pid if wait.holder else None) == (kind, end)


def test_the_end_of_a_child_is_waited_for_by_its_descriptor_or_by_a_thread() -> None:
    pidfd = FdFacts(pid=100, fd=10, kind=FdKind.PIDFD, target="anon_inode:[pidfd]", info=(("Pid", 101),))
    assert report_of(awaiting(READ), fds=[FROM_CHILD, pidfd]).verdict.symptom is Kind.IPC_PEER_SILENT
    for report in (report_of(awaiting(END), fds=[pidfd]), report_of(awaiting(END), fds=[], threads=(CHILD,))):
        wait = next(wait for wait in report.waits if (wait.pid, wait.tid) == (100, 100))
        assert (wait.kind, wait.holder.pid if wait.holder else None) == (WaitKind.CHILD, 101)


def test_what_something_else_may_wake_waits_for_events() -> None:
    drains = awaiting(DRAIN)
    listener = b.connection(100, 11, 71, state="LISTEN")
    out = (TO_PEER.fd,)
    for report in (
        report_of(drains, fds=[TO_PEER, listener], out=out),
        report_of(drains, fds=[TO_PEER], out=out, signals=(2, 15)),
        report_of(drains, fds=[TO_PEER], out=out, left_s=20.0),
        report_of(replace(drains, wakes_in_s=20.0), fds=[TO_PEER], out=out),
        report_of(drains, task("two", 0x2000, None), fds=[TO_PEER], out=out),
        report_of(drains, fds=[TO_PEER], out=out, threads=(b.asleep(100, 201, seconds=5),)),
        report_of(drains, fds=[TO_PEER, TO_CHILD], out=(TO_PEER.fd, TO_CHILD.fd)),  # which of them is full
        report_of(drains, fds=[TO_PEER], out=()),  # none is
        report_of(awaiting(READ), fds=[TO_PEER]),  # a request may come from there
        report_of(awaiting(READ), fds=[replace(TO_PEER, peers=(Holder(pid=101, fd=3, mode="rw"),))]),
    ):
        assert report.verdict.culprits == ()
        wait = next(wait for wait in report.waits if (wait.pid, wait.tid) == (100, 100))
        assert (wait.kind, wait.holder) == (WaitKind.POLL, None)


def test_tasks_that_follow_others_are_no_others() -> None:
    main = task("main", 0x2000, 0x1000, needs=(0x1000,), needs_known=True)
    report = report_of(awaiting(DRAIN, "writer"), main, fds=[TO_PEER], out=(TO_PEER.fd,))
    assert (report.verdict.state, [who.pid for who in report.verdict.culprits]) == (State.HUNG, [102])
