"""Stacks of a report grouped into classes: what every stack-drawing format needs.

A class is a set of threads, over all ranks, with equal merged stacks and equal thread role. The rarest class
comes first, so that one odd rank of a thousand stays visible.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.report import Report, ReportFrame, ReportProcess, ReportThread


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One thread in a class. `rank` is None for processes that are no rank."""

    pid: int
    tid: int
    rank: int | None
    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClass:
    """Threads that stand at the same place. `frames` are outermost first."""

    frames: tuple[ReportFrame, ...]
    members: tuple[Member, ...]
    service: str | None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks with a thread in this class."""
        return tuple(sorted({member.rank for member in self.members if member.rank is not None}))


def frame_label(frame: ReportFrame) -> str:
    """How a frame is written in a stack: `step (train.py:12)`, `pthread_mutex_lock (libc.so.6)`."""
    function = frame.function or "?"
    if frame.kind is FrameKind.PYTHON and frame.file:
        where = _basename(frame.file)
        return f"{function} ({where}:{frame.line})" if frame.line else f"{function} ({where})"
    if frame.module:
        return f"{function} ({_basename(frame.module)})"
    return function


def thread_label(thread: ReportThread) -> str:
    """The thread's own name: Python's where there is one, else the kernel's."""
    return thread.name or thread.comm


def process_label(process: ReportProcess) -> str:
    """`rank 3` or, without a rank, `pid 4242`."""
    return f"rank {process.rank}" if process.rank is not None else f"pid {process.pid}"


def stack_classes(report: Report) -> tuple[StackClass, ...]:
    """All stacks of the report in classes, rarest first; service threads after all others."""
    groups: dict[tuple[str | None, tuple[tuple[object, ...], ...]], list[tuple[Member, ReportThread]]] = {}
    for process in report.processes:
        for thread in process.threads:
            if not thread.stack:
                continue
            key = (thread.service, tuple(_identity(frame) for frame in reversed(thread.stack)))
            member = Member(pid=process.pid, tid=thread.tid, rank=process.rank, thread=thread_label(thread))
            groups.setdefault(key, []).append((member, thread))
    classes = [
        StackClass(
            frames=tuple(reversed(entries[0][1].stack)),
            members=tuple(member for member, _ in entries),
            service=service,
        )
        for (service, _), entries in groups.items()
    ]
    return tuple(
        sorted(
            classes,
            key=lambda item: (
                item.service is not None,
                len(item.members),
                item.members[0].pid,
                item.members[0].tid,
            ),
        )
    )


def _identity(frame: ReportFrame) -> tuple[object, ...]:
    # Addresses differ between processes for the same place; names, files and lines do not.
    if frame.kind is FrameKind.PYTHON:
        return (frame.kind.value, frame.function, frame.file, frame.line)
    return (frame.kind.value, frame.function, frame.module)


def _basename(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
