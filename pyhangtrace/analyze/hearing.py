"""Threads that others may wake who have no part in a circle, and that may see to it then.

A thread that waits for a child, for a file lock, or for a message may be told by its end that a lock is to be given
back. It hears nothing where all that could wake it waits for the circle itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import chain
from typing import NamedTuple

from pyhangtrace.analyze import holders, objects
from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.ipc_waits import POSIX_QUEUES, QUEUES, SEMAPHORES
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.model.kinds import FdKind, WaitKind

# Where one that is recorded has to act, it hears of the world if that one may.
_FOR_OTHERS = frozenset({WaitKind.CHILD, WaitKind.FILE_LOCK, WaitKind.MUTEX, WaitKind.RWLOCK})

# What the other end, or the holder, is a whole process for: any thread of it may act.
_FOR_PROCESSES = frozenset(
    {WaitKind.CHILD, WaitKind.FILE_LOCK, WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL}
)

# Objects in shared memory that any process may act on that has it mapped.
_SHARED = frozenset({WaitKind.SEMAPHORE, WaitKind.BARRIER})

# Descriptors that the kernel, or anybody at all, may make ready.
_FROM_ANYBODY = frozenset({FdKind.SIGNALFD, FdKind.INOTIFY})

_IPC_CALLS = frozenset({*SEMAPHORES, *QUEUES, *POSIX_QUEUES})

# How many threads a wait is followed over, at most.
_FARTHEST = 256


def hears(scene: Scene, wait: Blocked) -> bool:
    """Whether a thread with work of its own waits for word, or an act, that may come from another process.

    Who accepts connections, or polls for whatever comes, serves others; threads at a condition are how pools wait.
    """
    # A launcher looks after those whom it has started.
    if wait.service not in (None, LAUNCHER) or wait.own_end:
        return False
    if wait.kind in (WaitKind.SOCKET, WaitKind.PIPE):
        return not (wait.standing is Standing.IDLE and wait.object.name == "connection")
    if wait.kind in _FOR_OTHERS:
        return wait.standing is Standing.FIRM and any(pid != wait.key[0] for pid, _ in wait.targets)
    return wait.standing in (Standing.FIRM, Standing.IDLE, Standing.OPAQUE) and _is_told(scene, wait)


def _is_told(scene: Scene, wait: Blocked) -> bool:
    """Of what has no owner: whether somebody of another process may have it end."""
    sample = scene.thread(wait.key)
    if sample is None:
        return False
    call = scene.syscall(sample)
    if call in _IPC_CALLS:
        return True
    if wait.kind is WaitKind.IO:
        facts = scene.fds.get((wait.key[0], wait.object.fd)) if wait.object.fd is not None else None
        if facts is None:
            return False
        return facts.kind in _FROM_ANYBODY or (facts.kind is FdKind.EVENTFD and bool(objects.others(facts)))
    if wait.kind is WaitKind.POLL and wait.object.name == "signal":
        # Only a handler ends the others of these calls.
        return call == "rt_sigtimedwait" or bool(holders.handled_signals(scene, wait.key[0]))
    return wait.kind in _SHARED and sample.lock is not None and sample.lock.shared_key is not None


class Part(NamedTuple):
    """Threads that stand still, their processes, and these with all that they descend from."""

    threads: Set[Key]
    pids: Set[int]
    lineage: Set[int]


def part_of(scene: Scene, threads: Set[Key]) -> Part:
    """These threads as a part of the job: once for all that may hear of others."""
    pids = {pid for pid, _ in threads}
    return Part(threads, pids, pids.union(*map(scene.ancestors, pids)))


def hears_nothing(scene: Scene, waits: Mapping[Key, Blocked], key: Key, part: Part) -> bool:
    """Whether all that could wake a thread waits for that part, as it does itself.

    Or it waits for the job itself, as a shell does: for a child that is one of them, or that they descend from.
    """
    first = waits[key]
    if first.kind is WaitKind.CHILD and any(pid in part.lineage for pid, _ in first.targets):
        return True
    seen = {key}
    todo = [key]
    while todo:
        wait = waits.get(todo.pop())
        if wait is None or wait.standing is not Standing.FIRM or not wait.targets:
            return False
        whole = wait.kind in _FOR_PROCESSES
        # Beside the ends of pipes stand all threads of the same processes: thousands, and nothing new.
        besides = wait.besides if wait.kind is WaitKind.FILE_LOCK else ()
        for target in chain(wait.targets, besides):
            if target in part.threads or (whole and target[0] in part.pids):
                continue
            found: tuple[Key, ...] = (target,)
            if wait.kind is WaitKind.CHILD:
                found = _enders(scene, waits, target[0])
            elif whole:
                found = _workers(scene, target)
            if not found or len(seen) > _FARTHEST:
                return False
            todo += [other for other in found if other not in seen and other not in part.threads]
            seen.update(found)
    return True


def _enders(scene: Scene, waits: Mapping[Key, Blocked], pid: int) -> tuple[Key, ...]:
    """Threads on which the end of a child depends: its main thread, as a rule, whatever its helpers are at."""
    main = (pid, pid)
    return (main,) if main in waits else scene.workers.get(pid, ())


def _workers(scene: Scene, target: Key) -> tuple[Key, ...]:
    """Threads of a process of which each may act for it."""
    return scene.workers.get(target[0], ())
