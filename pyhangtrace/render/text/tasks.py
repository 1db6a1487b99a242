"""What the tasks inside of the threads wait for: `12 asyncio tasks: 10 await Queue.get in serve (server.py:88)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pyhangtrace.model.kinds import Role, TaskKind
from pyhangtrace.model.report import Report, ReportProcess, ReportTask
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.layout import Row
from pyhangtrace.render.text.words import age, frame_words, numbers

_MOST_GROUPS = 4
_READY = "ready"


def task_rows(report: Report) -> list[Row]:
    """One row for all processes whose tasks stand alike."""
    alike: dict[tuple[str, ...], list[ReportProcess]] = {}
    for process in report.processes:
        lines = tuple(_lines(process)) if process.role is not Role.OUTSIDER else ()
        if lines:
            alike.setdefault(lines, []).append(process)
    return [Row(label=_label(processes), lines=lines) for lines, processes in alike.items()]


def _label(processes: list[ReportProcess]) -> str:
    ranks = [process.rank for process in processes if process.rank is not None]
    if len(ranks) == len(processes):
        return numbers(ranks, "rank")
    return numbers([process.pid for process in processes], "pid")


def _lines(process: ReportProcess) -> Iterable[str]:
    for kind, name in ((TaskKind.ASYNCIO, "asyncio task"), (TaskKind.GREENLET, "greenlet")):
        pending = [task for task in process.tasks if task.kind is kind and not task.done]
        failed = [
            task
            for task in process.tasks
            if task.kind is kind and task.exception and task.exception != "CancelledError"
        ]
        if not pending and not failed:
            continue
        groups = Counter(task_words(task) for task in pending).most_common()
        # The odd one among many is what a person looks for: it may not be the one that is left out.
        shown = groups if len(groups) <= _MOST_GROUPS else [*groups[: _MOST_GROUPS - 1], groups[-1]]
        parts = [f"{count} {words if count == 1 else _plural(words)}" for words, count in shown]
        if len(groups) > len(shown):
            rest = len(pending) - sum(count for _, count in shown)
            parts.append(f"{rest} more elsewhere")
        if failed:
            endings = Counter(task.exception for task in failed)
            parts.append(", ".join(f"{count} ended by {clean(str(what))}" for what, count in endings.items()))
        changing = ", changing while it was looked at" if any(task.moved for task in pending) else ""
        count = len(pending) + len(failed)
        yield f"{count} {name}{'' if count == 1 else 's'}{changing}: {'; '.join(parts)}"


def task_words(task: ReportTask) -> str:
    """What a task that is not done does, as one does it: `awaits Queue.get in serve (server.py:88)`."""
    place = own_frame(task)
    where = f" in {frame_words(place)}" if place is not None else ""
    if task.current:
        return f"runs{where}"
    if task.awaits == _READY:
        return f"is ready to run{where}"
    if task.kind is TaskKind.GREENLET:
        return f"is suspended{where}"
    left = ""
    if task.wakes_in_s is not None and task.wakes_in_s > 0:
        left = f" for {'another' if task.awaits == 'sleep' else 'at most another'} {age(task.wakes_in_s)}"
    return f"awaits {clean(task.awaits or 'something')}{left}{where}"


def own_frame(task: ReportTask) -> Frame | None:
    """The innermost frame that is not the library's own; the innermost one if all are."""
    library = ("/asyncio/", "/gevent/", "/uvloop/")
    own = (frame for frame in task.stack if frame.file and not any(name in frame.file for name in library))
    return next(own, task.stack[0] if task.stack else None)


def _plural(words: str) -> str:
    verb, _, rest = words.partition(" ")
    plurals = {"awaits": "await", "is": "are", "runs": "run"}
    return f"{plurals.get(verb, verb)} {rest}".rstrip()
