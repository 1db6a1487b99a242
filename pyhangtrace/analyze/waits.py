"""What each thread waits for: system call, lock and frames in, one `Blocked` out.

Memory and kernel come before frames: a thread inside `all_reduce` that sleeps on a mutex waits for the mutex.
Targets that are whole processes are given as (pid, 0) and settled by `fronts`; those of collectives by
`collectives`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.calls import Meaning, has_function, path_has, python_frames, recognise, waits_for_gpu
from pyhangtrace.analyze.describe import describe_call, describe_lock, describe_syscall
from pyhangtrace.analyze.ends import io_wait, poll_wait
from pyhangtrace.analyze.progress import Progress, gil_wait, progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.evidence import ThreadSample
from pyhangtrace.model.kinds import Confidence, Edge, FrameKind, Kind, Role, WaitKind
from pyhangtrace.model.report import ReportHolder, WaitObject

_MUTEXES = "mutex_"
_RWLOCKS = ("rwlock_read", "rwlock_write")

_READS = frozenset(
    {"read", "readv", "pread64", "preadv", "recvfrom", "recvmsg", "recvmmsg", "splice", "accept"}
)
_WRITES = frozenset({"write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "sendfile"})
_POLLS = frozenset(
    {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept4", "accept"}
)
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
_CHILD = frozenset({"wait4", "waitid", "vfork", "clone", "clone3"})
_SIGNALS = frozenset({"pause", "rt_sigtimedwait", "rt_sigsuspend"})
_FUTEXES = frozenset({"futex", "futex_wait", "futex_waitv"})

# multiprocessing's own semaphore type, as C functions before and since CPython 3.12.
_SEMLOCK = ("_multiprocessing_SemLock_acquire", "_multiprocessing_SemLock_acquire_impl", "semlock_acquire")

# fcntl(2): F_SETLKW and F_OFD_SETLKW, the two that wait.
_FCNTL_WAITS = (7, 38)

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

# Passive: what is waited for is a signal that any thread may give.
_PASSIVE: dict[Meaning, WaitKind] = {
    Meaning.CONDITION: WaitKind.CONDITION,
    Meaning.EVENT: WaitKind.CONDITION,
    Meaning.SEMAPHORE: WaitKind.SEMAPHORE,
    Meaning.BARRIER: WaitKind.BARRIER,
    Meaning.QUEUE_GET: WaitKind.QUEUE,
    Meaning.QUEUE_PUT: WaitKind.QUEUE,
    Meaning.FUTURE: WaitKind.CONDITION,
}


def classify(scene: Scene, key: Key) -> Blocked | None:
    """The wait of one thread; None for one that ended."""
    samples = scene.samples[key]
    sample = gil_wait(samples, scene.times[key]) or samples[-1]
    if sample.state in ("Z", "X", "x"):
        return None
    call = recognise(sample.frames)
    moved = progress(samples, scene.times[key])
    draft = Blocked(
        key=key,
        kind=WaitKind.IO,
        standing=Standing.OPAQUE,
        progress=moved,
        cause=Kind.UNKNOWN,
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
            return _launching(scene, found)
    return _launching(scene, draft)


def _launching(scene: Scene, wait: Blocked) -> Blocked:
    """A launcher that waits for whom it started does its work; one that waits for a lock does not."""
    process = scene.processes.get(wait.key[0])
    is_launcher = process is not None and process.role is Role.LAUNCHER and wait.kind in _LAUNCHER_WAITS
    if wait.service is None and (
        is_launcher or (wait.call is not None and wait.call.meaning is Meaning.LAUNCHER)
    ):
        return replace(wait, service="launcher")
    return wait


# -- state ---------------------------------------------------------------------------------------------------


def _stopped(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if sample.state not in ("T", "t"):
        return None
    process = scene.processes.get(sample.pid)
    tracer = process.tracer_pid if process is not None and process.tracer_pid else None
    evidence = [f"state {sample.state} ({'stopped by a tracer' if tracer else 'stopped by a signal'})"]
    if tracer:
        evidence.append(f"TracerPid {tracer}")
    return replace(
        draft,
        kind=WaitKind.STOPPED,
        standing=Standing.STOPPED,
        cause=Kind.OBSERVER_STUCK if tracer else Kind.PEER_STOPPED,
        holder=ReportHolder(pid=tracer) if tracer else None,
        ends_by_itself=False,
        lasts_s=None,
        evidence=(*evidence, *draft.evidence),
    )


def _running(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    spins = draft.call is not None and draft.call.spins
    if draft.progress is not Progress.RUNNING or spins:
        return None
    share = scene.thread_cpu_s((sample.pid, sample.tid))
    evidence = [f"state {sample.state}, on the CPU"]
    if share is not None and scene.evidence.window_s > 0:
        evidence.append(f"{share:.2f} s CPU within {scene.evidence.window_s:.1f} s")
    return replace(
        draft,
        kind=WaitKind.RUNNING,
        standing=Standing.RUNNING,
        cause=_running_cause(scene, sample),
        evidence=tuple(evidence),
    )


def _running_cause(scene: Scene, sample: ThreadSample) -> Kind:
    if scene.is_compiler(sample.pid):
        return Kind.COMPILE_RUNNING
    frames = {frame.function for frame in sample.frames if frame.kind is not FrameKind.PYTHON}
    yields = scene.syscall(sample) == "sched_yield" or any("sched_yield" in name for name in frames)
    return Kind.CPU_SPIN if yields else Kind.CPU_BUSY


def _gpu(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if draft.service is not None or not waits_for_gpu(sample.frames):
        return None
    samples = scene.samples[draft.key]
    stays = len(samples) > 1 and len({_python_stack(each) for each in samples}) == 1
    spins = draft.progress in (Progress.RUNNING, Progress.MOVING)
    return replace(
        draft,
        kind=WaitKind.GPU,
        standing=Standing.OPAQUE,
        cause=Kind.UNKNOWN,
        basis=Confidence.LIKELY,
        # The driver spins while it waits: burning CPU at one place is no progress.
        progress=(Progress.REARMED if stays else Progress.MOVING) if spins else draft.progress,
        ends_by_itself=False,
    )


def _python_stack(sample: ThreadSample) -> tuple[tuple[str, int | None], ...]:
    return tuple((frame.function, frame.line) for frame in python_frames(sample.frames))


# -- locks ---------------------------------------------------------------------------------------------------


def _gil(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if sample.lock is None or sample.lock.kind != "gil":
        return None
    holder = holders.gil_holder(scene, sample.pid)
    if holder == draft.key:
        holder = None
    return replace(
        draft,
        kind=WaitKind.GIL,
        standing=Standing.FIRM,
        cause=Kind.LOCK_GIL,
        object=_lock_object(sample),
        targets=(holder,) if holder else (),
        holder=_thread_holder(holder),
        # Waiters look again every 5 ms; that does not end the wait.
        ends_by_itself=False,
        lasts_s=None,
    )


def _owned_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    lock = sample.lock
    if lock is None or not (lock.kind.startswith(_MUTEXES) or lock.kind in _RWLOCKS or lock.kind == "join"):
        return None
    kind = WaitKind.MUTEX if lock.kind.startswith(_MUTEXES) else WaitKind.RWLOCK
    if lock.kind == "join":
        kind = WaitKind.JOIN
    owner = holders.lock_owner(scene, sample)
    if owner is None:
        found = replace(
            draft,
            kind=kind,
            standing=Standing.FIRM,
            cause=Kind.LOCK_HELD,
            object=_lock_object(sample),
            candidates=holders.siblings(scene, draft.key),
        )
    elif owner.key is not None:
        found = replace(
            draft,
            kind=kind,
            standing=Standing.FIRM,
            cause=Kind.LOCK_HELD,
            object=_lock_object(sample),
            targets=(owner.key,),
            holder=ReportHolder(pid=owner.pid, tid=owner.tid),
        )
    else:
        cause, pid, why = _owner_gone(scene, sample, owner)
        found = replace(
            draft,
            kind=kind,
            standing=Standing.FIRM,
            cause=cause,
            object=_lock_object(sample),
            holder=ReportHolder(pid=pid, tid=owner.tid, alive=False),
            evidence=(*draft.evidence, why),
        )
    return replace(found, ends_by_itself=lock.timeout)


def _owner_gone(scene: Scene, sample: ThreadSample, owner: holders.Owner) -> tuple[Kind, int, str]:
    gone = f"no thread {owner.tid} in process {sample.pid}"
    parent = holders.forked_without_exec(scene, sample.pid)
    if parent is not None and sample.lock is not None and sample.lock.shared_key is None:
        if (parent.pid, owner.tid) in scene.samples:
            return Kind.LOCK_AFTER_FORK, sample.pid, f"{gone}; it is a thread of the parent {parent.pid}"
        if owner.tid == parent.pid or not _has_other_threads(scene, sample):
            return Kind.LOCK_AFTER_FORK, sample.pid, f"{gone}, which was forked from {parent.pid}"
    return Kind.LOCK_OWNER_GONE, sample.pid, gone


def _has_other_threads(scene: Scene, sample: ThreadSample) -> bool:
    return len(scene.tids.get(sample.pid, ())) > 1


def _thread_holder(key: Key | None) -> ReportHolder | None:
    return ReportHolder(pid=key[0], tid=key[1]) if key is not None else None


def _lock_object(sample: ThreadSample) -> WaitObject:
    lock = sample.lock
    if lock is None:
        return WaitObject()
    address = lock.python_lock_address or lock.address
    inode = lock.shared_key[1] if lock.shared_key else None
    return WaitObject(address=hex(address), inode=inode)


def _python_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    lock = sample.lock
    if lock is None or lock.kind not in ("python_lock", "python_rlock") or draft.call is not None:
        return None
    owner = holders.lock_owner(scene, sample)
    if owner is not None and owner.key is not None and owner.key != draft.key:
        return replace(
            draft,
            kind=WaitKind.PYTHON_LOCK,
            standing=Standing.FIRM,
            cause=Kind.LOCK_HELD,
            basis=Confidence.PROVEN if lock.owner_exact else Confidence.LIKELY,
            object=_lock_object(sample),
            targets=(owner.key,),
            holder=_thread_holder(owner.key),
        )
    parent = holders.forked_without_exec(scene, sample.pid)
    alone = not _has_other_threads(scene, sample)
    if alone and parent is not None and not lock.timeout:
        holder = None
        if owner is not None:
            holder = ReportHolder(pid=sample.pid, tid=owner.tid, alive=False)
        return replace(
            draft,
            kind=WaitKind.PYTHON_LOCK,
            standing=Standing.FIRM,
            cause=Kind.LOCK_AFTER_FORK,
            basis=Confidence.LIKELY,
            object=_lock_object(sample),
            holder=holder,
            evidence=(
                *draft.evidence,
                f"process {sample.pid} was forked from {parent.pid} and has no other thread to release it",
            ),
        )
    return replace(
        draft,
        kind=WaitKind.PYTHON_LOCK,
        standing=Standing.FIRM,
        cause=Kind.LOCK_HELD,
        basis=Confidence.LIKELY,
        object=_lock_object(sample),
        candidates=holders.siblings(scene, draft.key),
    )


# -- frames --------------------------------------------------------------------------------------------------


def _group_call(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    call = draft.call
    if call is None:
        return None
    if call.meaning in (Meaning.COLLECTIVE, Meaning.SHARED_BARRIER):
        if (
            call.meaning is Meaning.SHARED_BARRIER
            and scene.who.rank(sample.pid) is None
            and not _shared(sample)
        ):
            return None
        root = holders.named(sample, ("src", "dst", "root"))
        return replace(
            draft,
            kind=WaitKind.COLLECTIVE,
            standing=Standing.FIRM,
            cause=Kind.COLLECTIVE_MISSING_RANK,
            basis=Confidence.LIKELY,
            object=WaitObject(name=call.op),
            peer=root if isinstance(root, int) else None,
            progress=_spinning(draft),
        )
    if call.meaning in (Meaning.SEND, Meaning.RECV):
        peer = holders.named(sample, ("dst",) if call.meaning is Meaning.SEND else ("src",))
        return replace(
            draft,
            kind=WaitKind.P2P,
            standing=Standing.FIRM,
            cause=Kind.P2P_UNMATCHED,
            basis=Confidence.LIKELY,
            object=WaitObject(name=call.op),
            peer=peer if isinstance(peer, int) else None,
            progress=_spinning(draft),
        )
    if call.meaning in (Meaning.RENDEZVOUS, Meaning.STORE):
        return replace(
            draft,
            kind=WaitKind.RENDEZVOUS,
            standing=Standing.FIRM,
            cause=Kind.RENDEZVOUS_MISSING_RANK,
            basis=Confidence.LIKELY,
            object=WaitObject(name=call.op),
            ends_by_itself=False,
            progress=_polling(draft),
        )
    return None


def _spinning(draft: Blocked) -> Progress:
    # An MPI wait burns its CPU in place: on the CPU, but no nearer to its end.
    spins = draft.progress is Progress.RUNNING and draft.call is not None and draft.call.spins
    return Progress.REARMED if spins else draft.progress


def _polling(draft: Blocked) -> Progress:
    # The store's client sleeps and tries again: it moves, and still waits.
    moving = draft.progress in (Progress.MOVING, Progress.RUNNING)
    return Progress.REARMED if moving and draft.call is not None else draft.progress


def _shared(sample: ThreadSample) -> bool:
    return sample.lock is not None and sample.lock.shared_key is not None


def _lock_file(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if draft.call is None or draft.call.meaning is not Meaning.LOCK_FILE:
        return None
    path = holders.named(sample, ("lock_file_path", "lock_file", "_lock_file", "path"))
    path = path if isinstance(path, str) else None
    file = holders.lock_file_of(scene, sample.pid, path)
    thing = WaitObject(path=file.path if file else path, inode=file.inode if file else None)
    polling = replace(
        draft,
        kind=WaitKind.LOCK_FILE,
        basis=Confidence.LIKELY,
        object=thing,
        cause=Kind.FILE_LOCK_HELD,
        ends_by_itself=False,
        lasts_s=None,
        progress=_polling(draft),
    )
    if file is None or not file.exists:
        return polling
    owner = file.owner_pid if file.owner_alive else None
    held_by = tuple(pid for pid in (file.openers or ((owner,) if owner else ())) if pid != sample.pid)
    if held_by:
        return replace(
            polling,
            standing=Standing.FIRM,
            targets=tuple((pid, 0) for pid in held_by),
            holder=ReportHolder(pid=held_by[0]),
            edge=Edge.ANY,
        )
    record = next((lock for lock in scene.evidence.looks[-1].file_locks if lock.inode == file.inode), None)
    if record is not None and record.pid > 0 and record.pid != sample.pid:
        return replace(
            polling,
            standing=Standing.FIRM,
            targets=((record.pid, 0),),
            holder=ReportHolder(pid=record.pid),
        )
    is_baton = path_has(draft.call.frame.file, "torch/utils/file_baton.py")
    if holders.is_stale(scene, file, maker_keeps_it_open=is_baton):
        age = f", {file.age_s:.0f} s old" if file.age_s is not None else ""
        dead = "; older than the job" if file.older_than_job else ""
        dead = f"; its owner {file.owner_pid} is dead" if file.owner_pid else dead
        return replace(
            polling,
            standing=Standing.FIRM,
            cause=Kind.FILE_LOCK_STALE,
            evidence=(*draft.evidence, f"{file.path} exists{age}, nobody has it open{dead}"),
        )
    return polling


def _loader(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if draft.call is None or draft.call.meaning not in (Meaning.LOADER, Meaning.POOL_RESULT):
        return None
    children = scene.children.get(sample.pid, ())
    workers = tuple(pid for pid in children if scene.processes[pid].role is Role.DATA_WORKER)
    if not workers:
        workers = tuple(
            pid for pid in children if holders.forked_without_exec(scene, pid) or _is_python_child(scene, pid)
        )
    return replace(
        draft,
        kind=WaitKind.QUEUE,
        standing=Standing.FIRM if workers else Standing.OPAQUE,
        cause=Kind.WORKER_STUCK,
        basis=Confidence.LIKELY,
        object=WaitObject(name=draft.call.op),
        targets=tuple((pid, 0) for pid in workers),
        ends_by_itself=False,
        lasts_s=None,
    )


def _is_python_child(scene: Scene, pid: int) -> bool:
    process = scene.processes[pid]
    return process.python is not None and "resource_tracker" not in process.title


def _passive(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if draft.call is None or draft.call.meaning not in _PASSIVE:
        return None
    others = holders.siblings(scene, draft.key)
    shared = holders.same_shared_object(scene, draft.key)
    return replace(
        draft,
        kind=_PASSIVE[draft.call.meaning],
        standing=Standing.IDLE,
        cause=Kind.UNKNOWN if others or shared else Kind.LOCK_HANDOFF_LOST,
        basis=Confidence.POSSIBLE,
        object=_lock_object(sample),
        candidates=others,
        targets=others,
        edge=Edge.ANY,
    )


def _join(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if draft.call is None or draft.call.meaning is not Meaning.JOIN_THREAD:
        return None
    tid = holders.named(sample, ("_native_id",))
    known = (sample.pid, tid) if isinstance(tid, int) and (sample.pid, tid) in scene.samples else None
    others = holders.siblings(scene, draft.key)
    teardown = draft.call.op == "_shutdown"
    return replace(
        draft,
        kind=WaitKind.JOIN,
        standing=Standing.FIRM,
        cause=Kind.LOCK_TEARDOWN if teardown else Kind.LOCK_HELD,
        basis=Confidence.LIKELY,
        targets=(known,) if known else others,
        holder=_thread_holder(known),
        candidates=() if known else others,
        # A join of one of several threads: which one is not recorded, so the slowest to blame is not known.
        edge=Edge.ALL if known or len(others) == 1 else Edge.ANY,
    )


def _import_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if draft.call is None or draft.call.meaning is not Meaning.IMPORT_LOCK:
        return None
    ident = holders.lock_owner(scene, sample)
    key = ident.key if ident else None
    return replace(
        draft,
        kind=WaitKind.IMPORT_LOCK,
        standing=Standing.FIRM,
        cause=Kind.LOCK_IMPORT,
        basis=Confidence.LIKELY,
        object=_lock_object(sample),
        targets=(key,) if key else (),
        holder=_thread_holder(key),
        candidates=() if key else holders.siblings(scene, draft.key),
    )


def _worker_loop(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    call = draft.call
    if call is None or call.meaning not in (Meaning.WORKER_LOOP, Meaning.EVENT_LOOP):
        return None
    return replace(
        draft,
        kind=WaitKind.QUEUE if call.meaning is Meaning.WORKER_LOOP else WaitKind.POLL,
        standing=Standing.IDLE,
        cause=Kind.IDLE,
        basis=Confidence.LIKELY,
        object=WaitObject(name=call.op),
    )


# -- system calls --------------------------------------------------------------------------------------------


def _child(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    name = scene.syscall(sample)
    by_frame = draft.call is not None and draft.call.meaning in (Meaning.CHILD, Meaning.JOIN_PROCESS)
    if name not in _CHILD and not by_frame:
        return None
    children = scene.children.get(sample.pid, ())
    asked: int | None = None
    if name == "wait4" and sample.args:
        asked = _signed(sample.args[0])
    elif name == "waitid" and len(sample.args) > 1 and sample.args[0] == 1:  # P_PID
        asked = sample.args[1]
    if asked is not None and asked > 0:
        return replace(
            draft,
            kind=WaitKind.CHILD,
            standing=Standing.FIRM,
            cause=Kind.CHILD_STUCK,
            targets=((asked, 0),),
            holder=ReportHolder(pid=asked, alive=not scene.exited(asked)),
        )
    if name in ("vfork", "clone", "clone3") and sample.state != "D":
        return None
    if name not in _CHILD and name not in _SLEEPS:
        # Reads the child's output or watches its handle: the descriptor tells which child.
        return None
    return replace(
        draft,
        kind=WaitKind.CHILD,
        standing=Standing.FIRM if children else Standing.OPAQUE,
        cause=Kind.CHILD_STUCK,
        targets=tuple((pid, 0) for pid in children),
        edge=Edge.ANY,
        progress=_polling(draft) if by_frame else draft.progress,
    )


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _file_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    name = scene.syscall(sample)
    waits = name == "flock" or (name == "fcntl" and len(sample.args) > 1 and sample.args[1] in _FCNTL_WAITS)
    if not waits:
        return None
    fd = sample.args[0] if sample.args else None
    facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
    lock = holders.file_lock_of(scene, sample, fd)
    path = facts.target if facts else None
    thing = WaitObject(
        path=path or (lock.path if lock else None),
        fd=fd,
        inode=facts.inode if facts else lock.inode if lock else None,
    )
    waiting = replace(
        draft, kind=WaitKind.FILE_LOCK, standing=Standing.FIRM, cause=Kind.FILE_LOCK_HELD, object=thing
    )
    if lock is None:
        return waiting
    held_by = holders.file_lock_holders(lock, waiter=sample.pid)
    return replace(
        waiting,
        targets=tuple((pid, 0) for pid in held_by),
        holder=ReportHolder(pid=held_by[0], alive=not scene.exited(held_by[0]))
        if len(held_by) == 1
        else None,
        candidates=tuple((pid, 0) for pid in held_by) if len(held_by) > 1 else (),
        edge=Edge.ALL if len(held_by) < 2 else Edge.ANY,
        evidence=(
            *draft.evidence,
            f"kernel lock table: {lock.kind} on inode {lock.inode} held by {'/'.join(map(str, held_by)) or '?'}",
        ),
    )


def _io(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    name = scene.syscall(sample)
    fd = sample.io_fds[0] if len(sample.io_fds) == 1 else sample.args[0] if sample.args else None
    if name in _READS or name in _WRITES or name == "connect":
        facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
        return io_wait(scene, sample, draft, fd, facts, writing=name in _WRITES)
    return None


def _sleep(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    name = scene.syscall(sample)
    # Before Python 3.11 time.sleep() is a select() of nothing.
    empty = (
        name in ("select", "pselect6", "poll", "ppoll") and not sample.io_fds and sample.timeout_s is not None
    )
    if name not in _SLEEPS and not empty:
        return None
    if empty and name in ("select", "pselect6", "poll", "ppoll") and _nfds(sample, name) != 0:
        return None
    return replace(
        draft,
        kind=WaitKind.TIMER,
        standing=Standing.TIMER,
        cause=Kind.TIMER,
        object=WaitObject(remaining_s=sample.remaining_s),
        ends_by_itself=True,
    )


def _nfds(sample: ThreadSample, name: str) -> int:
    index = 0 if name in ("select", "pselect6") else 1
    return sample.args[index] if len(sample.args) > index else 0


def _polls(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if scene.syscall(sample) not in _POLLS:
        return None
    return poll_wait(scene, sample, draft)


def _signals(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if scene.syscall(sample) not in _SIGNALS:
        return None
    return replace(
        draft,
        kind=WaitKind.POLL,
        standing=Standing.IDLE,
        cause=Kind.IDLE,
        object=WaitObject(name="signal"),
    )


def _futex(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if sample.lock is None and scene.syscall(sample) not in _FUTEXES:
        return None
    kind = {
        "condition": WaitKind.CONDITION,
        "semaphore": WaitKind.SEMAPHORE,
        "barrier": WaitKind.BARRIER,
        "future": WaitKind.CONDITION,
    }.get(sample.lock.kind if sample.lock else "", WaitKind.CONDITION)
    others = holders.siblings(scene, draft.key)
    shared = holders.brothers_elsewhere(scene, draft.key)
    if draft.call is None and shared and has_function(sample.frames, *_SEMLOCK):
        # A lock of multiprocessing records no owner. With one brother elsewhere it is him; of several, any.
        return replace(
            draft,
            kind=WaitKind.SEMAPHORE,
            standing=Standing.FIRM,
            cause=Kind.LOCK_HELD,
            basis=Confidence.POSSIBLE,
            object=_lock_object(sample),
            targets=tuple((pid, 0) for pid in shared),
            candidates=tuple((pid, 0) for pid in shared),
            edge=Edge.ANY,
        )
    return replace(
        draft,
        kind=kind,
        standing=Standing.IDLE,
        cause=Kind.UNKNOWN,
        basis=Confidence.POSSIBLE,
        object=_lock_object(sample),
        candidates=others or tuple((pid, 0) for pid in shared),
        targets=others,
        edge=Edge.ANY,
    )


def _kernel(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    if sample.state != "D" and sample.syscall != -1:
        return None
    functions = [frame.function for frame in sample.frames if frame.kind is FrameKind.KERNEL]
    faults = any("fault" in name for name in functions) or (sample.syscall == -1 and not functions)
    return replace(
        draft,
        kind=WaitKind.PAGE_FAULT if faults else WaitKind.IO,
        standing=Standing.FIRM,
        cause=_kernel_cause(sample, functions),
        object=WaitObject(name=sample.wchan),
        evidence=(
            *draft.evidence,
            f"state D in {sample.wchan or (functions[0] if functions else 'the kernel')}",
        ),
    )


def _kernel_cause(sample: ThreadSample, functions: list[str]) -> Kind:
    names = [*functions, sample.wchan or ""]
    return (
        Kind.DRIVER_BLOCKED if any("nvidia" in name or "uvm_" in name for name in names) else Kind.IO_STALLED
    )


_Rule = Callable[[Scene, ThreadSample, Blocked], "Blocked | None"]

# In order: the first rule that knows the wait decides.
_RULES: tuple[_Rule, ...] = (
    _stopped,
    _gil,
    _gpu,
    _running,
    _owned_lock,
    _lock_file,
    _group_call,
    _loader,
    _child,
    _worker_loop,
    _file_lock,
    _io,
    _join,
    _import_lock,
    _passive,
    _python_lock,
    _sleep,
    _polls,
    _signals,
    _futex,
    _kernel,
)
