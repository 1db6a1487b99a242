"""Waits inside a team of OpenMP: at a barrier for who has not come to it, and for a lock that one of the team has."""

from __future__ import annotations

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.openmp import Place
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.threads import ThreadSample


def team(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Barriers, ends of regions, critical and ordered sections, locks of the runtime."""
    if sample.lock is None or draft.progress is Progress.RUNNING:
        return None
    here = scene.teams.get(draft.key)
    if here is None or not (here.meets or here.wants_lock):
        return None
    members = _others(scene, draft.key, here)
    if here.meets:
        late = tuple(key for key, there in members if not there.meets)
        if not late:
            return None
        return changed(
            draft,
            kind=WaitKind.BARRIER,
            standing=Standing.FIRM,
            cause=Kind.LOCK_HELD,
            basis=Confidence.LIKELY,
            object=holders.lock_object(sample),
            targets=late,
            candidates=late,
            edge=Edge.ALL,
            evidence=(*draft.evidence, f"{here.called}: {len(late)} of its team have not come"),
        )
    return changed(
        draft,
        kind=WaitKind.MUTEX,
        standing=Standing.FIRM,
        cause=Kind.LOCK_HELD,
        basis=Confidence.LIKELY,
        object=holders.lock_object(sample),
        candidates=tuple(key for key, there in members if not there.wants_lock),
        evidence=(*draft.evidence, f"{here.called}: no owner recorded"),
    )


def _others(scene: Scene, key: Key, here: Place) -> list[tuple[Key, Place]]:
    """The other members of a team that are in its region; none where it cannot be told from other teams."""
    found = []
    leaders = 1 if here.leads else 0
    for other in scene.threads_of(key[0]):
        there = scene.teams.get(other)
        if there is None or other == key:
            continue
        leaders += there.leads
        if there.region is not None and here.region in (None, there.region):
            found.append((other, there))
    return found if leaders == 1 else []
