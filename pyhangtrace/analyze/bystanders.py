"""Threads that hold nothing and sleep by the clock, or wait for others, and may yet give back what another one has.

Any thread may release a plain lock of Python or of multiprocessing, and cancel a task; `ways_out` says what else may
end a wait for somebody who is recorded. Whoever has run since the waiting began has let it be. Of one that has slept
ever since nothing says what it does when its time is over: a watchdog, say. Of one that waits for somebody else, who
may come, its code says whether it could: Python's names what it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from pyhangtrace.analyze.blocked import Blocked, Standing, changed, weakest
from pyhangtrace.analyze.hearing import hears, hears_nothing, part_of
from pyhangtrace.analyze.progress import GOES_ON, Progress
from pyhangtrace.analyze.python_objects import FUTURE
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.ways_out import (
    SOON_S,
    Way,
    has_timer,
    in_same_memory,
    is_shared,
    relatives,
    stranger_with_lock,
    timer_ends,
    timer_of,
    ways_out,
)
from pyhangtrace.model.kinds import Confidence, Kind, Role, WaitKind

# How much two clocks that are read one after the other differ, and what a thread needs to fall asleep.
_BLUR_S = 0.1

# Threads that a wait leads to, at most: of more nobody is asked.
_FARTHEST = 64

# Which of these a thread may be told to from outside: one that waits for a child, say, and unlocks a mutex then.
_TOLD = frozenset({Way.UNLOCKED, Way.CANCELLED})


class _Others(NamedTuple):
    """Who may have a say, by process: threads that nap, ones that hear from others, and ones that wait for somebody and
    whose code lets others go on then; processes with a timer. `around`: a process with its relatives.
    """

    naps: Mapping[int, Sequence[Key]]
    hearers: Mapping[int, Sequence[Key]]
    tellers: Mapping[int, Sequence[Key]]
    timers: frozenset[int]
    around: Callable[[int], frozenset[int]]


def settle_bystanders(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits; those that somebody else may end though nothing says so, with that thread."""
    settled = dict(waits)
    timers = frozenset(pid for pid in scene.processes if has_timer(scene, pid))
    # Thousands of threads ask for the same few families.
    around = cache(partial(relatives, scene))
    others = _Others(_naps(scene, waits), _hearers(scene, waits), _tellers(scene, waits), timers, around)
    shared = any(process.same_memory or process.lock_sharers for process in scene.processes.values())
    if not (others.naps or others.hearers or others.tellers or timers or shared):
        return settled
    for key, wait in waits.items():
        if _is_anybodys(scene, wait):
            settled[key] = _perhaps_helped(scene, waits, wait, others)
        elif wait.basis is Confidence.PROVEN or timers or wait.kind in (WaitKind.MUTEX, WaitKind.RWLOCK):
            settled[key] = _perhaps_ended(scene, waits, wait, others)
    return settled


def _perhaps_helped(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, others: _Others) -> Blocked:
    pid = wait.key[0]
    pids = others.around(pid) if is_shared(scene.thread(wait.key)) else {pid}
    found = _still_to_act(scene, waits, wait, _of(others.naps, pids), by_code=True)
    if found:
        return _told(scene, waits, wait, found, helped=True)
    teller = _one_awake(scene, waits, wait, _of(others.tellers, pids))
    if teller is not None:
        return _to_be_let_go(scene, wait, teller)
    by = _hearer(scene, waits, wait, pids, others)
    if by is None:
        return wait
    # Most of these have other things to do: what they might do is said, and it keeps nothing from being a hang.
    said = f"{by} may let it go, as any thread may: whether it does is not known"
    return _doubted(wait, said, f"{by} lets it go")


