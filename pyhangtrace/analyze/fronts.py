"""The thread that speaks for a process when a wait leads to the process as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import WaitKind

_AWAITS_OTHERS = frozenset(
    {WaitKind.JOIN, WaitKind.QUEUE, WaitKind.CONDITION, WaitKind.POLL, WaitKind.SEMAPHORE}
)


def front(scene: Scene, waits: Mapping[Key, Blocked], pid: int) -> Key:
    """The main thread, unless it only waits for its own threads and one of them works.

    (pid, 0) where no thread was seen: an exited process, or one that could not be looked at.
    """
    keys = [key for key in scene.threads_of(pid) if key in waits]
    if not keys:
        return (pid, 0)
    main = keys[0]
    passive = waits[main].standing is Standing.IDLE and waits[main].kind in _AWAITS_OTHERS
    if not passive and waits[main].service is None:
        return main
    working = [key for key in keys[1:] if waits[key].standing is Standing.RUNNING and scene.works(key)]
    if working:
        return working[0]
    return main


def settle_fronts(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits, with threads in place of whole processes among their targets and candidates."""

    def settle(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        return tuple(
            dict.fromkeys(
                front(scene, waits, pid) if tid == 0 and pid > 0 else (pid, tid) for pid, tid in keys
            )
        )

    settled = {}
    for key, wait in waits.items():
        targets, candidates = settle(wait.targets), settle(wait.candidates)
        if (targets, candidates) != (wait.targets, wait.candidates):
            wait = replace(wait, targets=targets, candidates=candidates)
        settled[key] = wait
    return settled
