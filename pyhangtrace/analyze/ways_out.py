"""How a wait may end though whoever is recorded does nothing about it: rules as data, by what is waited for.

What a lock checks decides who counts. One that its owner alone can give back (recursive, error checking, RLock) is
given back by nobody else; but a handler of a signal runs in the owner's thread too.

Only what leaves the processes alive counts. Anybody may end one, as launchers, supervisors and time limits do with
jobs that hang: none recovers by that, and that it hangs stays a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from math import inf
from typing import NamedTuple

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.kinds import WaitKind
from pyhangtrace.model.threads import ThreadSample


class Way(Enum):
    """What somebody else may do; the values are how that is said."""

    UNLOCKED = "unlock the mutex, which the C library lets any thread do"
    CANCELLED = "cancel the thread that waits"
    INTERRUPTED = "send a signal whose handler may leave the wait, or give back what is held"
    CONTINUED = "let the stopped process go on"


class WayOut(NamedTuple):
    """A way, and the processes whose threads may go it."""

    way: Way
    pids: frozenset[int]


# Locks that record their owner, and that others can unlock all the same. The C library refuses that for other types.
_UNGUARDED = frozenset({"mutex_normal", "mutex_adaptive", "rwlock_read", "rwlock_write"})

# System calls that return when a handler was called, if that was asked for.
_INTERRUPTED_CALLS = frozenset(
    {WaitKind.FILE_LOCK, WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL, WaitKind.CHILD}
)

# Calls in which pthread_cancel() ends a thread: what it holds is then given back by those who clean up behind it.
_CANCELLATION_POINTS = frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL, WaitKind.CHILD})

# Python runs its handlers where a call of its own is interrupted, not inside of what a library waits for.
_NOT_PYTHONS = frozenset({WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.GIL, WaitKind.ONCE})

# SIGHUP, SIGINT, SIGQUIT, SIGTERM: what one process asks another one to end by, whether that has a handler or not.
_ASKED_TO_END = frozenset({1, 2, 3, 15})

_SIGINT, _SIGALRM = 2, 14

# Who wakes up later than this keeps a hang from being none.
SOON_S = 60.0

# Wall clocks: realtime, monotonic, boottime, their alarms, TAI. Those of CPU time stand still while all sleep.
_WALL_CLOCKS = frozenset({0, 1, 7, 8, 9, 11})


def ways_out(scene: Scene, wait: Blocked, around: Callable[[int], frozenset[int]]) -> tuple[WayOut, ...]:
    """All that apply to a wait for somebody who is recorded; none to one that waits for nobody in particular.

    `around` gives the `relatives` of a process.
    """
    if wait.standing not in (Standing.FIRM, Standing.STOPPED):
        return ()
    sample = scene.thread(wait.key)
    return tuple(_ways(scene, wait, sample, around)) if sample is not None else ()


def _ways(
    scene: Scene, wait: Blocked, sample: ThreadSample, around: Callable[[int], frozenset[int]]
) -> Iterator[WayOut]:
    pid = wait.key[0]
    kind = sample.lock.kind if sample.lock is not None else None
    family = around(pid)
    if wait.standing is Standing.STOPPED:
        yield WayOut(Way.CONTINUED, family)
        return
    if wait.kind in (WaitKind.MUTEX, WaitKind.RWLOCK) and kind in _UNGUARDED:
        yield WayOut(
            Way.UNLOCKED, _who_can_unlock(scene, pid, family) if is_shared(sample) else frozenset({pid})
        )
    if not _runs_python(scene, pid) and (kind == "join" or wait.kind in _CANCELLATION_POINTS):
        yield WayOut(Way.CANCELLED, frozenset({pid}))
    if signals := interrupting(scene, wait, sample):
        own = frozenset({pid, *scene.descendants(pid)})
        yield WayOut(Way.INTERRUPTED, family if signals - _ASKED_TO_END else own)


def _who_can_unlock(scene: Scene, pid: int, family: frozenset[int]) -> frozenset[int]:
    """Of a lock in shared memory: who has that memory, where it is known, else who may have it by descent."""
    sharers = scene.processes[pid].lock_sharers if pid in scene.processes else None
    return family if sharers is None else frozenset(sharers)


def stranger_with_lock(scene: Scene, wait: Blocked) -> int | None:
    """A process that has the memory of a lock which it could unlock, and that has no part in the job."""
    process = scene.processes.get(wait.key[0])
    if wait.kind not in (WaitKind.MUTEX, WaitKind.RWLOCK) or process is None:
        return None
    if open_memory(scene.thread(wait.key)) is None:
        return None
    part = {pid for pid, _ in wait.targets}
    return next(
        (pid for pid in process.lock_sharers or () if pid not in part and not scene.is_member(pid)), None
    )


def open_memory(sample: ThreadSample | None) -> tuple[int, int] | None:
    """Device and inode of the shared memory with the lock of a thread that others than its owner can unlock."""
    lock = sample.lock if sample is not None else None
    if lock is None or lock.shared_key is None or lock.kind not in _UNGUARDED:
        return None
    return lock.shared_key[:2]


def interrupting(scene: Scene, wait: Blocked, sample: ThreadSample) -> frozenset[int]:
    """Signals that would have a handler called which may leave the wait, by an exception or a jump, or give back what
    the thread has: it runs in a thread that has it. Python's run in its main thread, and SIGINT always has one.
    """
    process = scene.processes.get(wait.key[0])
    if sample.state != "S" or process is None or process.signals_caught is None:
        return frozenset()
    in_python = _runs_python(scene, wait.key[0])
    if in_python and (wait.key[0] != wait.key[1] or wait.kind in _NOT_PYTHONS):
        return frozenset()
    return frozenset(process.signals_caught) - (holders.UNASKED_SIGNALS - {_SIGINT})


def in_same_memory(scene: Scene, pid: int) -> frozenset[int]:
    """Other processes that run in the memory of this one, and may have the id of one of its threads in their locks."""
    process = scene.processes.get(pid)
    return frozenset(process.same_memory) if process is not None else frozenset()


def has_timer(scene: Scene, pid: int) -> bool:
    """Whether a process has an alarm set, or has made a timer that goes by the wall clock and sends a signal."""
    return bool(_timer_signals(scene, pid, alarm_within_s=inf))


def _timer_signals(
    scene: Scene, pid: int, *, alarm_within_s: float = SOON_S, made: bool = True
) -> frozenset[int]:
    """What its alarm sends, and with `made` its timers, of which nothing tells whether they are set."""
    process = scene.processes.get(pid)
    if process is None:
        return frozenset()
    timers = process.timers if made else ()
    found = {timer.signal for timer in timers if timer.signal is not None and timer.clock in _WALL_CLOCKS}
    if process.alarm_s is not None and process.alarm_s <= alarm_within_s:
        found.add(_SIGALRM)
    return frozenset(found)


def timer_ends(scene: Scene, wait: Blocked) -> str | None:
    """By what timer of its own a wait ends within a minute, as far as that is known, as a clause.

    One that has lasted for a minute was not ended by a timer that is made: it is not set, or for long.
    """
    pid = wait.key[0]
    made = (wait.since_s or 0.0) < SOON_S
    if _timer_interrupts(scene, wait, made=made):
        return f"{timer_of(scene, pid)} has a handler called, which ends the wait"
    sample = scene.thread(wait.key)
    rings = _SIGALRM in _timer_signals(scene, pid, made=False)
    if made and rings and sample is not None and interrupting(scene, wait, sample):
        return f"{timer_of(scene, pid)} has a handler called, which may end the wait"
    return None


def timer_of(scene: Scene, pid: int) -> str:
    """The alarm or timer of a process, in words."""
    process = scene.processes[pid]
    if process.alarm_s is not None and process.alarm_s <= SOON_S:
        return f"the alarm of pid {pid}, {process.alarm_s:.0f} s to go,"
    return f"a timer of pid {pid}"


def _timer_interrupts(scene: Scene, wait: Blocked, *, made: bool) -> bool:
    """Whether a handler is called that makes a system call return: `flock -w` is this."""
    process = scene.processes.get(wait.key[0])
    if process is None or process.signals_caught is None or wait.kind not in _INTERRUPTED_CALLS:
        return False
    return not _timer_signals(scene, wait.key[0], made=made).isdisjoint(process.signals_caught)


def is_shared(sample: ThreadSample | None) -> bool:
    """Whether the lock of a thread lies in memory that several processes share."""
    return sample is not None and sample.lock is not None and sample.lock.shared_key is not None


def relatives(scene: Scene, pid: int) -> frozenset[int]:
    """A process with those that it may share memory with, and that may look after it: those that it descends from, as
    far as they are known, its parent's other children, its own.
    """
    process = scene.processes.get(pid)
    if process is None:
        return frozenset({pid})
    brothers = scene.children.get(process.ppid, ())
    return frozenset({pid, *scene.ancestors(pid), *brothers, *scene.descendants(pid)})


def _runs_python(scene: Scene, pid: int) -> bool:
    process = scene.processes.get(pid)
    return process is not None and process.python is not None
