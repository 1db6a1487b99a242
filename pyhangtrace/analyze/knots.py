"""The circles of a knot of waits. Of a file lock only the process is recorded, so that the circle may go through any
of its threads: those are certain to be in one to whom the waiting comes back whichever thread it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyhangtrace.analyze.blocked import Blocked, any_of_its_own, any_thread
from pyhangtrace.analyze.components import leading_to
from pyhangtrace.analyze.scene import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Circles:
    """``following``: whom each thread of the knot waits for. ``whole``: threads each of which stands for its process
    in a circle of its own, with all that may have the lock: nothing says through which of them it closes.
    ``unsure``: threads that never go on, while nothing says who keeps whom.
    """

    following: Mapping[Key, Key | None]
    cycles: tuple[tuple[Key, ...], ...]
    whole: Mapping[Key, tuple[Key, ...]] = field(default_factory=dict)
    unsure: frozenset[Key] = frozenset()


def circles(waits: Mapping[Key, Blocked], following: Mapping[Key, Key | None]) -> Circles:
    """The circles among threads none of which can go on, each with the one of its targets that was chosen."""
    # Of those that lead out of the knot the way does not matter.
    guessed = [
        key for key in sorted(following) if any_thread(waits[key]) and _all_inside(waits[key], following)
    ]
    if not guessed:
        return Circles(following=following, cycles=_cycles(following))
    ways = _Ways(waits, following, guessed)
    chosen = ways.chosen()
    found = _cycles(chosen)
    while doubtful := [cycle for cycle in found if not ways.is_sure(cycle)]:
        if not any(ways.as_whole(cycle) for cycle in doubtful):
            break
        chosen = ways.chosen()
        found = _cycles(chosen)
    edges = {key: (after,) for key, after in chosen.items() if after is not None}
    return Circles(
        following=chosen,
        cycles=tuple(cycle for cycle in found if cycle not in doubtful),
        whole={key: ways.threads(process) for process, key in ways.whole.items()},
        unsure=leading_to({key for cycle in doubtful for key in cycle}, edges) & following.keys(),
    )


def _all_inside(wait: Blocked, following: Mapping[Key, Key | None]) -> bool:
    return all(target in following for target in wait.targets)


def _cycles(following: Mapping[Key, Key | None]) -> tuple[tuple[Key, ...], ...]:
    found: list[tuple[Key, ...]] = []
    passed: set[Key] = set()
    for start in sorted(following):
        path: dict[Key, None] = {}
        at: Key | None = start
        while at is not None and at in following and at not in path and at not in passed:
            path[at] = None
            at = following[at]
        if at is not None and at in path:
            steps = list(path)
            cycle = steps[steps.index(at) :]
            first = cycle.index(min(cycle))
            found.append(tuple(cycle[first:] + cycle[:first]))
        passed.update(path)
    return tuple(found)


class _Ways:
    """A knot with the processes in it as nodes of their own, (pid, 0): any of the ways on from there may be the one.

    ``whole``: the thread in place of each process that is told as a whole.
    """

    def __init__(
        self, waits: Mapping[Key, Blocked], following: Mapping[Key, Key | None], guessed: list[Key]
    ) -> None:
        self._following = following
        self._targets = {key: waits[key].targets for key in guessed}
        self._process = {key: (targets[0][0], 0) for key, targets in self._targets.items()}
        self._ways: dict[Key, tuple[Key, ...]] = {
            key: (after,) for key, after in following.items() if after is not None
        }
        self._ways.update({self._process[key]: targets for key, targets in self._targets.items()})
        self._ways.update({key: (process,) for key, process in self._process.items()})
        self._before: dict[Key, list[Key]] = {}
        for node, ways in self._ways.items():
            for way in ways:
                self._before.setdefault(way, []).append(node)
        self._known: dict[Key, bool] = {}
        self.whole: dict[Key, Key] = {}
        for key in guessed:
            process = self._process[key]
            if any_of_its_own(waits[key]) and process not in self.whole and self._comes_back(process):
                self.whole[process] = key

    def chosen(self) -> dict[Key, Key | None]:
        """Whom each waits for, with a thread in place of each process that leads to a circle that is certain."""
        chosen = dict(self._following)
        found = dict(self.whole)
        for key, process in self._process.items():
            # Whom one of them follows the others follow as well, but for that one himself.
            if process not in found or (found[process] == key and process not in self.whole):
                found[process] = self._best(key)
            chosen[key] = found[process]
        chosen.update({key: key for key in self.whole.values()})
        return chosen

    def threads(self, process: Key) -> tuple[Key, ...]:
        """Those that may have what is wanted of a process."""
        return self._ways[process]

    def is_sure(self, cycle: tuple[Key, ...]) -> bool:
        """Whether its threads, or the processes in place of which they are, are in a circle in any case."""
        if len(cycle) == 1 and cycle[0] in self.whole.values():
            return True
        return all(self._comes_back(node) for node, _ in self._nodes(cycle))

    def as_whole(self, cycle: tuple[Key, ...]) -> bool:
        """Tells in place of a circle the first process that is certain to be in it, if there is one."""
        for node, key in self._nodes(cycle):
            if node != key and node not in self.whole and self._comes_back(node):
                self.whole[node] = key
                return True
        return False

    def _nodes(self, cycle: tuple[Key, ...]) -> list[tuple[Key, Key]]:
        """Each member, and before it what is known of it: itself, or its process."""
        before = zip((cycle[-1], *cycle), cycle, strict=False)
        return [(self._process.get(one, key), key) for one, key in before]

    def _best(self, key: Key) -> Key:
        targets = [target for target in self._targets[key] if target != key]
        return next((target for target in targets if self._sure_from(target)), targets[0])

    def _sure_from(self, start: Key) -> bool:
        """Whether all who are passed are certain, up to the next one that waits for a process."""
        at: Key | None = start
        passed: set[Key] = set()
        while at is not None and at in self._following and at not in self._process and at not in passed:
            passed.add(at)
            at = self._following[at]
            if at is None or not self._comes_back(at):
                return False
        return True

    def _comes_back(self, goal: Key) -> bool:
        """Whether all ways from a node lead back to it."""
        if goal not in self._known:
            left = {node: len(ways) for node, ways in self._ways.items()}
            reached = [goal]
            sure: set[Key] = set()
            while reached:
                for node in self._before.get(reached.pop(), ()):
                    left[node] -= 1
                    if left[node] == 0 and node not in sure:
                        sure.add(node)
                        if node != goal:
                            reached.append(node)
            self._known[goal] = goal in sure
        return self._known[goal]
