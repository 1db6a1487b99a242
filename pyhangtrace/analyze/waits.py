"""What each thread waits for: system call, lock and frames in, one `Blocked` out.

Memory and kernel come before frames: a thread inside `all_reduce` that sleeps on a mutex waits for the mutex.
Targets that are whole processes are given as (pid, 0) and settled by `fronts`; those of collectives by
`collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pyhangtrace.analyze import (
    call_waits,
    holders,
    ipc_waits,
    lock_waits,
    python_objects,
    shared_rings,
    states,
    syscall_waits,
    teams,
    zmq_waits,
)
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import RINGS, Meaning, has_stack, polls, recognise
from pyhangtrace.analyze.describe import describe_call, describe_lock, describe_syscall
from pyhangtrace.analyze.progress import DEAD, Progress, gil_wait, is_ready, progress
from pyhangtrace.analyze.readings import read
from pyhangtrace.analyze.rules import (
    Asked,
    Rule,
    Traits,
    anybody,
    either,
    in_call,
    in_gpu,
    in_syscall,
    on_lock,
    runs,
)
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.sleeps import MAY_SLEEP
from pyhangtrace.analyze.teardown import at_the_end
from pyhangtrace.model.kinds import Confidence, Kind, Role, WaitKind
from pyhangtrace.model.threads import ThreadSample

# By names of their own: before Python 3.12 to look a member up costs as much as to call a rule.
_FIRM, _PROVEN, _LAUNCHER = Standing.FIRM, Confidence.PROVEN, Role.LAUNCHER
_UNMOVED, _RUNNING = Progress.UNMOVED, Progress.RUNNING

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
    reading = scene.readings[key] if sample is samples[-1] else read(sample.frames)
    call = reading.call(sample.frames)
    lock = sample.lock
    moved = Progress.MOVING if key in scene.began else progress(samples, scene.times[key])
    draft = changed(
        _DRAFT,
        key=key,
        progress=moved,
        call=call,
        service=scene.services[key],
        since_s=sample.asleep_for_s if moved is _UNMOVED else None,
        lasts_s=sample.remaining_s if sample.remaining_s is not None else sample.timeout_s,
        ends_by_itself=sample.timeout_s is not None or (lock is not None and lock.timeout),
        evidence=tuple(
            filter(None, (describe_syscall(scene, sample), describe_lock(sample), describe_call(call)))
        ),
    )
    traits = (
        lock.kind if lock is not None else None,
        call.meaning if call is not None else None,
        scene.syscall(sample),
        reading.gpu is not None,
        moved is _RUNNING,
    )
    for rule in _rules(traits):
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
    if wait.standing is not _FIRM or wait.basis is not _PROVEN or sample.state != "S":
        return wait
    pid, tid = wait.key
    process = scene.processes.get(pid)
    elsewhere = process is not None and process.python is not None and pid != tid
    if elsewhere or not holders.has_timer_handler(scene, pid):
        return wait
    said = "its process has a handler for a timer's signal, which may end the wait; whether one is set cannot be seen"
    return changed(wait, basis=Confidence.LIKELY, evidence=(*wait.evidence, said))


def _launching(scene: Scene, wait: Blocked) -> Blocked:
    """A launcher that waits for whom it started does its work; one that waits for a lock does not."""
    if wait.service is not None:
        return wait
    process = scene.processes.get(wait.key[0])
    is_launcher = process is not None and process.role is _LAUNCHER and wait.kind in _LAUNCHER_WAITS
    if wait.cause is Kind.IPC_PIPE_FULL:
        return wait  # its log, say: that is no wait for whom it started
    if is_launcher or (wait.call is not None and wait.call.meaning is Meaning.LAUNCHER):
        return changed(wait, service=LAUNCHER)
    return wait


# In order: the first rule that knows the wait decides. Each stands with whom it is asked of.
_RULES: tuple[tuple[Rule, Asked], ...] = (
    (states.stopped, anybody),
    (lock_waits.gil, on_lock("gil")),
    (states.gpu, in_gpu),
    (states.running, runs),
    (shared_rings.ring, in_call(*RINGS)),
    (call_waits.pool_end, in_call(Meaning.POOL_RESULT)),
    (lock_waits.owned_lock, on_lock("mutex_*", *lock_waits.OWNED)),
    (teams.team, on_lock()),
    (call_waits.lock_file, in_call(Meaning.LOCK_FILE)),
    (call_waits.group_call, in_call(*call_waits.OF_THE_GROUP)),
    (call_waits.task_result, in_call(Meaning.TASK_RESULT)),
    (python_objects.future, in_call(Meaning.FUTURE)),
    (call_waits.loader, in_call(Meaning.LOADER, Meaning.POOL_RESULT, Meaning.FUTURE)),
    (
        syscall_waits.child,
        either(in_syscall(*syscall_waits.CHILD), in_call(Meaning.CHILD, Meaning.JOIN_PROCESS)),
    ),
    (call_waits.worker_loop, in_call(Meaning.WORKER_LOOP, Meaning.EVENT_LOOP, Meaning.SERVING)),
    (lock_waits.shared_lock, on_lock("semaphore")),
    (syscall_waits.file_lock, in_syscall("flock", "fcntl")),
    (syscall_waits.sqlite, in_syscall(*MAY_SLEEP)),
    (syscall_waits.io, in_syscall(*syscall_waits.READS, *syscall_waits.WRITES, "connect")),
    (syscall_waits.fifo, in_syscall(*syscall_waits.OPENS)),
    (syscall_waits.lease, in_syscall(*syscall_waits.BREAKS_LEASES)),
    (syscall_waits.ring, in_syscall("io_uring_enter")),
    (ipc_waits.system_v, in_syscall(*ipc_waits.SEMAPHORES, *ipc_waits.QUEUES)),
    (ipc_waits.posix_queue, in_syscall(*ipc_waits.POSIX_QUEUES)),
    (lock_waits.join, in_call(Meaning.JOIN_THREAD)),
    (lock_waits.import_lock, in_call(Meaning.IMPORT_LOCK)),
    (lock_waits.python_lock, on_lock("python_lock", "python_rlock")),
    (lock_waits.passive, in_call(*lock_waits.PASSIVE)),
    (syscall_waits.sleep, in_syscall(*MAY_SLEEP)),
    (zmq_waits.zmq, in_syscall(*syscall_waits.POLLS)),
    (syscall_waits.polls, in_syscall(*syscall_waits.POLLS)),
    (syscall_waits.signals, in_syscall(*syscall_waits.SIGNALS)),
    (lock_waits.futex, either(on_lock(), in_syscall(*lock_waits.FUTEXES))),
    (states.kernel, anybody),
    (states.named_file, anybody),
)


@lru_cache(maxsize=4096)
def _rules(traits: tuple[str | None, Meaning | None, str | None, bool, bool]) -> tuple[Rule, ...]:
    return tuple(rule for rule, asked in _RULES if asked(Traits(*traits)))
