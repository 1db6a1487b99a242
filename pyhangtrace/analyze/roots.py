"""Whether ranks that are in one operation with a root mean the same root.

A frame of Python names it. MPI's do not, but what a rank expects does: whoever is no root waits for a message of
another member, or passes on what it has got. So of members that are all inside, while no message moves, somebody is
sending what nobody takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyhangtrace.analyze.calls import FROM_ONE_ROOT, LEFT_EARLY
from pyhangtrace.analyze.process_groups import Group, Groups, awaited
from pyhangtrace.analyze.scene import Scene


def differ(scene: Scene, groups: Groups, group: Group, op: str, ranks: Collection[int]) -> bool:
    """Whether all members of a communicator of MPI are in this operation, and cannot be with one root: nobody expects
    anything, or some expect it of each other in a circle.
    """
    expected = _expected(scene, groups, group, ranks)
    if op not in LEFT_EARLY or expected is None or set(ranks) != set(group.ranks) or len(group.ranks) < 2:
        return False
    return not any(expected.values()) or _circle(expected)


def in_doubt(scene: Scene, groups: Groups, group: Group, op: str, ranks: Collection[int]) -> bool:
    """Whether more of them send than could have a receiver among those who are not inside: each member receives from
    one other. These may be roots of one call each, or the others have got what they came for, from another one. So may
    they where what only some of them expect is known.
    """
    if op not in FROM_ONE_ROOT or len(ranks) < 2:
        return False
    expected = _expected(scene, groups, group, ranks)
    if expected is None:
        counted = [scene.mpi_moves(pid) for rank in ranks if (pid := groups.pid_of.get(rank)) is not None]
        return None in counted and False in counted
    sending = sum(not of_whom for of_whom in expected.values())
    return sending > len(group.ranks) - len(set(ranks))


def _expected(
    scene: Scene, groups: Groups, group: Group, ranks: Collection[int]
) -> Mapping[int, tuple[int, ...]] | None:
    """Of whom each rank expects messages of a collective; None where that is not known, or messages move."""
    receives = {facts.pid for facts in scene.evidence.looks[-1].mpi if facts.receives}
    found = {}
    for rank in ranks:
        pid = groups.pid_of.get(rank)
        facts = groups.facts(pid, group) if pid is not None else None
        if pid is None or facts is None or pid not in receives or scene.mpi_moves(pid) is not False:
            return None
        found[rank] = awaited(facts, of_all=True)
    return found


def _circle(expected: Mapping[int, tuple[int, ...]]) -> bool:
    left = dict(expected)
    while free := [rank for rank, of_whom in left.items() if left.keys().isdisjoint(of_whom)]:
        for rank in free:
            del left[rank]
    return bool(left)
