"""Waits for objects in memory: mutexes, the GIL, Python locks, conditions, joins."""

from __future__ import annotations

from pyhangtrace.analyze import holders, python_objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Meaning, has_function, python_frames
from pyhangtrace.analyze.managers import serving_clients
from pyhangtrace.analyze.progress import SETTLED_S
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.report import ReportHolder, WaitObject
from pyhangtrace.model.threads import LockFacts, ThreadSample

# Beside mutexes, whose kind starts with `mutex_`.
OWNED = {
    "rwlock_read": WaitKind.RWLOCK,
    "rwlock_write": WaitKind.RWLOCK,
    "join": WaitKind.JOIN,
    "once": WaitKind.ONCE,
}

# What else a futex may be; of what is unknown it is most likely a condition.
_SIGNALLED = {
    "condition": WaitKind.CONDITION,
    "semaphore": WaitKind.SEMAPHORE,
    "barrier": WaitKind.BARRIER,
    "future": WaitKind.CONDITION,
    "once": WaitKind.ONCE,
}

# What lies in a word that is no condition, as the report calls it.
WORD_NAMES = {"futex": "futex word", "atomic": "atomic", "future": "std::future"}

FUTEXES = frozenset({"futex", "futex_wait", "futex_waitv"})

# multiprocessing's own semaphore type, as C functions before and since CPython 3.12.
_SEMLOCK = ("_multiprocessing_SemLock_acquire", "_multiprocessing_SemLock_acquire_impl", "semlock_acquire")

# Passive: what is waited for is a signal that any thread may give.
PASSIVE: dict[Meaning, WaitKind] = {
    Meaning.CONDITION: WaitKind.CONDITION,
    Meaning.EVENT: WaitKind.CONDITION,
    Meaning.SEMAPHORE: WaitKind.SEMAPHORE,
    Meaning.BARRIER: WaitKind.BARRIER,
    Meaning.QUEUE_GET: WaitKind.QUEUE,
    Meaning.QUEUE_PUT: WaitKind.QUEUE,
    Meaning.FUTURE: WaitKind.CONDITION,
}


