"""What each thread waits for: system call, lock and frames in, one `Blocked` out.

Memory and kernel come before frames: a thread inside `all_reduce` that sleeps on a mutex waits for the mutex.
Targets that are whole processes are given as (pid, 0) and settled by `fronts`; those of collectives by
`collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyhangtrace.analyze import (
    call_waits,
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
from pyhangtrace.model.kinds import Kind, Role, WaitKind
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
    call = recognise(sample.frames)
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
            line
            for line in (
                describe_syscall(scene, sample),
                describe_lock(sample),
                describe_call(call),
            )
            if line
        ),
    )
    for rule in _RULES:
        found = rule(scene, sample, draft)
        if found is not None:
            return _launching(scene, _completed(scene, sample, found))
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
    return changed(wait, object=replace(wait.object, remaining_s=sample.remaining_s))


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


# In order: the first rule that knows the wait decides.
_RULES: tuple[_Rule, ...] = (
    states.stopped,
    lock_waits.gil,
    states.gpu,
    states.running,
    lock_waits.owned_lock,
    teams.team,
    call_waits.lock_file,
    call_waits.group_call,
    python_objects.future,
    call_waits.loader,
    syscall_waits.child,
    call_waits.worker_loop,
    lock_waits.shared_lock,
    syscall_waits.file_lock,
    syscall_waits.sqlite,
    syscall_waits.io,
    syscall_waits.fifo,
    syscall_waits.lease,
    syscall_waits.ring,
    ipc_waits.system_v,
    ipc_waits.posix_queue,
    lock_waits.join,
    lock_waits.import_lock,
    lock_waits.python_lock,
    lock_waits.passive,
    syscall_waits.sleep,
    syscall_waits.polls,
    syscall_waits.signals,
    lock_waits.futex,
    states.kernel,
    states.named_file,
)
