"""The thread that speaks for a process when a wait leads to the process as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyhangtrace.analyze.blocked import Blocked, Standing, changed, weakest
from pyhangtrace.analyze.crowds import Siblings
from pyhangtrace.analyze.outside import works_itself
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import LAUNCHER, does_work
from pyhangtrace.model.kinds import Confidence, Edge, WaitKind

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
    # A loop of a library that serves the group runs now and then, whatever becomes of the work.
    working = [
        key
        for key in keys[1:]
        if waits[key].standing is Standing.RUNNING
        and scene.works(key)
        and does_work(waits[key].service, busy=True)
    ]
    if working:
        return working[0]
    return main


def _settle_keeper(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> Blocked:
    """A wait for a file lock, of which the kernel knows the process: which of its threads is to release it?

    The only one; or, if all that may have it wait for one of them, that one. Else any of them may, and the wait lasts
    as long as all of them are stuck. One that waits for work has nothing in hand, unless all do; that is a rule.
    """
    ((pid, _),) = wait.targets
    keys = [key for key in scene.threads_of(pid) if key in waits and _may_lock(waits[key])]
    if len(keys) < 2:
        return changed(wait, targets=(keys[0] if keys else (pid, 0),))
    others = [key for key in keys if key != wait.key]
    waits_for_work = Standing.IDLE
    idle = tuple(key for key in others if waits[key].standing is waits_for_work)
    active = [key for key in others if waits[key].standing is not waits_for_work]
    own = pid == wait.key[0]
    basis = weakest(wait.basis, *(waits[key].basis for key in active))
    if idle and basis is Confidence.PROVEN:
        basis = Confidence.LIKELY
    if active and not (own and len(active) > 1):
        among_them = frozenset(active)
        roots = {_root(waits, key, among_them) for key in active}
        root = roots.pop() if len(roots) == 1 else None
        if root is not None and not (own and root != active[0]):
            return changed(wait, targets=(root,), besides=idle, thread_guessed=True, basis=basis)
    known = changed(
        wait, evidence=(*wait.evidence, f"which of the threads of pid {pid} has it is not recorded")
    )
    if not active:
        return changed(
            known,
            standing=Standing.OPAQUE,
            targets=(),
            candidates=tuple(active or idle),
            edge=Edge.ANY,
            basis=Confidence.POSSIBLE,
        )
    # In its own process it may have the lock itself, by another descriptor.
    among = (*active, wait.key) if own else tuple(active)
    return changed(known, targets=among, besides=idle, edge=Edge.ANY, thread_guessed=True, basis=basis)


def _settle_keepers(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> Blocked:
    """A wait for locks of a file that several processes have: each must give it back. Where of one of them several
    threads may have it, only the others count; that these are needed holds in any case.
    """
    every = [_settle_keeper(scene, waits, changed(wait, targets=(target,))) for target in wait.targets]
    each = [one for one in every if len(one.targets) == 1]
    keys = tuple(key for one in each for key in one.targets)
    if not each:
        return changed(wait, standing=Standing.OPAQUE, targets=(), basis=Confidence.POSSIBLE)
    return changed(
        wait,
        targets=keys,
        besides=tuple(key for one in each for key in one.besides),
        basis=weakest(*(one.basis for one in each)),
    )


def _may_lock(wait: Blocked) -> bool:
    # What a launcher waits for is its work; it may do other work as well.
    return wait.service in (None, LAUNCHER)


def _root(waits: Mapping[Key, Blocked], start: Key, among: Collection[Key]) -> Key | None:
    """Where the waiting of a thread leaves these threads; None if it never does."""
    passed: set[Key] = set()
    at = start
    while at not in passed:
        passed.add(at)
        wait = waits[at]
        inside = [target for target in wait.targets if target in among]
        if wait.standing is not Standing.FIRM or not inside or len(wait.targets) > 1:
            return at
        at = inside[0]
    return None


def _is_of_processes(wait: Blocked) -> bool:
    """Whether a wait is for one process as a whole, or for all of several."""
    if any(tid != 0 for _, tid in wait.targets):
        return False
    return len(wait.targets) == 1 or (len(wait.targets) > 1 and wait.edge is Edge.ALL)


def settle_fronts(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits, with threads in place of whole processes among their targets and candidates."""

    fronts = {(pid, 0): front(scene, waits, pid) for pid in scene.threads}

    def settle(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        if not keys or isinstance(keys, Siblings):
            return keys
        once = set(keys)
        if fronts.keys().isdisjoint(once):
            return keys if len(once) == len(keys) else tuple(dict.fromkeys(keys))
        return tuple(dict.fromkeys(fronts.get(key, key) for key in keys))

    workers: dict[int, tuple[Key, ...]] = {}

    def workers_of(pid: int) -> tuple[Key, ...]:
        if pid not in workers:
            workers[pid] = tuple(
                key for key in scene.threads_of(pid) if key in waits and works_itself(scene, key)
            )
        return workers[pid]

    def settle_besides(wait: Blocked, targets: tuple[Key, ...]) -> tuple[Key, ...]:
        pids = sorted({pid for pid, _ in wait.besides})
        but = {wait.key, *targets}
        return tuple(key for pid in pids for key in workers_of(pid) if key not in but)

    settled = {}
    for key, wait in waits.items():
        if wait.kind is WaitKind.FILE_LOCK and _is_of_processes(wait):
            settle_locks = _settle_keeper if len(wait.targets) == 1 else _settle_keepers
            kept = settle_locks(scene, waits, changed(wait, besides=()))
            sharers = settle_besides(wait, kept.targets)
            settled[key] = changed(kept, besides=(*kept.besides, *sharers)) if sharers else kept
            continue
        targets = settle(wait.targets)
        # Of a wait for any signal both are one: as many threads as the process has, for as many waits.
        candidates = targets if wait.candidates is wait.targets else settle(wait.candidates)
        if targets is not wait.targets or candidates is not wait.candidates:
            wait = changed(wait, targets=targets, candidates=candidates)
        if wait.besides:
            besides = settle_besides(wait, targets)
            basis = Confidence.LIKELY if besides and wait.basis is Confidence.PROVEN else wait.basis
            wait = changed(wait, besides=besides, basis=basis)
        settled[key] = wait
    return settled
