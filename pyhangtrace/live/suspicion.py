"""When the view takes a whole look: pure, on the clock of the readings.

Each thread that is followed has a longest rest that it has taken so far and has come back from. Who rests for clearly
longer is suspected, after half a second at the soonest and five at the latest. Looks cost CPU: they are paid from a
credit that fills up slowly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pyhangtrace.model.live import ThreadKey, ThreadMark

_SOONEST_S = 0.5
_LATEST_S = 5.0
_LONGER = 1.5
_FORGET_S = 60.0  # a rest counts for half after so long
CREDIT_S = 2.0  # of CPU
SHARE = 0.008  # of a CPU, for looks
_URGENT_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Of one thread: its longest rest, and when it last came back from one. `met`: it was seen to move."""

    moved_s: float
    met: bool = False
    longest_s: float = 0.0
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What is known of the rests of all threads, and what is left for looks.

    `told` are the threads that rested when the last look began, with when they had last moved: as long as they rest on,
    the look holds.
    """

    rests: Mapping[ThreadKey, Rest] = field(default_factory=dict)
    told: Mapping[ThreadKey, float] = field(default_factory=dict)
    credit_s: float = CREDIT_S
    at_s: float = 0.0
    looked_s: float = 0.0


def observe(before: Suspicion, threads: Mapping[ThreadKey, ThreadMark], at_s: float) -> Suspicion:
    """Goes on with the threads as they are now."""
    rests = {key: _rest(before.rests.get(key), mark, at_s) for key, mark in threads.items()}
    told = {key: moved for key, moved in before.told.items() if key in rests and rests[key].moved_s == moved}
    passed_s = max(0.0, at_s - before.at_s) if before.at_s else 0.0
    credit = min(CREDIT_S, before.credit_s + SHARE * passed_s)
    return replace(before, rests=rests, told=told, credit_s=credit, at_s=at_s)


def suspects(now: Suspicion, workers: Collection[int]) -> dict[ThreadKey, float]:
    """Threads of these processes that rest for longer than they use to and were not looked at so: for how long."""
    return {
        key: now.at_s - rest.moved_s
        for key, rest in now.rests.items()
        if key[0] in workers and key not in now.told and now.at_s - rest.moved_s >= _patience(rest, now.at_s)
    }


def wants_look(now: Suspicion, workers: Collection[int]) -> bool:
    """Whether to look now: at a suspect while there is credit, and without one, but not as often, when nobody moves at
    all; else now and then when nothing was spent for long.
    """
    if now.credit_s >= CREDIT_S:
        return True
    if not suspects(now, workers):
        return False
    return can_pay(now, workers)


def can_pay(now: Suspicion, workers: Collection[int]) -> bool:
    """Whether there is credit for a look, or need of one: where nobody moves at all, though not as often."""
    return now.credit_s > 0 or (now.at_s - now.looked_s >= _URGENT_EVERY_S and _nobody_moves(now, workers))


def _nobody_moves(now: Suspicion, workers: Collection[int]) -> bool:
    rested = [now.at_s - rest.moved_s for key, rest in now.rests.items() if key[0] in workers]
    return bool(rested) and min(rested) >= _LATEST_S


def begun(now: Suspicion) -> Suspicion:
    """A look begins now, at all that rest."""
    return replace(
        now,
        looked_s=now.at_s,
        told={
            key: rest.moved_s
            for key, rest in now.rests.items()
            if not rest.met or now.at_s - rest.moved_s >= _SOONEST_S / 2
        },
    )


def paid(now: Suspicion, cpu_s: float) -> Suspicion:
    """A look has cost so much."""
    return replace(now, credit_s=now.credit_s - cpu_s)


def _patience(rest: Rest, at_s: float) -> float:
    return min(_LATEST_S, max(_SOONEST_S, _LONGER * _remembered_s(rest, at_s)))


def _remembered_s(rest: Rest, at_s: float) -> float:
    return rest.longest_s * math.pow(0.5, (at_s - rest.ended_s) / _FORGET_S)


def _rest(before: Rest | None, mark: ThreadMark, at_s: float) -> Rest:
    if before is None:
        return Rest(moved_s=mark.moved_s, ended_s=at_s)
    if mark.moved_s == before.moved_s:
        return before
    rested_s = mark.moved_s - before.moved_s
    if rested_s < _remembered_s(before, at_s):
        return replace(before, moved_s=mark.moved_s, met=True)
    return Rest(moved_s=mark.moved_s, met=True, longest_s=rested_s, ended_s=at_s)
