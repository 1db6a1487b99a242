"""Event loops that nothing is left to wake: what their tasks wait for cannot come any more.

Only tasks of the loop could give back a permit of a semaphore of asyncio, or take an item out of its queue, and none of
them goes on while the loop sleeps. Whoever waits for an event, or for an item, may wait so for good on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.outside import watches_wake_up_only
from pyhangtrace.analyze.progress import GOES_ON, STILL
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Kind, TaskObjectKind, WaitKind
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import TaskObject, TaskSample

# Threads that call nobody while they wait for work, which only another thread could give them.
BYSTANDERS = frozenset({"thread pool worker", "openmp worker", "tqdm monitor"})

_NOTHING_LEFT = (
    "nothing is left to wake this loop: it has no timer, watches nothing but its own wake-up pair, no other thread of "
    "its process does anything, and no signal has a handler"
)

# What one waits for only to go on, with the method where others of the object are for work.
_WANTED = {
    TaskObjectKind.LOCK: (WaitKind.PYTHON_LOCK, frozenset({"acquire"})),
    TaskObjectKind.SEMAPHORE: (WaitKind.SEMAPHORE, frozenset({"acquire"})),
    TaskObjectKind.BARRIER: (WaitKind.BARRIER, frozenset({"wait"})),
    TaskObjectKind.QUEUE: (WaitKind.QUEUE, frozenset({"put", "join"})),
}


# By the method of a queue.
_ENDS = {"put": "take something out of the queue", "join": "finish what is in the queue"}


def is_closed(scene: Scene, wait: Blocked) -> bool:
    """Whether nothing but another thread of its process can wake a loop that sleeps: no timer, descriptor or signal."""
    return not wait.ends_by_itself and wait.progress not in GOES_ON and is_sealed(scene, wait)


def is_sealed(scene: Scene, wait: Blocked) -> bool:
    """Whether a loop has neither a descriptor nor a signal that could wake it from outside its process."""
    if scene.thread(wait.key) is None:
        return False
    return (
        watches_wake_up_only(scene, wait.key) and holders.handled_signals(scene, wait.key[0]) == frozenset()
    )


def is_deserted(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> bool:
    """Whether no other thread of its process could wake it: those that are there wait for work of this one."""
    return all(
        scene.services[key] in BYSTANDERS and key in waits and waits[key].progress in STILL
        for key in scene.threads_of(wait.key[0])
        if key != wait.key
    )


def settle_deserted(wait: Blocked, tasks: Iterable[TaskSample]) -> Blocked:
    """The wait of a loop that is closed and deserted, told by the first of its tasks that waits to go on."""
    told = changed(wait, evidence=(*wait.evidence, _NOTHING_LEFT))
    stuck = next((task.object for task in tasks if task.object is not None and _is_wanted(task.object)), None)
    if stuck is None:
        return told
    kind, _ = _WANTED[stuck.kind]
    return changed(
        told,
        kind=kind,
        standing=Standing.FIRM,
        cause=Kind.LOCK_HANDOFF_LOST,
        # A signal whose handler is Python's own may yet have a task cancelled.
        basis=Confidence.LIKELY,
        object=WaitObject(address=hex(stuck.address), name=f"asyncio.{stuck.kind.value.capitalize()}"),
        does=_ENDS.get(stuck.method) if stuck.kind is TaskObjectKind.QUEUE else None,
        candidates=(),
    )


def _is_wanted(found: TaskObject) -> bool:
    return found.kind in _WANTED and found.method in _WANTED[found.kind][1]


def filling(found: TaskObject) -> str:
    """How much is in an object, or how many have come: `0 of 2 permits left`; "" where that is not known."""
    if found.count is None:
        return ""
    limited = f" of {found.limit}" if found.limit else ""
    if found.kind is TaskObjectKind.SEMAPHORE:
        return f"{found.count}{limited} permits left"
    if found.kind is TaskObjectKind.BARRIER:
        return f"{found.count}{limited} have come"
    if found.kind is TaskObjectKind.QUEUE and found.method == "join":
        return f"{found.count} unfinished"
    return f"{found.count}{limited} in it"
