"""Waits that frames of libraries name: collectives, rendezvous, lock files, data loaders, worker loops."""

from __future__ import annotations

from pyhangtrace.analyze import group_waits, holders, python_objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Meaning, has_function, path_has, recognise
from pyhangtrace.analyze.child_waits import CHILD_WAITS
from pyhangtrace.analyze.ends import told_by_members
from pyhangtrace.analyze.progress import GOES_ON, Progress, in_place
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.analyze.sleeps import is_sleep
from pyhangtrace.model.kinds import Confidence, Edge, Kind, Role, WaitKind
from pyhangtrace.model.open_files import FileLock, LockFile
from pyhangtrace.model.report import RESULTS, ReportHolder, WaitObject
from pyhangtrace.model.threads import ThreadSample

# Calls that several processes make together.
OF_THE_GROUP = frozenset(
    {
        Meaning.COLLECTIVE,
        Meaning.SHARED_BARRIER,
        Meaning.SEND,
        Meaning.RECV,
        Meaning.RENDEZVOUS,
        Meaning.STORE,
    }
)


def group_call(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Collectives, point-to-point calls, rendezvous. Targets are filled in by `collectives`."""
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
        return changed(
            draft,
            kind=WaitKind.COLLECTIVE,
            standing=Standing.FIRM,
            cause=Kind.COLLECTIVE_MISSING_RANK,
            basis=Confidence.LIKELY,
            object=WaitObject(name=call.op),
            peer=root if isinstance(root, int) else None,
            progress=_spinning(scene, draft),
        )
    if call.meaning in (Meaning.SEND, Meaning.RECV):
        peer = holders.named(sample, ("dst",) if call.meaning is Meaning.SEND else ("src",))
        return changed(
            draft,
            kind=WaitKind.P2P,
            standing=Standing.FIRM,
            cause=Kind.P2P_UNMATCHED,
            basis=Confidence.LIKELY,
            object=WaitObject(name=call.op),
            peer=peer if isinstance(peer, int) else None,
            progress=_spinning(scene, draft),
        )
    if call.meaning in (Meaning.RENDEZVOUS, Meaning.STORE):
        return changed(
            group_waits.rendezvous(scene, sample, draft),
            kind=WaitKind.RENDEZVOUS,
            standing=Standing.FIRM,
            cause=Kind.RENDEZVOUS_MISSING_RANK,
            basis=Confidence.LIKELY,
            ends_by_itself=False,
            progress=polling(draft),
        )
    return None


def _spinning(scene: Scene, draft: Blocked) -> Progress:
    # An MPI wait burns its CPU in place, or naps in between: it runs, but is no nearer to its end while no message
    # comes or goes. Where that is not seen, `collectives` takes care that nothing is concluded from it alone.
    if draft.call is None or not draft.call.spins:
        return draft.progress
    gets_on = draft.progress in GOES_ON and scene.mpi_moves(draft.key[0])
    return Progress.MOVING if gets_on else in_place(draft.progress)


def polling(draft: Blocked, *, naps: bool = False) -> Progress:
    """The progress of a wait that looks again and again, in a call that is known for it or between `naps`."""
    # The store's client sleeps and tries again: it moves, and still waits.
    return in_place(draft.progress) if naps or draft.call is not None else draft.progress


def _shared(sample: ThreadSample) -> bool:
    return sample.lock is not None and sample.lock.shared_key is not None


def lock_file(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A file that is a lock by existing: who has it open, or that nobody alive does."""
    if draft.call is None or draft.call.meaning is not Meaning.LOCK_FILE:
        return None
    path = holders.named(sample, ("lock_file_path", "lock_filename", "_lock_file", "path"))
    path = path if isinstance(path, str) else None
    file = holders.lock_file_of(scene, sample.pid, path)
    thing = WaitObject(path=file.path if file else path, inode=file.inode if file else None)
    waiting = changed(
        draft,
        kind=WaitKind.LOCK_FILE,
        basis=Confidence.LIKELY,
        object=thing,
        cause=Kind.FILE_LOCK_HELD,
        ends_by_itself=False,
        lasts_s=None,
        progress=polling(draft),
    )
    if file is None or not file.exists:
        return waiting
    draft = changed(draft, evidence=(*draft.evidence, _lock_file_words(file)))
    waiting = changed(waiting, evidence=draft.evidence)
    record = _recorded(scene, sample.pid, file)
    if record is not None:
        return changed(
            waiting,
            standing=Standing.FIRM,
            targets=((record.pid, 0),),
            holder=ReportHolder(pid=record.pid),
            evidence=(
                *draft.evidence,
                f"kernel lock table: {record.kind} on {file.path} held by {record.pid}",
            ),
        )
    owner = file.owner_pid if file.owner_alive else None
    held_by = tuple(pid for pid in (file.openers or ((owner,) if owner else ())) if pid != sample.pid)
    if held_by:
        return changed(
            waiting,
            standing=Standing.FIRM,
            targets=tuple((pid, 0) for pid in held_by),
            holder=ReportHolder(pid=held_by[0]),
            edge=Edge.ANY,
        )
    is_baton = draft.call is not None and path_has(draft.call.frame.file, "torch/utils/file_baton.py")
    if holders.is_stale(scene, file, maker_keeps_it_open=is_baton):
        age = f", {file.age_s:.0f} s old" if file.age_s is not None else ""
        dead = "; older than the job" if file.older_than_job else ""
        dead = f"; its owner {file.owner_pid} is dead" if file.owner_pid else dead
        return changed(
            waiting,
            standing=Standing.FIRM,
            cause=Kind.FILE_LOCK_STALE,
            evidence=(*draft.evidence, f"{file.path} exists{age}, nobody has it open{dead}"),
        )
    return waiting


def _lock_file_words(file: LockFile) -> str:
    words = [f"{file.path} exists"]
    if file.fs_type is not None:
        words.append(f"on a file system of type {file.fs_type}")
    if file.age_s is not None:
        words.append(f"{file.age_s:.0f} s old")
    if file.owner_pid is not None:
        state = {True: "alive", False: "dead", None: "not looked for"}[file.owner_alive]
        words.append(f"says that pid {file.owner_pid} made it, which is {state}")
    elif not file.openers:
        words.append(
            "nobody has it open" if file.openers_complete else "nobody who could be searched has it open"
        )
    return ", ".join(words)


def _recorded(scene: Scene, pid: int, file: LockFile) -> FileLock | None:
    """The kernel's record of a lock on the file that another process holds."""
    for lock in scene.evidence.looks[-1].file_locks:
        if lock.inode == file.inode and lock.pid > 0 and lock.pid != pid:
            return lock
    return None


# Of Pool, and of ProcessPoolExecutor.
_ENDS = ("join", "shutdown", "_python_exit")


def pool_end(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """The end of a pool: waits for a thread of it, which waits until all work is done."""
    return loader(scene, sample, draft) if draft.call is not None and draft.call.op in _ENDS else None


def loader(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A data loader or pool that waits for its workers."""
    if draft.call is None or draft.call.meaning not in (Meaning.LOADER, Meaning.POOL_RESULT, Meaning.FUTURE):
        return None
    ending = draft.call.meaning is Meaning.POOL_RESULT and draft.call.op in _ENDS
    if ending and scene.syscall(sample) in CHILD_WAITS:
        return None  # its work is done, and the call says for which worker it waits
    children = scene.children.get(sample.pid, ())
    if draft.call.meaning is Meaning.FUTURE or (ending and draft.call.op != "join"):
        children = tuple(pid for pid in children if _runs_pool_tasks(scene, pid))
        if not children:
            return None
    workers = tuple(pid for pid in children if scene.processes[pid].role is Role.DATA_WORKER)
    if not workers:
        workers = tuple(
            pid for pid in children if holders.forked_without_exec(scene, pid) or _is_python_child(scene, pid)
        )
    if ending:
        at_it = tuple(pid for pid in workers if not _waits_for_work(scene, pid))
    else:
        at_it = python_objects.with_the_task(scene, sample, draft.call, workers)
    return changed(
        draft,
        kind=WaitKind.QUEUE,
        standing=Standing.FIRM if workers else Standing.OPAQUE,
        cause=Kind.WORKER_STUCK,
        basis=Confidence.LIKELY,
        object=WaitObject(name=draft.call.op),
        targets=tuple((pid, 0) for pid in at_it or workers),
        holder=ReportHolder(pid=at_it[0]) if len(at_it) == 1 else None,
        ends_by_itself=False,
        lasts_s=None,
    )


def task_result(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """The result of a task of Ray, or of a remote call of torch. Which worker has a task of Ray, or whether one has it,
    only the cluster knows.
    """
    at_it = tuple(
        key
        for pid in scene.evidence.job.members
        if pid != sample.pid and _works_on_a_task(scene, pid) and (key := (pid, pid)) in scene.samples
    )
    return changed(
        draft,
        kind=WaitKind.POLL,
        standing=Standing.OPAQUE,
        cause=Kind.UNKNOWN,
        basis=Confidence.POSSIBLE,
        object=WaitObject(name=RESULTS),
        candidates=at_it,
        does="give the results of the tasks",
        ends_by_itself=False,
        lasts_s=None,
    )


def _works_on_a_task(scene: Scene, pid: int) -> bool:
    """A worker of Ray has the loop that takes tasks outermost, and within it the task, if it is at one."""
    main = scene.thread((pid, pid))
    if main is None or not has_function(main.frames, "main_loop"):
        return False
    call = recognise(main.frames)
    return call is None or call.meaning is not Meaning.WORKER_LOOP


def _runs_pool_tasks(scene: Scene, pid: int) -> bool:
    main = scene.thread((pid, pid))
    return main is not None and has_function(main.frames, "_process_worker")


def _waits_for_work(scene: Scene, pid: int) -> bool:
    main = scene.thread((pid, pid))
    call = recognise(main.frames) if main is not None else None
    return call is not None and call.meaning is Meaning.WORKER_LOOP


def _is_python_child(scene: Scene, pid: int) -> bool:
    process = scene.processes[pid]
    return process.python is not None and "resource_tracker" not in process.title


def worker_loop(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A worker or an event loop that waits for the next piece of work."""
    call = draft.call
    if call is None or call.meaning not in (Meaning.WORKER_LOOP, Meaning.EVENT_LOOP, Meaning.SERVING):
        return None
    if call.meaning is Meaning.WORKER_LOOP and is_sleep(scene, sample):
        return None  # no queue is waited for like this: its task sleeps
    idle = changed(
        draft,
        kind=WaitKind.QUEUE if call.meaning is Meaning.WORKER_LOOP else WaitKind.POLL,
        standing=Standing.IDLE,
        cause=Kind.IDLE,
        basis=Confidence.LIKELY,
        object=WaitObject(name=call.op),
    )
    return idle if call.meaning is Meaning.WORKER_LOOP else told_by_members(scene, sample, idle)
