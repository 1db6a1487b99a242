"""Circles that a member may yet leave, as it waits for a while at a time: the longer they have stood, the surer."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze.fates import LONG_TIMER_S
from pyhangtrace.analyze.finding import Case
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.single_fates import tries


def is_young(case: Case, cycle: Sequence[Key]) -> bool:
    """Whether a circle in which somebody tries again and again has not stood for a minute yet, as far as one has seen.

    No longer than the youngest sleep of a member that waits without a timeout; without one, than one has looked.
    """
    members = [case.waits[key] for key in cycle]
    if not any(tries(wait) for wait in members):
        return False
    ages = [wait.since_s or 0.0 for wait in members if not tries(wait)]
    return min(ages, default=case.scene.evidence.window_s) < LONG_TIMER_S


def who_tries(case: Case, cycle: Sequence[Key]) -> tuple[Key, ...]:
    """Members that wait for a while at a time."""
    return tuple(key for key in cycle if key in case.waits and tries(case.waits[key]))
