"""Whose the keys of torch's store are, as far as their names or the program's source say so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyhangtrace.analyze.scene import Key, Scene

_NUMBER = re.compile(r"\d+")
_OF_RANK = re.compile(r"rank[_\-/:.= ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Owners:
    """Who is to set keys: by rank, or by process."""

    ranks: frozenset[int]
    pids: frozenset[int]


def owners(scene: Scene, key: Key) -> Owners:
    """Who is to set the keys for which a thread waits."""
    wait = next((each for each in scene.evidence.group_waits if (each.pid, each.tid) == key), None)
    if wait is None:
        return Owners(frozenset(), frozenset())
    named = {int(match[1]) for name in wait.keys if (match := _OF_RANK.search(name)) is not None}
    # One with its own number in it may be what others have for it.
    named.discard(scene.who.rank(key[0]) or 0)
    ranks = frozenset({*named, *_one_each(wait.keys, scene.who.world_size)})
    return Owners(ranks, frozenset(wait.setters))


def _one_each(keys: tuple[str, ...], world_size: int | None) -> range:
    """The ranks, if there is one key for each: all alike but for a number, from 0 up to the size of the world."""
    if world_size is None or len(keys) != world_size or world_size < 2:
        return range(0)
    alike = {_NUMBER.sub("#", name) for name in keys}
    numbers = [_NUMBER.findall(name) for name in keys]
    for at in range(min(map(len, numbers))):
        if len(alike) == 1 and {int(each[at]) for each in numbers} == set(range(world_size)):
            return range(world_size)
    return range(0)
