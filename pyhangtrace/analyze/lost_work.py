"""Work of a multiprocessing.Pool that nobody has any more: its worker ended in the middle of it.

The pool starts another worker in place of one that was killed, and forgets what that one was at. So where all workers
wait for work, and the threads of the pool for something to hand on, the result that is waited for does not come.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Meaning, has_function, path_has, python_frames
from pyhangtrace.analyze.progress import SETTLED_S, STILL
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import POOL_MANAGER
from pyhangtrace.model.kinds import Confidence, Kind, WaitKind

# Threads that hand work to the workers, and take results from them (multiprocessing/pool.py): in which file they wait,
# and for what, while there is nothing. Elsewhere they are in code of the program: what gives tasks, or takes results.
_HANDS_ON = {
    "_handle_tasks": (
        ("multiprocessing/pool.py", "queue.py", "threading.py"),
        frozenset({WaitKind.QUEUE, WaitKind.CONDITION, WaitKind.PYTHON_LOCK, WaitKind.SEMAPHORE}),
    ),
    "_handle_results": (
        ("multiprocessing/connection.py",),
        frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL}),
    ),
}
_WHY = "all workers of the pool wait for work, and its threads for something to hand on: nobody has this piece of work"


def settle_lost_work(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits; a result of a pool that nobody is at work on is waited for in vain."""
    return {
        key: changed(
            wait,
            targets=(),
            candidates=wait.targets,
            cause=Kind.WORKER_DEAD,
            basis=Confidence.LIKELY,
            evidence=(*wait.evidence, _WHY),
        )
        if _is_lost(scene, waits, wait)
        else wait
        for key, wait in waits.items()
    }


def _is_lost(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> bool:
    of_pool = wait.call is not None and wait.call.meaning is Meaning.POOL_RESULT
    if not of_pool or wait.standing is not Standing.FIRM or not wait.targets or not _long(wait):
        return False
    return all(_waits_for_work(waits.get(target)) for target in wait.targets) and all(
        _hands_nothing_on(scene, waits, wait.key[0], function) for function in _HANDS_ON
    )


def _long(wait: Blocked) -> bool:
    return wait.progress in STILL and (wait.since_s or 0.0) >= SETTLED_S


def _waits_for_work(wait: Blocked | None) -> bool:
    if wait is None or wait.call is None or wait.call.meaning is not Meaning.WORKER_LOOP:
        return False
    return wait.standing is Standing.IDLE and wait.cause is Kind.IDLE and _long(wait)


def _hands_nothing_on(scene: Scene, waits: Mapping[Key, Blocked], pid: int, function: str) -> bool:
    """The only thread of a pool that hands on sleeps all the while; with two pools it is not known whose it is."""
    found = [
        key
        for key in scene.threads_of(pid)
        if scene.services[key] == POOL_MANAGER and has_function(scene.samples[key][-1].frames, function)
    ]
    if len(found) != 1 or found[0] not in waits or not _long(waits[found[0]]):
        return False
    files, kinds = _HANDS_ON[function]
    innermost = next(python_frames(scene.samples[found[0]][-1].frames))
    return waits[found[0]].kind in kinds and any(path_has(innermost.file, file) for file in files)
