"""At whom else to look: processes outside the job that waits lead to, and those of them that belong to it after all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.components import components
from pyhangtrace.analyze.fronts import settle_fronts
from pyhangtrace.analyze.scene import Key, Scene, build_scene
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.waits import classify
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import WaitKind

_OF_SCRIPTS = frozenset({WaitKind.FILE_LOCK, WaitKind.CHILD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`pids` are processes that waits lead to, `owners` threads that shared locks record, of which nothing was seen.
    `parents` wait for any child of theirs, whichever these are. `partners` are outsiders whom the job waits for and who
    wait for it: they are part of it, whoever of them was asked for.
    """

    pids: tuple[int, ...] = ()
    owners: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    partners: tuple[int, ...] = ()


def wanted(evidence: Evidence) -> Wanted:
    """Whom the waits of the last look lead to that are not in the evidence yet."""
    scene = build_scene(evidence)
    known = {process.pid for process in evidence.processes}
    pids: set[int] = set()
    owners: set[int] = set()
    parents: set[int] = set()
    waits = {key: wait for key in scene.thread_keys() if (wait := classify(scene, key)) is not None}
    for key, wait in waits.items():
        ends = _ends(wait)
        if not _is_outsider(scene, key[0]) or wait.holder or (wait.standing is Standing.FIRM and ends):
            pids.update(ends)
        sample = scene.thread(key)
        if sample is not None and sample.lock is not None and sample.lock.unseen_owner is not None:
            owners.add(sample.lock.unseen_owner)
        if wait.kind is WaitKind.CHILD and wait.holder is None:
            parents.add(key[0])
    pids.update(_queued_behind(scene))
    return Wanted(
        pids=tuple(sorted(pid for pid in pids - known if pid > 0)),
        owners=tuple(sorted(owners)),
        parents=tuple(sorted(parents)),
        partners=tuple(sorted({*_partners(scene, waits), *_of_one_command(scene, waits)})),
    )


def _is_outsider(scene: Scene, pid: int) -> bool:
    return pid in scene.processes and not scene.is_member(pid)


def _ends(wait: Blocked) -> set[int]:
    found = {pid for pid, _ in (*wait.targets, *wait.candidates)}
    return found | {wait.holder.pid} if wait.holder is not None else found


def _queued_behind(scene: Scene) -> set[int]:
    """Who queues for a lock of a file that a member has, if only by the same open file as who took it."""
    return {
        pid
        for lock in scene.evidence.looks[-1].file_locks
        if any(map(scene.is_member, (lock.pid, *(holder.pid for holder in lock.holders))))
        for pid in lock.waiters
        if not scene.is_member(pid)
    }


def _of_one_command(scene: Scene, waits: Mapping[Key, Blocked]) -> set[int]:
    """Outsiders of a member's process group on either side of a wait for a lock of a file, and children that these
    wait for: commands of one script, whoever of them was asked for.
    """
    groups = {scene.processes[pid].pgid for pid in scene.evidence.job.members if pid in scene.processes}
    queued = _queued_behind(scene)
    found: set[int] = set()
    for (pid, _), wait in waits.items():
        if wait.kind not in _OF_SCRIPTS or wait.standing is not Standing.FIRM:
            continue
        if scene.is_member(pid):
            found.update(end for end, _ in wait.targets)
        elif pid in queued:
            found.add(pid)
    return {
        pid for pid in found if _is_outsider(scene, pid) and scene.processes[pid].pgid in groups - {None, 0}
    }


def _partners(scene: Scene, waits: Mapping[Key, Blocked]) -> tuple[int, ...]:
    """Outsiders in a circle with a member. By threads: each of two servers may have one that waits for the other."""
    if not any(_is_outsider(scene, pid) for pid in scene.processes):
        return ()
    settled = settle_fronts(scene, waits)

    def edges(key: Key) -> tuple[Key, ...]:
        wait = settled.get(key)
        if wait is None or wait.standing is not Standing.FIRM or wait.service not in (None, LAUNCHER):
            return ()
        return wait.targets

    found: set[int] = set()
    for knot in components(settled, edges):
        pids = {pid for pid, _ in knot}
        outside = {pid for pid in pids if _is_outsider(scene, pid)}
        if outside and outside != pids:
            found |= outside
    return tuple(sorted(found))
