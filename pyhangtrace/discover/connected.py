"""Ranks of one job that neither a launcher nor a variable joins: who runs the same program, and who talks with whom.

A rank keeps connections to others for as long as the job lives (to the store, and one to each neighbour), and that two
processes run the same program says nothing else of them: so connections tell one job from another beside it. Only
processes that show a rank are asked for theirs; a database, a proxy or a client of a server never joins anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

#: Both ends of a TCP connection, the own one first.
Ends = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A process that shows a rank.

    `rank` is all that it shows of it, so that no two ranks of a job have the same one; `shape` its command line without
    that; `near` if it was started where the one in question was; `named`: an option or variable calls it a rank.
    """

    pid: int
    rank: tuple[object, ...]
    world_size: str | None
    shape: tuple[str, ...]
    near: bool
    named: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """The ranks of one job; `settled` if none that runs the same program beside it could be one more of it."""

    pids: tuple[int, ...]
    connected: bool
    settled: bool


def joined(
    seed: int, candidates: Collection[Candidate], ends: Mapping[int, Collection[Ends]]
) -> Joined | None:
    """The job of `seed`, one of the candidates; None if nobody else is seen to be in it."""
    by_pid = {each.pid: each for each in candidates}
    me = by_pid[seed]
    alike = [each for each in candidates if (each.shape, each.world_size) == (me.shape, me.world_size)]
    own = _with(seed, components(by_pid, ends))
    if not _differ(by_pid[pid] for pid in own):
        # Two jobs that talk with each other, say one that trains and one that samples.
        own = _with(seed, components([each.pid for each in alike], ends))
        if not _differ(by_pid[pid] for pid in own):
            return None
    crowds = [crowd for crowd in components([each.pid for each in alike], ends) if len(crowd) > 1]
    inside = {pid for crowd in crowds for pid in crowd} | own
    # Who has not connected to anybody yet may be of any job that lacks him.
    lone = [each for each in alike if each.near and each.named and each.pid not in inside]
    others = [crowd for crowd in crowds if seed not in crowd]
    if len(own) > 1:
        fit = not others and _differ([*(by_pid[pid] for pid in own), *lone])
        members = own | {each.pid for each in lone} if fit else own
        return Joined(tuple(sorted(members)), connected=True, settled=fit)
    if not me.named or len(others) > 1:
        return None
    crowd = {pid for crowd in others for pid in crowd if by_pid[pid].near}
    members = {seed, *crowd, *(each.pid for each in lone)}
    if len(members) < 2 or not _differ(by_pid[pid] for pid in members):
        return None
    return Joined(tuple(sorted(members)), connected=False, settled=True)


def components(pids: Iterable[int], ends: Mapping[int, Collection[Ends]]) -> list[set[int]]:
    """Processes that are connected with each other, if only through others of them."""
    owners: dict[Ends, list[int]] = {}
    groups: dict[int, set[int]] = {}
    for pid in pids:
        groups[pid] = {pid}
        for end in ends.get(pid, ()):
            owners.setdefault(end, []).append(pid)
    for (local, remote), here in owners.items():
        for other in owners.get((remote, local), ()):
            for pid in here:
                if groups[pid] is not groups[other]:
                    groups[pid] |= groups[other]
                    for each in groups[other]:
                        groups[each] = groups[pid]
    return list({id(group): group for group in groups.values()}.values())


def _with(pid: int, groups: Iterable[set[int]]) -> set[int]:
    return next(group for group in groups if pid in group)


def _differ(candidates: Iterable[Candidate]) -> bool:
    """No two of them are the same rank."""
    ranks = [each.rank for each in candidates]
    return len(set(ranks)) == len(ranks)
