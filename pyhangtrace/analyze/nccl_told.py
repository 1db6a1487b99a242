"""A wait as NCCL's memory tells it."""

from __future__ import annotations

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.scene import Key
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.report import WaitObject


def told(
    wait: Blocked,
    evidence: tuple[str, ...],
    *,
    cause: Kind,
    object: WaitObject,
    targets: tuple[Key, ...],
    group: str,
    kind: WaitKind = WaitKind.COLLECTIVE,
    basis: Confidence = Confidence.LIKELY,
    edge: Edge = Edge.ALL,
) -> Blocked:
    """The wait of a thread for these, by what NCCL counts or keeps of launches and not by the thread's own call."""
    return changed(
        wait,
        kind=kind,
        standing=Standing.FIRM,
        cause=cause,
        basis=basis,
        edge=edge,
        object=object,
        targets=targets,
        candidates=targets,
        group=group,
        from_counters=True,
        evidence=(*wait.evidence, *evidence),
    )
