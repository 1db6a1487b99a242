"""Threads that hold nothing and sleep by the clock, and may yet give back what another one has.

Any thread may release a plain lock of Python or of multiprocessing, and cancel a task; the C library lets any unlock a
normal mutex, and end by pthread_cancel() one that waits. Whoever has run since the waiting began has let it be. Of one
that has slept ever since nothing says what it does when its time is over: a watchdog, say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.progress import GOES_ON, Progress
from pyhangtrace.analyze.python_objects import FUTURE
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Kind, Role, WaitKind

# A thread that sleeps for longer is no reason to wait.
LONG_NAP_S = 60.0

# How much two clocks that are read one after the other differ, and what a thread needs to fall asleep.
_BLUR_S = 0.1

# Threads that a wait leads to, at most: of more nobody is asked.
_FARTHEST = 64

# Locks that record their owner, and that others can unlock all the same. The C library refuses that for other types.
_UNGUARDED = frozenset({"mutex_normal", "mutex_adaptive", "rwlock_read", "rwlock_write"})


def settle_bystanders(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits; those that a thread which naps may end though nothing says so, with that thread."""
    settled = dict(waits)
    naps = _naps(scene, waits)
    if not naps:
        return settled
    for key, wait in waits.items():
        recorded = _is_recorded(scene, wait)
        if not recorded and not _is_anybodys(scene, wait):
            continue
        pids = _relatives(scene, key[0]) if _is_shared(scene, wait) else (key[0],)
        napping = [nap for pid in pids for nap in naps.get(pid, ())]
        found = tuple(_still_to_act(scene, waits, wait, napping, by_code=not recorded)) if napping else ()
        if not found:
            continue
        basis = Confidence.LIKELY if wait.basis is Confidence.PROVEN else wait.basis
        evidence = (*wait.evidence, *(_words(scene, waits[nap]) for nap in found[:1]))
        settled[key] = changed(wait, basis=basis, bystanders=found, helped=not recorded, evidence=evidence)
    return settled


def _naps(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[int, list[Key]]:
    """Threads with work of their own that have slept all the while and wake up within a minute, by process; also others
    that wake up now and then, if their code says that it lets somebody go on.
    """
    found: dict[int, list[Key]] = {}
    for key, wait in waits.items():
        timed = wait.standing is Standing.TIMER or wait.ends_by_itself
        slept = wait.progress not in (*GOES_ON, Progress.REARMED)
        if not timed or wait.service is not None or not (slept or _says(scene, key)):
            continue
        process = scene.processes.get(key[0])
        if process is None or process.role in (Role.OUTSIDER, Role.COMPILER):
            continue
        if wait.lasts_s is None or wait.lasts_s <= LONG_NAP_S:
            found.setdefault(key[0], []).append(key)
    return found


def _is_recorded(scene: Scene, wait: Blocked) -> bool:
    """For a lock whose owner is written down, and that another thread could unlock."""
    sample = scene.thread(wait.key)
    owned = wait.kind in (WaitKind.MUTEX, WaitKind.RWLOCK) and wait.standing is Standing.FIRM
    return owned and sample is not None and sample.lock is not None and sample.lock.kind in _UNGUARDED


def _is_anybodys(scene: Scene, wait: Blocked) -> bool:
    """For a lock that is had by who stands in a `with` of it, or for a task."""
    if wait.standing is not Standing.FIRM:
        return False
    sample = scene.thread(wait.key)
    if wait.kind is WaitKind.PYTHON_LOCK:
        plain = sample is not None and sample.lock is not None and sample.lock.kind == "python_lock"
        return plain and bool(wait.targets)
    of_tasks = wait.kind in (WaitKind.POLL, WaitKind.CONDITION) and wait.cause is Kind.LOCK_CYCLE
    awaits = wait.kind is WaitKind.CONDITION and wait.object.name == FUTURE
    return of_tasks or ((wait.kind is WaitKind.SEMAPHORE or awaits) and bool(wait.targets))


def _is_shared(scene: Scene, wait: Blocked) -> bool:
    sample = scene.thread(wait.key)
    return sample is not None and sample.lock is not None and sample.lock.shared_key is not None


def _relatives(scene: Scene, pid: int) -> tuple[int, ...]:
    """A process with those that it may share memory with: its parent, that one's other children, its own."""
    process = scene.processes.get(pid)
    if process is None:
        return (pid,)
    brothers = scene.children.get(process.ppid, ())
    return tuple(sorted({pid, process.ppid, *brothers, *scene.children.get(pid, ())}))


def _still_to_act(
    scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, naps: Iterable[Key], *, by_code: bool
) -> Iterator[Key]:
    """Of threads that nap those that have not run since all was as it is, and have no part in it. `by_code`: and those
    whose code says that it lets somebody go on, unless they wait for what is held themselves.
    """
    part = _leads_to(waits, wait)
    ages = [age for key in part if (age := _asleep(scene, key)) is not None]
    youngest_s = min(ages, default=None)
    for key in naps:
        if key in part:
            continue
        has_run = waits[key].progress in (*GOES_ON, Progress.REARMED)
        asleep_s = _asleep(scene, key)
        slept = asleep_s is None or youngest_s is None or asleep_s > youngest_s - _BLUR_S
        says = by_code and _says(scene, key) is not None and part.isdisjoint(waits[key].targets)
        if (slept and not has_run) or says:
            yield key


def _leads_to(waits: Mapping[Key, Blocked], wait: Blocked) -> set[Key]:
    """A thread with all that it waits for, as far as that is known."""
    found = {wait.key}
    todo = [wait]
    while todo and len(found) < _FARTHEST:
        for target in todo.pop().targets:
            if target in found:
                continue
            found.add(target)
            after = waits.get(target)
            if after is not None and after.standing is Standing.FIRM:
                todo.append(after)
    return found


def _says(scene: Scene, key: Key) -> str | None:
    """The word by which a thread that naps could let others go on."""
    sample = scene.thread(key)
    return sample.lets_go if sample is not None else None


def _asleep(scene: Scene, key: Key) -> float | None:
    sample = scene.thread(key)
    return sample.asleep_for_s if sample is not None else None


def _words(scene: Scene, nap: Blocked) -> str:
    sample = scene.thread(nap.key)
    name = (sample.name or sample.comm) if sample is not None else ""
    left = f" for another {nap.lasts_s:.1f} s" if nap.lasts_s is not None else ""
    if (word := _says(scene, nap.key)) is not None:
        does = f"naps{left}, and its code calls a `{word}`"
        return f"thread {name} (tid {nap.key[1]}) {does}: when, and of what, is not known"
    return (
        f"thread {name} (tid {nap.key[1]}) has slept since before, and does{left}: what it does then, and whether it "
        "lets the others go on, is not known"
    )
