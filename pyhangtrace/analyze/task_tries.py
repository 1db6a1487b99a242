"""What tasks of asyncio want of each other, and circles in which each wants it for a while at a time.

A task whose time is over may try again or let go of what it has: of a circle that all looks show nothing says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.components import components
from pyhangtrace.analyze.scene import Key
from pyhangtrace.model.kinds import Confidence, Kind, TaskObjectKind, WaitKind
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import TaskSample

# A task as (pid, -address).
Tasks = Mapping[Key, TaskSample]


def lock_wanted(task: TaskSample) -> int | None:
    """The lock that a task waits for, or the semaphore, where that lets one in at a time and is taken."""
    found = task.object
    if found is not None and found.kind is TaskObjectKind.SEMAPHORE and (found.count, found.limit) == (0, 1):
        return found.address
    return task.lock


def needs_of(task: TaskSample) -> tuple[int, ...]:
    """Addresses of tasks and futures all of which a task waits for."""
    return task.needs or ((task.awaits_address,) if task.awaits_address is not None else ())


def crossed(looks: Sequence[Tasks]) -> dict[int | None, tuple[TaskSample, ...]]:
    """Tasks of a process that in all looks had locks which others of their circle wanted, by the thread of the loop."""
    always: set[tuple[int, tuple[int, ...]]] | None = None
    for tasks in looks:
        here = {(node[1], tasks[node].holds) for node in _in_circles(tasks) if tasks[node].holds}
        always = here if always is None else always & here
    found: dict[int | None, list[TaskSample]] = {}
    for node, task in (looks[-1] if looks else {}).items():
        if (node[1], task.holds) in (always or ()):
            found.setdefault(task.tid, []).append(task)
    return {tid: tuple(tasks) for tid, tasks in found.items()}


def _in_circles(tasks: Tasks) -> list[Key]:
    holding: dict[int, list[Key]] = {}
    for node, task in tasks.items():
        for lock in task.holds:
            holding.setdefault(lock, []).append(node)
    edges: dict[Key, tuple[Key, ...]] = {}
    for node, task in tasks.items():
        after = [(node[0], -address) for address in needs_of(task) if (node[0], -address) in tasks]
        had = lock_wanted(task)
        had_by = holding.get(had, []) if had is not None else []
        edges[node] = (*after, *(had_by if len(had_by) == 1 else ()))
    return [
        node
        for knot in components(sorted(edges), lambda node: edges[node])
        if len(knot) > 1 or knot[0] in edges[knot[0]]
        for node in knot
    ]


def trying(wait: Blocked, tasks: Sequence[TaskSample]) -> Blocked:
    """The wait of a loop in which these tasks are in such a circle: for a lock, as long as they try."""
    names = ", ".join(task.name for task in tasks)
    return changed(
        wait,
        kind=WaitKind.PYTHON_LOCK,
        standing=Standing.OPAQUE,
        cause=Kind.LOCK_HELD,
        basis=Confidence.POSSIBLE,
        object=WaitObject(name="asyncio.Lock"),
        ends_by_itself=True,
        asks=True,
        evidence=(
            *wait.evidence,
            f"tasks {names} have locks that others of them want, for a while at a time: whether one lets go when its "
            "time is over, or tries again, is not known",
        ),
    )