def gil(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """The interpreter's lock."""
    if sample.lock is None or sample.lock.kind != "gil":
        return None
    holder = holders.gil_holder(scene, sample.pid)
    if holder == draft.key:
        holder = None
    # Free at that moment, or handed over while one looked. On a crowded machine that may be so in both of two looks.
    passing = sample.lock.problem == holders.RELEASED or scene.evidence.window_s < SETTLED_S
    return changed(
        draft,
        kind=WaitKind.GIL,
        standing=Standing.OPAQUE if holder is None and passing else Standing.FIRM,
        basis=draft.basis if holder else Confidence.LIKELY,
        cause=Kind.LOCK_GIL,
        object=holders.lock_object(sample),
        targets=(holder,) if holder else (),
        holder=holders.thread_holder(holder),
        # Waiters look again every 5 ms; that does not end the wait.
        ends_by_itself=False,
        lasts_s=None,
    )


def owned_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Locks that record their owner: mutexes, read-write locks, pthread_join; initialisations by frames."""
    lock = sample.lock
    kind = _owned_kind(lock.kind) if lock is not None else None
    if lock is None or kind is None:
        return None
    owner = holders.lock_owner(scene, sample)
    died = lock.problem == holders.OWNER_DIED
    thing = holders.lock_object(sample)
    if lock.kind == "join" and owner is not None:
        thing = changed(thing, name=_name(scene, owner.key))
    if owner is None:
        problem = lock.problem or ""
        never = died or problem.startswith(holders.NEVER_HAD)
        # What lies in a file of its own anybody may hold, whom nobody has looked at.
        anybody = not never and (lock.shared_file is not None or problem.endswith(holders.WHOSE_UNKNOWN))
        # Who runs an initialisation is only seen where it was not inlined.
        anybody = anybody or kind is WaitKind.ONCE
        if never and not died:
            # The thread sleeps for good on a word of its own stack: of which mutex it was nothing is left.
            thing = changed(thing, address=None)
        return changed(
            draft,
            kind=kind,
            standing=Standing.OPAQUE if anybody else Standing.FIRM,
            cause=Kind.LOCK_OWNER_GONE if died else Kind.LOCK_HELD,
            basis=draft.basis if died else Confidence.LIKELY,
            object=thing,
            candidates=() if never else holders.who_may_hold(scene, draft.key),
            ends_by_itself=lock.timeout,
        )
    if owner.key is not None:
        return _held_by(owner.key, thing, lock, draft, kind=kind, ends_by_itself=lock.timeout)
    cause, pid, why = _owner_gone(scene, sample, owner)
    return changed(
        draft,
        kind=kind,
        standing=Standing.FIRM,
        cause=cause,
        basis=Confidence.LIKELY if owner.reused else Confidence.PROVEN,
        object=holders.lock_object(sample),
        holder=ReportHolder(pid=pid, tid=None if owner.reused else owner.tid, alive=False),
        evidence=(*draft.evidence, why),
        ends_by_itself=lock.timeout,
    )


def _held_by(
    key: Key, thing: WaitObject, lock: LockFacts, draft: Blocked, *, kind: WaitKind, ends_by_itself: bool
) -> Blocked:
    return changed(
        draft,
        kind=kind,
        standing=Standing.FIRM,
        cause=Kind.LOCK_HELD,
        basis=Confidence.PROVEN if lock.owner_exact else Confidence.LIKELY,
        object=thing,
        targets=(key,),
        holder=holders.thread_holder(key),
        ends_by_itself=ends_by_itself,
    )


def _owned_kind(kind: str) -> WaitKind | None:
    return WaitKind.MUTEX if kind.startswith("mutex_") else OWNED.get(kind)


def _owner_gone(scene: Scene, sample: ThreadSample, owner: holders.Owner) -> tuple[Kind, int, str]:
    if owner.reused:
        younger = f"the thread that has id {owner.tid} now was started after everybody here fell asleep"
        return Kind.LOCK_OWNER_GONE, sample.pid, younger
    gone = f"no thread {owner.tid} in process {sample.pid}"
    parent = holders.forked_without_exec(scene, sample.pid)
    if parent is not None and sample.lock is not None and sample.lock.shared_key is None:
        if (parent.pid, owner.tid) in scene.samples:
            return Kind.LOCK_AFTER_FORK, sample.pid, f"{gone}; it is a thread of the parent {parent.pid}"
        if owner.tid == parent.pid or not _has_other_threads(scene, sample) or _before_fork(scene, owner):
            return Kind.LOCK_AFTER_FORK, sample.pid, f"{gone}, which was forked from {parent.pid}"
    return Kind.LOCK_OWNER_GONE, sample.pid, gone


def _before_fork(scene: Scene, owner: holders.Owner) -> bool:
    """Whether the id of an owner was given before those of its process, which begin with its own and go up: not where
    the kernel has begun anew meanwhile.
    """
    return owner.tid < min(tid for _, tid in scene.threads_of(owner.pid)) == owner.pid


def _has_other_threads(scene: Scene, sample: ThreadSample) -> bool:
    return len(scene.threads_of(sample.pid)) > 1


def shared_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A Lock or RLock of multiprocessing of which the process that holds it has counted that."""
    lock = sample.lock
    owner = holders.lock_owner(scene, sample)
    if lock is None or lock.kind != "semaphore" or owner is None or owner.key is None:
        return None
    thing = holders.lock_object(sample)
    return _held_by(owner.key, thing, lock, draft, kind=WaitKind.SEMAPHORE, ends_by_itself=lock.timeout)


def python_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A Lock or RLock that the program takes itself, or that a library needs to go on."""
    lock = sample.lock
    if lock is None or lock.kind not in ("python_lock", "python_rlock"):
        return None
    owner = holders.lock_owner(scene, sample)
    if draft.call is not None and (owner is None or owner.key is None):
        # Libraries wait for a signal by a lock that nobody else takes; one that is held is no signal.
        return None
    # A timed lock that its own thread holds is tried again: no proof of anything.
    if owner is not None and owner.key is not None and (owner.key != draft.key or not lock.timeout):
        thing = holders.lock_object(sample)
        ends = draft.ends_by_itself
        return _held_by(owner.key, thing, lock, draft, kind=WaitKind.PYTHON_LOCK, ends_by_itself=ends)
    if (inherited := _left_by_fork(scene, sample, draft, owner)) is not None:
        return inherited
    if owner is None and sample.stack_complete and not any(python_frames(sample.frames)):
        # C code that uses such a lock as a signal, as the watchdog of faulthandler does.
        return changed(
            draft,
            kind=WaitKind.PYTHON_LOCK,
            standing=Standing.OPAQUE,
            basis=Confidence.POSSIBLE,
            object=holders.lock_object(sample),
        )
    if (managed := _of_a_manager(scene, sample, draft)) is not None:
        return managed
    reused = owner is not None and owner.reused
    lost = lock.problem == holders.NO_SUCH_OWNER and not holders.changed_hands(scene, sample, lock)
    gone = lock.kind == "python_rlock" and (reused or lost)
    return changed(
        draft,
        kind=WaitKind.PYTHON_LOCK,
        standing=Standing.OPAQUE if lock.problem == holders.OWNER_UNREAD else Standing.FIRM,
        cause=Kind.LOCK_OWNER_GONE if gone else Kind.LOCK_HELD,
        basis=Confidence.LIKELY,
        object=holders.lock_object(sample),
        holder=ReportHolder(pid=sample.pid, tid=None, alive=False) if gone else None,
        candidates=() if gone else holders.siblings(scene, draft.key),
    )


def _left_by_fork(
    scene: Scene, sample: ThreadSample, draft: Blocked, owner: holders.Owner | None
) -> Blocked | None:
    """A lock of who was forked, in which nobody is left to release it."""
    lock, parent = sample.lock, holders.forked_without_exec(scene, sample.pid)
    if lock is None or lock.timeout or parent is None or _has_other_threads(scene, sample):
        return None
    holder = None
    if owner is not None or lock.problem == holders.NO_SUCH_OWNER:
        tid = owner.tid if owner is not None and not owner.reused else None
        holder = ReportHolder(pid=sample.pid, tid=tid, alive=False)
    return changed(
        draft,
        kind=WaitKind.PYTHON_LOCK,
        standing=Standing.FIRM,
        cause=Kind.LOCK_AFTER_FORK,
        basis=Confidence.LIKELY,
        object=holders.lock_object(sample),
        holder=holder,
        evidence=(
            *draft.evidence,
            f"process {sample.pid} was forked from {parent.pid} and has no other thread to release it",
        ),
    )


def _of_a_manager(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A Lock for which a thread of a manager waits on account of a client."""
    recorded = sample.lock is None or sample.lock.kind != "python_lock"
    clients = () if recorded else serving_clients(scene, draft.key)
    if not clients:
        return None
    return changed(
        draft,
        kind=WaitKind.PYTHON_LOCK,
        standing=Standing.OPAQUE,
        cause=Kind.LOCK_HELD,
        basis=Confidence.POSSIBLE,
        object=holders.lock_object(sample),
        candidates=clients,
        edge=Edge.ANY,
        evidence=(
            *draft.evidence,
            "a lock of a manager of multiprocessing: any of its clients may have it",
        ),
    )


def passive(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Conditions, events, queues, futures: any thread may give the signal."""
    if draft.call is None or draft.call.meaning not in PASSIVE:
        return None
    others = holders.siblings(scene, draft.key)
    shared = holders.same_shared_object(scene, draft.key)
    return changed(
        draft,
        kind=PASSIVE[draft.call.meaning],
        standing=Standing.IDLE,
        cause=Kind.UNKNOWN if others or shared else Kind.LOCK_HANDOFF_LOST,
        basis=Confidence.POSSIBLE,
        object=python_objects.thing(sample, draft.call),
        candidates=others,
        targets=others,
        edge=Edge.ANY,
        evidence=(*draft.evidence, *python_objects.filling(sample, draft.call)),
    )


def _name(scene: Scene, key: Key | None) -> str | None:
    sample = scene.thread(key) if key is not None else None
    return sample.name if sample is not None else None


def join(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Thread.join."""
    if draft.call is None or draft.call.meaning is not Meaning.JOIN_THREAD:
        return None
    if draft.call.op == "_shutdown" and (awaited := python_objects.awaited_at_exit(scene, draft.key)):
        one = awaited[0] if len(awaited) == 1 else None
        return changed(
            draft,
            kind=WaitKind.JOIN,
            standing=Standing.FIRM,
            cause=Kind.LOCK_TEARDOWN,
            object=WaitObject(name=_name(scene, one)),
            targets=awaited,
            holder=holders.thread_holder(one),
            candidates=awaited,
            edge=Edge.ALL,
        )
    tid = holders.named(sample, ("_native_id",))
    known = (sample.pid, tid) if isinstance(tid, int) and (sample.pid, tid) in scene.samples else None
    others = holders.siblings(scene, draft.key)
    teardown = draft.call.op == "_shutdown"
    return changed(
        draft,
        kind=WaitKind.JOIN,
        standing=Standing.FIRM,
        cause=Kind.LOCK_TEARDOWN if teardown else Kind.LOCK_HELD,
        basis=Confidence.LIKELY,
        object=WaitObject(name=_name(scene, known)),
        targets=(known,) if known else others,
        holder=holders.thread_holder(known),
        candidates=() if known else others,
        # A join of one of several threads: which one is not recorded, so the slowest to blame is not known.
        edge=Edge.ALL if known or len(others) == 1 else Edge.ANY,
    )


def import_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """The lock of a module that another thread imports."""
    if draft.call is None or draft.call.meaning is not Meaning.IMPORT_LOCK:
        return None
    ident = holders.lock_owner(scene, sample)
    key = ident.key if ident else None
    module = holders.named(sample, ("name",))
    return changed(
        draft,
        kind=WaitKind.IMPORT_LOCK,
        standing=Standing.FIRM,
        cause=Kind.LOCK_IMPORT,
        basis=Confidence.PROVEN if key and sample.lock and sample.lock.owner_exact else Confidence.LIKELY,
        object=changed(holders.lock_object(sample), name=module if isinstance(module, str) else None),
        targets=(key,) if key else (),
        holder=holders.thread_holder(key),
        candidates=() if key else holders.siblings(scene, draft.key),
    )


def futex(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Any other futex."""
    if sample.lock is None and scene.syscall(sample) not in FUTEXES:
        return None
    if sample.lock is not None and (sample.lock.problem or "").startswith(holders.OF_C_LIBRARY):
        return changed(
            draft,
            kind=WaitKind.MUTEX,
            standing=Standing.OPAQUE,
            cause=Kind.LOCK_HELD,
            basis=Confidence.POSSIBLE,
            object=holders.lock_object(sample),
            candidates=holders.siblings(scene, draft.key),
        )
    kind = _SIGNALLED.get(sample.lock.kind if sample.lock else "", WaitKind.CONDITION)
    others = holders.siblings(scene, draft.key)
    shared = holders.brothers_elsewhere(scene, draft.key)
    counts = sample.lock is not None and sample.lock.problem == holders.COUNTS
    if draft.call is None and shared and not counts and has_function(sample.frames, *_SEMLOCK):
        # A lock of multiprocessing records no owner. With one brother elsewhere it is him; of several, any.
        return changed(
            draft,
            kind=WaitKind.SEMAPHORE,
            standing=Standing.FIRM,
            cause=Kind.LOCK_HELD,
            basis=Confidence.POSSIBLE,
            object=holders.lock_object(sample),
            targets=tuple((pid, 0) for pid in shared),
            candidates=tuple((pid, 0) for pid in shared),
            edge=Edge.ANY,
        )
    word = WORD_NAMES.get(sample.lock.kind) if sample.lock is not None and draft.call is None else None
    return changed(
        draft,
        kind=kind,
        standing=Standing.IDLE,
        cause=Kind.UNKNOWN,
        basis=Confidence.POSSIBLE,
        object=changed(holders.lock_object(sample), name=word),
        candidates=others or tuple((pid, 0) for pid in shared),
        targets=others,
        edge=Edge.ANY,
    )
