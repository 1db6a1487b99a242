"""Loops of a program's own that nap and ask again: for a file, a lock, or whether somebody has come to an end.

What they ask for is known by the words of their source; of what or of whom, only as far as there is one that it can be.
"""

from __future__ import annotations

from dataclasses import replace

from pyhangtrace.analyze import holders, objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.call_waits import polling
from pyhangtrace.analyze.calls import MPI_WAIT, Call, Meaning, in_libc, path_has, python_frames
from pyhangtrace.analyze.progress import in_place
from pyhangtrace.analyze.python_objects import FUTURE
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, PolledThing, WaitKind
from pyhangtrace.model.report import APPEARS, WaitObject
from pyhangtrace.model.threads import TaskSample, ThreadSample

_OWN_LOOP = "it does so inside of its own event loop, of which nothing else goes on meanwhile"


def asks(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """The wait of such a loop; None for another nap, or where nobody is there of whom it could ask."""
    if sample.polls_for is None:
        return None
    if sample.polled is PolledThing.LOCK:
        return _lock(scene, sample, draft)
    if sample.polled is PolledThing.FILE_LOCK:
        return _file_lock(scene, sample, draft)
    if sample.polled is PolledThing.MPI_REQUEST:
        return _request(scene, sample, draft)
    if sample.polled in (PolledThing.CHILD, PolledThing.THREAD, PolledThing.FUTURE):
        return _others(scene, sample, draft, sample.polled)
    return changed(
        draft,
        kind=WaitKind.LOCK_FILE,
        standing=Standing.OPAQUE,
        cause=Kind.UNKNOWN,
        object=WaitObject(name=APPEARS) if sample.polls_for.startswith("while not ") else draft.object,
        basis=Confidence.POSSIBLE,
        progress=polling(draft, naps=True),
        ends_by_itself=False,
        lasts_s=None,
        asks=True,
        evidence=(
            *draft.evidence,
            f"its source naps inside of `{sample.polls_for}`: it looks for a file again and again; {objects.NO_OWNER}",
        ),
    )


def task_asks(scene: Scene, wait: Blocked, task: TaskSample) -> Blocked:
    """The wait of an event loop that nothing but this task's own naps wakes; the task asks in between."""
    sample = scene.thread(wait.key)
    found = None
    if sample is not None and task.polled is not PolledThing.FUTURE:
        asking = replace(sample, polls_for=task.polls_for, polled=task.polled, frames=task.frames)
        found = asks(scene, asking, wait)
    if found is not None:
        return found
    said = f"task {task.name} naps in a loop that asks `{task.polls_for}` again and again; {objects.NO_OWNER}"
    return changed(
        wait,
        kind=WaitKind.CONDITION,
        standing=Standing.OPAQUE,
        cause=Kind.UNKNOWN,
        basis=Confidence.POSSIBLE,
        object=WaitObject(name=f"task {task.name}", remaining_s=task.wakes_in_s),
        ends_by_itself=True,
        asks=True,
        evidence=(*wait.evidence, said),
    )


def _words(sample: ThreadSample, what: str) -> str:
    told = "source" if any(python_frames(sample.frames)) else "code"
    return f"its {told} naps in a loop that asks `{sample.polls_for}`: {what} again and again"


def _lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """A lock of the process itself, or one between processes; which one does not show."""
    return changed(
        draft,
        kind=WaitKind.PYTHON_LOCK if any(python_frames(sample.frames)) else WaitKind.MUTEX,
        standing=Standing.OPAQUE,
        cause=Kind.LOCK_HELD,
        basis=Confidence.POSSIBLE,
        object=WaitObject(remaining_s=sample.remaining_s),
        candidates=holders.siblings(scene, draft.key),
        ends_by_itself=True,
        asks=True,
        evidence=(*draft.evidence, f"{_words(sample, 'it tries a lock')}; {objects.NO_OWNER}"),
    )


def _file_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """A lock of the kernel on a file that both it and the holder have open."""
    found = holders.locks_in_the_way(scene, sample.pid)
    pids = sorted({lock.pid for lock in found})
    one = found[0] if len(found) == 1 else None
    return changed(
        holders.held_by(scene, draft, pids),
        kind=WaitKind.FILE_LOCK,
        standing=Standing.FIRM if pids else Standing.OPAQUE,
        cause=Kind.FILE_LOCK_HELD,
        basis=Confidence.POSSIBLE,
        object=WaitObject(path=one.path, inode=one.inode) if one is not None else WaitObject(),
        ends_by_itself=True,
        asks=True,
        evidence=(
            *draft.evidence,
            _words(sample, "it tries to lock a file"),
            *(f"kernel lock table: {lock.kind} on inode {lock.inode} held by {lock.pid}" for lock in found),
        ),
    )


def _request(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """The end of what was begun in MPI before, as MPI_Wait: by the messages that are expected it is a collective, or it
    tells of whom one is.
    """
    facts = [each for each in scene.evidence.looks[-1].mpi if each.pid == sample.pid]
    frame = next((frame for frame in sample.frames if not in_libc(frame)), None)
    known = bool(facts) and all(each.receives for each in facts)
    if frame is None or not known or scene.mpi_moves(sample.pid) is not False:
        return None
    if not any(group.awaits for each in facts for group in each.communicators):
        return None
    return changed(
        draft,
        kind=WaitKind.P2P,
        standing=Standing.FIRM,
        cause=Kind.P2P_UNMATCHED,
        basis=Confidence.POSSIBLE,
        object=WaitObject(name=MPI_WAIT),
        call=Call(Meaning.RECV, MPI_WAIT, "mpi", frame, frame, spins=True),
        progress=polling(draft, naps=True),
        ends_by_itself=False,
        lasts_s=None,
        asks=True,
        evidence=(*draft.evidence, _words(sample, "whether what it began has ended")),
    )


def _others(scene: Scene, sample: ThreadSample, draft: Blocked, thing: PolledThing) -> Blocked | None:
    """Whether a child, a thread or a piece of work has come to its end: any of those that are there."""
    children: tuple[Key, ...] = tuple((pid, 0) for pid in holders.living_children(scene, sample.pid))
    targets = children if thing is PolledThing.CHILD else (*holders.siblings(scene, draft.key), *children)
    if not targets and not (thing is PolledThing.FUTURE and _in_event_loop(sample)):
        return None
    kind, cause, what = {
        PolledThing.CHILD: (WaitKind.CHILD, Kind.CHILD_STUCK, "whether a child has ended"),
        PolledThing.THREAD: (WaitKind.JOIN, Kind.LOCK_HELD, "whether a thread or a process has ended"),
    }.get(thing, (WaitKind.CONDITION, Kind.UNKNOWN, "whether a piece of work is done"))
    if not targets:
        # It may ask somebody elsewhere; a task of its own loop never comes to be done.
        return changed(
            draft,
            kind=kind,
            standing=Standing.OPAQUE,
            cause=cause,
            basis=Confidence.POSSIBLE,
            object=WaitObject(name=FUTURE, remaining_s=sample.remaining_s),
            progress=in_place(draft.progress),
            ends_by_itself=True,
            asks=True,
            evidence=(*draft.evidence, f"{_words(sample, what)}; {_OWN_LOOP}"),
        )
    return changed(
        draft,
        kind=kind,
        standing=Standing.FIRM,
        cause=cause,
        basis=Confidence.POSSIBLE,
        object=WaitObject(remaining_s=sample.remaining_s),
        targets=targets,
        candidates=targets,
        edge=Edge.ANY,
        ends_by_itself=True,
        asks=True,
        evidence=(*draft.evidence, f"{_words(sample, what)}; {objects.NO_OWNER}"),
    )


def _in_event_loop(sample: ThreadSample) -> bool:
    """Whether a thread stands in a task, or in a callback, of an event loop of asyncio."""
    return any(
        path_has(frame.file, "asyncio/base_events.py") and frame.function.rpartition(".")[2] == "_run_once"
        for frame in python_frames(sample.frames)
    )
