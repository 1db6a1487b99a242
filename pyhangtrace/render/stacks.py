"""Stacks of a report grouped into classes: what every stack-drawing format needs.

A class is a set of threads, over all ranks, with equal merged stacks and equal thread role. The rarest class
comes first, so that one odd rank of a thousand stays visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyhangtrace.model.kinds import FoundBy, FrameKind, TaskKind
from pyhangtrace.model.report import Report, ReportProcess, ReportTask, ReportThread
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.weighted import StackProfile, Unit, WeightedStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One thread in a class, or one task inside of a thread (`tid` 0: of no thread that is known). `rank` is None
    for processes that are no rank. `waits`: what a task awaits.
    """

    pid: int
    tid: int
    rank: int | None
    thread: str
    waits: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClass:
    """Threads that stand at the same place. `frames` are outermost first."""

    frames: tuple[Frame, ...]
    members: tuple[Member, ...]
    service: str | None
    tasks: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks with a thread in this class."""
        return tuple(sorted({member.rank for member in self.members if member.rank is not None}))


def python_frames(thread: ReportThread) -> Iterator[Frame]:
    """The Python frames of a stack, innermost first."""
    return (frame for frame in thread.stack if frame.kind is FrameKind.PYTHON)


def frame_label(frame: Frame) -> str:
    """How a frame is written in a stack: `step (train.py:12)`, `pthread_mutex_lock (libc.so.6)`, `Py_INCREF [inlined]
    (object.h:641)`.
    """
    function = frame.function or "?"
    if frame.found_by is FoundBy.INLINED:
        function += " [inlined]"
    if frame.file:
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


def task_label(task: ReportTask) -> str:
    """`asyncio task Task-3`, `greenlet 0x7f…`."""
    kind = "asyncio task" if task.kind is TaskKind.ASYNCIO else "greenlet"
    return f"{kind} {task.name}".rstrip()


def suspended_tasks(process: ReportProcess) -> list[ReportTask]:
    """Tasks with a stack that is not also a thread's."""
    return [task for task in process.tasks if task.stack and not task.current and not task.done]


def stack_classes(report: Report) -> tuple[StackClass, ...]:
    """All stacks of the report in classes, rarest first; tasks after threads, service threads after all others."""
    groups: dict[tuple[object, ...], list[tuple[Member, tuple[Frame, ...], str | None, bool]]] = {}
    for process in report.processes:
        for thread in process.threads:
            if not thread.stack:
                continue
            key = (thread.service, False, tuple(_identity(frame) for frame in reversed(thread.stack)))
            member = Member(pid=process.pid, tid=thread.tid, rank=process.rank, thread=thread_label(thread))
            groups.setdefault(key, []).append((member, thread.stack, thread.service, False))
        for task in suspended_tasks(process):
            key = (None, True, tuple(_identity(frame) for frame in reversed(task.stack)))
            member = Member(
                pid=process.pid,
                tid=task.thread or 0,
                rank=process.rank,
                thread=task_label(task),
                waits=f"awaits {task.awaits}" if task.awaits else "suspended",
            )
            groups.setdefault(key, []).append((member, task.stack, None, True))
    classes = [
        StackClass(
            frames=tuple(reversed(entries[0][1])),
            members=tuple(member for member, *_ in entries),
            service=entries[0][2],
            tasks=entries[0][3],
        )
        for entries in groups.values()
    ]
    return tuple(
        sorted(
            classes,
            key=lambda item: (
                item.service is not None,
                item.tasks,
                len(item.members),
                item.members[0].pid,
                item.members[0].tid,
            ),
        )
    )


def report_profile(report: Report) -> StackProfile:
    """The stacks of a report as a profile in which each thread weighs one."""
    return StackProfile(
        title="stacks of all ranks",
        unit=Unit.THREADS,
        stacks=tuple(
            WeightedStack(
                pid=member.pid,
                tid=member.tid,
                rank=member.rank,
                thread=member.thread,
                frames=item.frames,
                weight=1,
            )
            for item in stack_classes(report)
            for member in item.members
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedClass:
    """Equal stacks of several threads, with the sum of their weights. `frames` are outermost first."""

    frames: tuple[Frame, ...]
    members: tuple[WeightedStack, ...]
    weight: float
    before: float | None
    service: str | None


def weighted_classes(profile: StackProfile) -> tuple[WeightedClass, ...]:
    """The stacks of a profile in classes, heaviest first."""
    groups: dict[tuple[object, ...], list[WeightedStack]] = {}
    for stack in profile.stacks:
        groups.setdefault((stack.service, tuple(map(_identity, stack.frames))), []).append(stack)
    classes = [
        WeightedClass(
            frames=members[0].frames,
            members=tuple(sorted(members, key=lambda member: -member.weight)),
            weight=sum(member.weight for member in members),
            before=sum(member.before or 0.0 for member in members) if profile.compared else None,
            service=members[0].service,
        )
        for members in groups.values()
    ]
    return tuple(sorted(classes, key=lambda item: -max(item.weight, item.before or 0.0)))


def _identity(frame: Frame) -> tuple[object, ...]:
    # Addresses differ between processes for the same place; names, files and lines do not.
    place = (frame.kind.value, frame.function, frame.file, frame.line)
    return (
        place if frame.kind is FrameKind.PYTHON else (*place, frame.module, frame.found_by is FoundBy.INLINED)
    )


def _basename(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