def _perhaps_ended(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, others: _Others) -> Blocked:
    """The wait for somebody who is recorded, which is no proof where another one may go a way out of it."""
    if (sharers := _sharers(scene, waits, wait)) is not None:
        return sharers
    if (stranger := stranger_with_lock(scene, wait)) is not None:
        outsider = f"pid {stranger}, outside the job,"
        said = f"{outsider} has the memory of the lock, and may unlock it: what it does is not known"
        return _doubted(wait, said, f"{outsider} unlocks it")
    if others.timers and (words := timer_ends(scene, wait)):
        return _doubted(wait, words, words, helped=True)
    for way, pids in ways_out(scene, wait, others.around):
        if wait.basis is not Confidence.PROVEN and way is not Way.UNLOCKED:
            continue
        found = _still_to_act(scene, waits, wait, _of(others.naps, pids), by_code=False)
        if found:
            return _told(scene, waits, wait, found, may=way, helped=_is_tracer(wait, found))
        by = _timer_or_hearer(scene, waits, wait, way, pids, others)
        if by is not None:
            said = f"{by} may {way.value}: whether it does is not known"
            return _doubted(wait, said, f"{by} steps in: it may {way.value}")
    return wait


def _sharers(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked) -> Blocked | None:
    """The wait for a lock that a process in the same memory may have, whatever thread its owner word names."""
    pids = in_same_memory(scene, wait.key[0])
    if wait.kind not in (WaitKind.MUTEX, WaitKind.RWLOCK) or wait.standing is not Standing.FIRM or not pids:
        return None
    part = _leads_to(waits, wait)
    free = [key for pid in sorted(pids) for key in scene.threads_of(pid) if key not in part]
    if not free:
        return None
    words = f"pid {free[0][0]} runs in the same memory, and may have what is waited for"
    # Its threads may go on, as far as they do not wait for this process.
    helped = any(waits[key].standing is not Standing.FIRM for key in free if key in waits)
    return _doubted(wait, words, f"pid {free[0][0]} lets it go: it runs in the same memory", helped=helped)


def _doubted(wait: Blocked, evidence: str, doubt: str, *, helped: bool = False) -> Blocked:
    return changed(
        wait,
        basis=weakest(wait.basis, Confidence.LIKELY),
        helped=helped or wait.helped,
        doubt=doubt,
        evidence=(*wait.evidence, evidence),
    )


def _timer_or_hearer(
    scene: Scene,
    waits: Mapping[Key, Blocked],
    wait: Blocked,
    way: Way,
    pids: frozenset[int],
    others: _Others,
) -> str | None:
    """Who of these processes has a timer, or a thread that waits for word from others."""
    first = min(others.timers & pids, default=None)
    if first is not None:
        return timer_of(scene, first)
    return _hearer(scene, waits, wait, pids, others) if way in _TOLD else None


def _hearer(
    scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, pids: Iterable[int], others: _Others
) -> str | None:
    """A thread of these processes that others may wake, though all that the wait leads to stands still."""
    key = _one_awake(scene, waits, wait, _of(others.hearers, pids))
    if key is None:
        return None
    reads = waits[key].kind in (WaitKind.PIPE, WaitKind.SOCKET)
    return f"thread {key[1]}, which {'reads from' if reads else 'waits for'} others,"


def _one_awake(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, keys: Sequence[Key]) -> Key | None:
    """The first of these threads that something else than what the wait leads to may wake."""
    if not keys:
        return None
    part = part_of(scene, _leads_to(waits, wait))
    found = (key for key in keys if key not in part.threads and not hears_nothing(scene, waits, key, part))
    return next(found, None)


def _to_be_let_go(scene: Scene, wait: Blocked, by: Key) -> Blocked:
    """The wait beside a thread that waits for somebody who may come, and lets one go on then by its code."""
    sample, word = scene.thread(by), _says(scene, by)
    name = (sample.name or sample.comm) if sample is not None else ""
    who = f"thread {name} (tid {by[1]})"
    said = f"{who} waits for others, and its code calls a `{word}`: when, and of what, is not known"
    return changed(_doubted(wait, said, f"{who} may come to its `{word}`", helped=True), bystanders=(by,))


