"""Event loops whose tasks all wait for the processes at the other ends of what the loop watches.

Who waits for a request waits for work. Who has written more than the other end takes, who reads the output of a child
of its own, or waits for its end, waits for that process, as a program does that has no loop. That is said only where
nothing else could wake any of the tasks: no timer, signal, thread, or descriptor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyhangtrace.analyze import holders, objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import path_has
from pyhangtrace.analyze.closed_loops import BYSTANDERS
from pyhangtrace.analyze.ends import watched_descriptors
from pyhangtrace.analyze.progress import GOES_ON, STILL
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, FdKind, Kind, WaitKind
from pyhangtrace.model.open_files import FdFacts
from pyhangtrace.model.threads import TaskSample

# The last name of the innermost coroutine of asyncio that a task is suspended in, with its file.
_WRITES = ("_drain_helper", "asyncio/streams.py")
_READS = ("_wait_for_data", "asyncio/streams.py")
_ENDS = ("_wait", "asyncio/base_subprocess.py")

_ENDS_OF_PIPES = frozenset({FdKind.PIPE, FdKind.SOCKET})


def settle_peers(
    scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, tasks: Mapping[Key, TaskSample]
) -> Blocked | None:
    """The wait of a loop for the processes that its tasks wait for; None where something else may wake one.

    `tasks` are all of the loop, each of which has waited for the same all the time.
    """
    sample = scene.thread(wait.key)
    pid = wait.key[0]
    if sample is None or wait.ends_by_itself or wait.progress in GOES_ON:
        return None
    if holders.handled_signals(scene, pid) != frozenset():
        return None
    watched = [facts for facts in watched_descriptors(scene, sample) if pid not in objects.ends(facts)]
    first = [
        _awaited(scene, waits, wait, watched, task) for task in tasks.values() if not _follows(task, tasks)
    ]
    found = [one for one in first if one is not None]
    if not found or len(found) < len(first):
        return None
    targets = {target for one in found for target in one.targets}
    pids = {target[0] for target in targets}
    if any(not pids.issuperset(objects.ends(facts)) or not objects.ends(facts) for facts in watched):
        return None
    if not all(_stands_by(scene, waits, key, pids) for key in scene.threads_of(pid) if key != wait.key):
        return None
    if len(found) == 1 or len(targets) == 1:
        return found[0]
    every = tuple(sorted(targets))
    return changed(found[0], targets=every, candidates=every, besides=every, holder=None)


def _follows(task: TaskSample, tasks: Mapping[Key, TaskSample]) -> bool:
    """Whether a task goes on when others of the loop have ended, and for nothing else."""
    needed = [(task.pid, -address) for address in task.needs]
    return task.needs_known and bool(needed) and all(node in tasks for node in needed)


def _awaited(
    scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, watched: Sequence[FdFacts], task: TaskSample
) -> Blocked | None:
    """The loop's wait as that of one of its tasks; None if it is for something else, or that is not known."""
    place = (
        (task.frames[0].function, task.frames[0].file) if task.frames and task.wakes_in_s is None else None
    )
    if place is None:
        return None
    if _is_in(place, _WRITES):
        out = _watched_out(scene, wait)
        full = [facts for facts in watched if facts.kind in _ENDS_OF_PIPES and facts.fd in out]
        return _at_end(scene, wait, full[0], task, holders.readers(full[0])) if len(full) == 1 else None
    children = holders.living_children(scene, wait.key[0])
    if _is_in(place, _READS):
        # A socket is for requests and answers both ways, the pipe from a child for its output.
        told = [
            facts for facts in watched if facts.kind is not FdKind.PIDFD and not objects.is_write_end(facts)
        ]
        reads = [facts for facts in told if facts.kind is FdKind.PIPE]
        if len(reads) < len(told):
            return None
        ends = holders.writers(reads[0]) if len(reads) == 1 else ()
        return _at_end(scene, wait, reads[0], task, ends) if ends and set(ends) <= set(children) else None
    if not _is_in(place, _ENDS):
        return None
    asked = {pid for facts in watched if (pid := objects.watched_process(facts)) is not None}
    asked |= {
        target[0]
        for key in scene.threads_of(wait.key[0])
        if key in waits and _watches_child(waits[key])
        for target in waits[key].targets
    }
    if len(asked) != 1 or not asked <= set(children):
        return None
    child = asked.pop()
    return changed(_for_process(scene, wait, (child,), task), kind=WaitKind.CHILD, cause=Kind.CHILD_STUCK)


def _is_in(place: tuple[str, str | None], what: tuple[str, str]) -> bool:
    # Before Python 3.11 a function has no qualified name.
    return place[0].rpartition(".")[2] == what[0] and path_has(place[1], what[1])


def _watched_out(scene: Scene, wait: Blocked) -> Collection[int]:
    """Descriptors that the loop watches for room to write: those for which it has data that the other end lacks."""
    sample = scene.thread(wait.key)
    numbers = (*sample.io_fds, *sample.args[:1]) if sample is not None else ()
    sets = [facts for number in numbers if (facts := scene.fds.get((wait.key[0], number))) is not None]
    return {number for facts in sets for number in facts.watches_out}


def _at_end(
    scene: Scene, wait: Blocked, facts: FdFacts, task: TaskSample, ends: Sequence[int]
) -> Blocked | None:
    others = tuple(end for end in ends if end != wait.key[0])
    if not others:
        return None
    writes = _is_in((task.frames[0].function, task.frames[0].file), _WRITES)
    who = f"pid {', '.join(map(str, others))} has the other end"
    line = f"{facts.target} {'takes no more' if writes else 'is empty'}: {who}"
    found = _for_process(scene, wait, others, task)
    return changed(
        found,
        kind=WaitKind.PIPE if facts.kind is FdKind.PIPE else WaitKind.SOCKET,
        cause=Kind.IPC_PIPE_FULL if writes else Kind.IPC_PEER_SILENT,
        object=objects.thing(facts, facts.fd),
        evidence=(*found.evidence, line),
    )


def _for_process(scene: Scene, wait: Blocked, pids: Sequence[int], task: TaskSample) -> Blocked:
    keys = tuple((pid, 0) for pid in pids)
    return changed(
        wait,
        standing=Standing.FIRM,
        # By the coroutine that the task is in.
        basis=Confidence.LIKELY,
        targets=keys,
        candidates=keys if len(keys) > 1 else (),
        besides=keys,
        holder=holders.process_holder(scene, pids[0]) if len(pids) == 1 else None,
        edge=Edge.ANY,
        evidence=(
            *wait.evidence,
            f"task {task.name} awaits {task.awaits}, and nothing else can wake the loop",
        ),
    )


def _watches_child(wait: Blocked) -> bool:
    """A thread of asyncio's that waits for one child (before Python 3.12, and where there is no pidfd)."""
    return wait.kind is WaitKind.CHILD and wait.standing is Standing.FIRM and len(wait.targets) == 1


def _stands_by(scene: Scene, waits: Mapping[Key, Blocked], key: Key, pids: Collection[int]) -> bool:
    """Whether a thread beside the loop does nothing but wait for work, or for the end of one of these children."""
    wait = waits.get(key)
    if wait is None or wait.progress not in STILL:
        return False
    return scene.services[key] in BYSTANDERS or (_watches_child(wait) and wait.targets[0][0] in pids)
