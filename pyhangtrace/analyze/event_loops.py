"""What the tasks of an event loop wait for, and whether some of them wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.calls import Meaning
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.evidence import Look, TaskSample, ThreadSample
from pyhangtrace.model.kinds import Confidence, Kind, TaskKind, WaitKind
from pyhangtrace.model.report import WaitObject

_MOST_TOLD = 4


def knot(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """An event loop of which some tasks await each other in a circle.

    A task can be cancelled from outside, so it is no proof. A loop that only waits is told of, with what its tasks
    await, by the rule for loops.
    """
    if draft.call is None or draft.call.meaning is not Meaning.EVENT_LOOP:
        return None
    looks = [look for look in scene.evidence.looks if _tasks(look, sample)]
    rings = [_ring(_tasks(look, sample)) for look in looks]
    if not rings or not rings[-1]:
        return None
    members = [[task.address for task in ring] for ring in rings]
    if any(each != members[-1] for each in members):
        return None
    names = ", ".join(task.name for task in rings[-1])
    return replace(
        draft,
        kind=WaitKind.POLL,
        standing=Standing.FIRM,
        cause=Kind.LOCK_CYCLE,
        basis=Confidence.LIKELY,
        object=WaitObject(name=f"tasks {names}"),
        targets=(draft.key,),
        ends_by_itself=False,
        evidence=(*draft.evidence, *(f"task {task.name} awaits {task.awaits}" for task in rings[-1])),
    )


def told(scene: Scene, sample: ThreadSample) -> tuple[str, ...]:
    """What pending tasks of the loop await, as evidence."""
    tasks = [task for task in _tasks(scene.evidence.looks[-1], sample).values() if task.awaits is not None]
    more = len(tasks) - _MOST_TOLD
    lines = [f"task {task.name} awaits {task.awaits}" for task in tasks[:_MOST_TOLD]]
    return (*lines, f"{more} more tasks") if more > 0 else tuple(lines)


def _tasks(look: Look, sample: ThreadSample) -> Mapping[int, TaskSample]:
    """Pending tasks of the loop that a thread runs, by address."""
    return {
        task.address: task
        for task in look.tasks
        if (task.pid, task.tid) == (sample.pid, sample.tid)
        and task.kind is TaskKind.ASYNCIO
        and not task.done
        and not task.moved
    }


def _ring(tasks: Mapping[int, TaskSample]) -> tuple[TaskSample, ...]:
    """The first circle of tasks, from its lowest address on; () if there is none."""
    seen: set[int] = set()
    for start in sorted(tasks):
        path: list[int] = []
        at: int | None = start
        while at is not None and at in tasks and at not in seen:
            seen.add(at)
            path.append(at)
            at = tasks[at].awaits_address
        if at is not None and at in path:
            ring = path[path.index(at) :]
            first = ring.index(min(ring))
            return tuple(tasks[address] for address in ring[first:] + ring[:first])
    return ()
