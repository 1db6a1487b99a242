"""What each thread waits for: system call, lock and frames in, one `Blocked` out.

Memory and kernel come before frames: a thread inside `all_reduce` that sleeps on a mutex waits for the mutex.
Targets that are whole processes are given as (pid, 0) and settled by `fronts`; those of collectives by
`collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache

from pyhangtrace.analyze import (
    call_waits,
    holders,
    ipc_waits,
    lock_waits,
    python_objects,
    states,
    syscall_waits,
    teams,
)
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Meaning, has_stack, polls, recognise
from pyhangtrace.analyze.describe import describe_call, describe_lock, describe_syscall
from pyhangtrace.analyze.progress import DEAD, Progress, gil_wait, is_ready, progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.teardown import at_the_end
from pyhangtrace.model.kinds import Confidence, Kind, Role, WaitKind
from pyhangtrace.model.threads import ThreadSample

_LAUNCHER_WAITS = frozenset(
    {
        WaitKind.CHILD,
        WaitKind.POLL,
        WaitKind.TIMER,
        WaitKind.PIPE,
        WaitKind.SOCKET,
        WaitKind.IO,
        WaitKind.RUNNING,
    }
)


_DRAFT = Blocked(
    key=(0, 0),
    kind=WaitKind.IO,
    standing=Standing.OPAQUE,
    progress=Progress.UNSEEN,
    cause=Kind.UNKNOWN,
)


def classify(scene: Scene, key: Key) -> Blocked | None:
    """The wait of one thread; None for one that ended."""
    samples = scene.samples[key]
    sample = gil_wait(samples, scene.times[key]) or _telling(samples)
    if sample.state in DEAD:
        return None
    call = scene.reading(sample).call(sample.frames)
    moved = Progress.MOVING if key in scene.began else progress(samples, scene.times[key])
    draft = changed(
        _DRAFT,
        key=key,
        progress=moved,
        call=call,
        service=scene.services[key],
        since_s=sample.asleep_for_s if moved is Progress.UNMOVED else None,
        lasts_s=sample.remaining_s if sample.remaining_s is not None else sample.timeout_s,
        ends_by_itself=sample.timeout_s is not None or bool(sample.lock and sample.lock.timeout),
        evidence=tuple(
            filter(None, (describe_syscall(scene, sample), describe_lock(sample), describe_call(call)))
        ),
    )
    name = scene.syscall(sample)
    other_call = name is not None and name not in lock_waits.FUTEXES
    for rule in _rules(lock=sample.lock is not None, call=call is not None, syscall=other_call):
        found = rule(scene, sample, draft)
        if found is not None:
            wait = at_the_end(sample, _completed(scene, sample, found))
            return _launching(scene, _unless_interrupted(scene, sample, wait))
    return _launching(scene, draft)


def _telling(samples: Sequence[ThreadSample]) -> ThreadSample:
    """The newest one; of a thread that runs and of which no stack was had just then, the one before.

    Only where all that were had show one and the same call in which a thread polls.
    """
    last = samples[-1]
    if not is_ready(last) or has_stack(last):
        return last
    calls = [recognise(sample.frames) for sample in samples if has_stack(sample)]
    found = {(call.op, call.meaning) if call is not None and polls(call) else None for call in calls}
    if len(found) != 1 or None in found:
        return last
    return next(sample for sample in reversed(samples) if has_stack(sample))


def _completed(scene: Scene, sample: ThreadSample, wait: Blocked) -> Blocked:
    """With the name of an object that has one, and with what is left of a timed wait."""
    wait = ipc_waits.named_semaphore(scene, sample, wait)
    if not wait.ends_by_itself or wait.object.remaining_s is not None:
        return wait
    return changed(wait, object=changed(wait.object, remaining_s=sample.remaining_s))


def _unless_interrupted(scene: Scene, sample: ThreadSample, wait: Blocked) -> Blocked:
    """A handler that a timer may call can leave the wait, by an exception or a jump: then nothing about it is proven.

    Python runs its handlers in the main thread alone.
    """
    key = wait.key
    process = scene.processes.get(key[0])
    elsewhere = process is not None and process.python is not None and key[0] != key[1]
    open_to = wait.standing is Standing.FIRM and wait.basis is Confidence.PROVEN and sample.state == "S"
    if not open_to or elsewhere or not holders.has_timer_handler(scene, key[0]):
        return wait
    said = "its process has a handler for a timer's signal, which may end the wait; whether one is set cannot be seen"
    return changed(wait, basis=Confidence.LIKELY, evidence=(*wait.evidence, said))


def _launching(scene: Scene, wait: Blocked) -> Blocked:
    """A launcher that waits for whom it started does its work; one that waits for a lock does not."""
    process = scene.processes.get(wait.key[0])
    is_launcher = process is not None and process.role is Role.LAUNCHER and wait.kind in _LAUNCHER_WAITS
    if wait.service is None and (
        is_launcher or (wait.call is not None and wait.call.meaning is Meaning.LAUNCHER)
    ):
        return changed(wait, service=LAUNCHER)
    return wait


_Rule = Callable[[Scene, ThreadSample, Blocked], "Blocked | None"]


class _Needs(Enum):
    """What a thread must have for a rule to know it: most have little, and need not be shown to every rule."""

    NOTHING = "nothing"
    LOCK = "lock"
    CALL = "call"
    SYSCALL = "system call other than futex"


# In order: the first rule that knows the wait decides.
_RULES: tuple[tuple[_Rule, _Needs], ...] = (
    (states.stopped, _Needs.NOTHING),
    (lock_waits.gil, _Needs.LOCK),
    (states.gpu, _Needs.NOTHING),
    (states.running, _Needs.NOTHING),
    (lock_waits.owned_lock, _Needs.LOCK),
    (teams.team, _Needs.LOCK),
    (call_waits.lock_file, _Needs.CALL),
    (call_waits.group_call, _Needs.CALL),
    (python_objects.future, _Needs.CALL),
    (call_waits.loader, _Needs.CALL),
    (syscall_waits.child, _Needs.NOTHING),
    (call_waits.worker_loop, _Needs.CALL),
    (lock_waits.shared_lock, _Needs.LOCK),
    (syscall_waits.file_lock, _Needs.SYSCALL),
    (syscall_waits.sqlite, _Needs.SYSCALL),
    (syscall_waits.io, _Needs.SYSCALL),
    (syscall_waits.fifo, _Needs.SYSCALL),
    (syscall_waits.lease, _Needs.SYSCALL),
    (syscall_waits.ring, _Needs.SYSCALL),
    (ipc_waits.system_v, _Needs.SYSCALL),
    (ipc_waits.posix_queue, _Needs.SYSCALL),
    (lock_waits.join, _Needs.CALL),
    (lock_waits.import_lock, _Needs.CALL),
    (lock_waits.python_lock, _Needs.LOCK),
    (lock_waits.passive, _Needs.CALL),
    (syscall_waits.sleep, _Needs.SYSCALL),
    (syscall_waits.polls, _Needs.SYSCALL),
    (syscall_waits.signals, _Needs.SYSCALL),
    (lock_waits.futex, _Needs.NOTHING),
    (states.kernel, _Needs.NOTHING),
    (states.named_file, _Needs.NOTHING),
)


@cache
def _rules(*, lock: bool, call: bool, syscall: bool) -> tuple[_Rule, ...]:
    has = {_Needs.NOTHING: True, _Needs.LOCK: lock, _Needs.CALL: call, _Needs.SYSCALL: syscall}
    return tuple(rule for rule, needs in _RULES if has[needs])
