"""What becomes of waits, and how all of them together are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from pyhangtrace.analyze.blocked import Blocked
from pyhangtrace.analyze.components import leading_to
from pyhangtrace.analyze.scene import Key

# A timer with more to go than this is a hang to whoever waits for it.
LONG_TIMER_S = 60.0


class Fate(IntEnum):
    """What becomes of a wait, the more hopeless the higher."""

    MOVING = 0
    BUSY = 1
    SHORT = 2  # a timer that ends soon
    UNKNOWN = 3
    IDLE = 4
    LONG_TIMER = 5
    BLOCKED = 6
    CYCLE = 7
    STOPPED = 8
    GONE = 9

    @property
    def hung(self) -> bool:
        """It does not end by itself in any reasonable time."""
        return self >= Fate.LONG_TIMER


# Which of several targets, all of which must act, decides: the idle one last, since it may have done its part.
_WORST = (
    Fate.IDLE,
    Fate.MOVING,
    Fate.SHORT,
    Fate.BUSY,
    Fate.UNKNOWN,
    Fate.LONG_TIMER,
    Fate.BLOCKED,
    Fate.CYCLE,
    Fate.STOPPED,
    Fate.GONE,
)

# Where each fate, by its number, stands among them.
_BADNESS = tuple(map(_WORST.index, Fate))


def badness(target: tuple[Fate, Key]) -> int:
    """The higher the sooner it decides."""
    return _BADNESS[target[0]]


class Outcome(NamedTuple):
    """The fate of a node, and the target that decides it (None: it decides itself).

    `doubted`: it would be hopeless but for other threads at the other end, which may yet act.
    """

    fate: Fate
    via: Key | None = None
    doubted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All nodes' outcomes and the cycles that are proven. `listening` and `lively` as `outside` says. `clocked` are
    members of a knot that the clock may get out of it, as far as one has seen. `whole` are cycles of one thread that
    stands for its process, with all threads that may be in it.
    """

    outcomes: Mapping[Key, Outcome]
    cycles: tuple[tuple[Key, ...], ...]
    clocked: frozenset[Key] = frozenset()
    whole: Mapping[Key, tuple[Key, ...]] = field(default_factory=dict)
    listening: frozenset[Key] = frozenset()
    lively: frozenset[Key] = frozenset()

    def fate(self, key: Key) -> Fate:
        """UNKNOWN for a node that is not in the graph."""
        outcome = self.outcomes.get(key)
        return outcome.fate if outcome is not None else Fate.UNKNOWN

    def chain(self, start: Key) -> tuple[Key, ...]:
        """The nodes from here to the end; a cycle is gone round once."""
        path: dict[Key, None] = {}
        node: Key | None = start
        while node is not None and node not in path:
            path[node] = None
            outcome = self.outcomes.get(node)
            node = outcome.via if outcome is not None else None
        return tuple(path)

    def ends(self) -> dict[Key, Key]:
        """Where each node's chain ends; for one that leads into a cycle, a member of it."""
        ends: dict[Key, Key] = {}
        for start in self.outcomes:
            path: dict[Key, None] = {}
            node = start
            while node not in path and node not in ends:
                path[node] = None
                outcome = self.outcomes.get(node)
                if outcome is None or outcome.via is None:
                    break
                node = outcome.via
            ends.update(dict.fromkeys(path, ends.get(node, node)))
        return ends

    def leading_to(self, goals: Iterable[Key]) -> frozenset[Key]:
        """All nodes whose chain passes one of these, themselves included."""
        return leading_to(
            goals,
            {node: (outcome.via,) for node, outcome in self.outcomes.items() if outcome.via is not None},
        )


def fate_of_timer(wait: Blocked) -> Fate:
    """What becomes of a wait that the clock ends."""
    if wait.lasts_s is not None:
        return Fate.LONG_TIMER if wait.lasts_s > LONG_TIMER_S else Fate.SHORT
    slept = wait.since_s
    return Fate.LONG_TIMER if slept is not None and slept > LONG_TIMER_S else Fate.UNKNOWN