def _is_tracer(wait: Blocked, found: Iterable[Key]) -> bool:
    """Whether the tracer of a stopped thread is itself who naps."""
    tracer = wait.holder.pid if wait.standing is Standing.STOPPED and wait.holder is not None else None
    return any(pid == tracer for pid, _ in found)


def _hearers(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[int, list[Key]]:
    """Threads with work of their own that other processes, or other hosts, may wake."""
    found: dict[int, list[Key]] = {}
    for key, wait in waits.items():
        if hears(scene, wait):
            found.setdefault(key[0], []).append(key)
    return found


def _tellers(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[int, list[Key]]:
    """Threads whose code lets somebody go on, and that wait for one who is known or may come from elsewhere."""
    found: dict[int, list[Key]] = {}
    for key, wait in waits.items():
        if _says(scene, key) is None or wait.ends_by_itself or wait.service not in (None, LAUNCHER):
            continue
        if hears(scene, wait) or (wait.standing is Standing.FIRM and wait.targets):
            found.setdefault(key[0], []).append(key)
    return found


def _of(naps: Mapping[int, Sequence[Key]], pids: Iterable[int]) -> list[Key]:
    return [nap for pid in sorted(pids) for nap in naps.get(pid, ())] if naps else []


def _told(
    scene: Scene,
    waits: Mapping[Key, Blocked],
    wait: Blocked,
    naps: tuple[Key, ...],
    *,
    helped: bool,
    may: Way | None = None,
) -> Blocked:
    basis = weakest(wait.basis, Confidence.LIKELY)
    evidence = (*wait.evidence, _words(scene, waits[naps[0]], may))
    doubt = f"it may {may.value}" if may is not None else None
    return changed(
        wait, basis=basis, bystanders=naps, helped=helped or wait.helped, doubt=doubt, evidence=evidence
    )


def _naps(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[int, list[Key]]:
    """Threads with work of their own that have slept all the while and wake up within a minute, by process; also others
    that wake up now and then, if their code says that it lets somebody go on.
    """
    found: dict[int, list[Key]] = {}
    for key, wait in waits.items():
        timed = wait.standing is Standing.TIMER or wait.ends_by_itself
        slept = wait.progress not in (*GOES_ON, Progress.REARMED)
        # A program that started others and sleeps does not look after them meanwhile.
        serves = wait.service is not None and wait.service != LAUNCHER
        if not timed or serves or not (slept or _says(scene, key)):
            continue
        process = scene.processes.get(key[0])
        if process is None or process.role in (Role.OUTSIDER, Role.COMPILER):
            continue
        if wait.lasts_s is None or wait.lasts_s <= SOON_S:
            found.setdefault(key[0], []).append(key)
    return found


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


def _still_to_act(
    scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, naps: Sequence[Key], *, by_code: bool
) -> tuple[Key, ...]:
    """Of threads that nap those that have not run since all was as it is, and have no part in it. `by_code`: and those
    whose code says that it lets somebody go on, unless they wait for what is held themselves.
    """
    if not naps:
        return ()
    found = []
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
            found.append(key)
    return tuple(found)


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


def _words(scene: Scene, nap: Blocked, may: Way | None) -> str:
    sample = scene.thread(nap.key)
    name = (sample.name or sample.comm) if sample is not None else ""
    left = f" for another {nap.lasts_s:.1f} s" if nap.lasts_s is not None else ""
    if (word := _says(scene, nap.key)) is not None:
        does = f"naps{left}, and its code calls a `{word}`"
        return f"thread {name} (tid {nap.key[1]}) {does}: when, and of what, is not known"
    then = "what it does then, and whether it lets the others go on, is not known"
    if may is not None:
        then = f"it may {may.value}, which is not known"
    return f"thread {name} (tid {nap.key[1]}) has slept since before, and does{left}: {then}"
