"""Waits for a signal that only one thread could give, and that one is stuck behind the waiter itself.

A condition, an event, a queue or a future records nobody who owes anything. Where the only other thread of the process
waits for a lock that the waiter has, there is nobody left to wake it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.progress import STILL
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, WaitKind

_SIGNALS = frozenset({WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.QUEUE})
_LOCKS = frozenset(
    {WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK, WaitKind.IMPORT_LOCK, WaitKind.ONCE}
)

_ALONE = "the only other thread of the process works: nobody else could run the initialisation"
_WHY = "the only other thread of the process waits for this one: nobody is left to wake it"


def settle_sole_wakers(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits; those that nobody but a stuck thread could end lead to it (a rule about frames, no proof)."""
    settled = dict(waits)
    for key, wait in waits.items():
        runs = _runs_alone(scene, waits, wait)
        if runs is not None:
            settled[key] = changed(
                wait,
                standing=Standing.FIRM,
                targets=(runs,),
                candidates=(runs,),
                evidence=(*wait.evidence, _ALONE),
            )
            continue
        stuck = _stuck_behind(scene, waits, wait) if _is_signal(scene, wait) else None
        if stuck is not None:
            settled[key] = changed(
                wait,
                standing=Standing.FIRM,
                basis=Confidence.LIKELY,
                targets=(stuck,),
                candidates=(stuck,),
                edge=Edge.ANY,
                evidence=(*wait.evidence, _WHY),
            )
    return settled


def _runs_alone(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> Key | None:
    """The only other thread of a process, if it works while an initialisation is waited for that records nobody."""
    other = _only_other(scene, wait.key)
    if wait.kind is not WaitKind.ONCE or wait.targets or other is None or other not in wait.candidates:
        return None
    found = waits.get(other)
    works = found is not None and found.standing is Standing.RUNNING and scene.works(other)
    return other if works else None


def _only_other(scene: Scene, key: Key) -> Key | None:
    """The other one of two threads of a process."""
    threads = scene.threads_of(key[0])
    if len(threads) != 2:
        return None
    return threads[1] if threads[0] == key else threads[0]


def _is_signal(scene: Scene, wait: Blocked) -> bool:
    """A wait inside of one process, of which the whole stack was seen and that no handler of a signal can end."""
    if wait.standing is not Standing.IDLE or wait.kind not in _SIGNALS or wait.progress not in STILL:
        return False
    if wait.service is not None:
        return False
    sample = scene.thread(wait.key)
    if (
        sample is None
        or not sample.stack_complete
        or sample.lock is None
        or sample.lock.shared_key is not None
    ):
        return False
    return holders.handled_signals(scene, wait.key[0]) == frozenset()


def _stuck_behind(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> Key | None:
    """The only other thread of the process, if it wants a lock of the waiter; else nothing.

    Of several that are all stuck behind it, which one owes the signal is not known: a circle through any is a guess.
    """
    alone = _only_other(scene, wait.key)
    other = waits.get(alone) if alone is not None else None
    if other is None or other.kind not in _LOCKS or other.standing is not Standing.FIRM:
        return None
    return other.key if other.targets == (wait.key,) and other.progress in STILL else None
