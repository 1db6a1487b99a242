"""When a watch looks, and what of it becomes a report: on a made-up clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pyhangtrace.analyze import episodes
from pyhangtrace.model.kinds import State
from pyhangtrace.model.pace import Pace
from pyhangtrace.model.watch import Still, WatchLimits

LIMITS = WatchLimits(stall_s=60.0, rate_limit_s=600.0)
EVERY_S = 5.0
RANK_0: Still = frozenset({(10, Pace.QUIET)})
RANK_1: Still = frozenset({(11, Pace.QUIET)})
NOBODY: Still = frozenset()


def watched(
    hours: float, still: Callable[[float], Still], verdict: State | Callable[[float], State]
) -> tuple[list[float], list[float]]:
    """Times of looks and of reports, of a job in which those stand still at that time, and a look says that."""
    episode = episodes.begin(LIMITS)
    looks, reports = [], []
    at_s = 0.0
    while at_s < hours * 3600:
        episode = episodes.observe(episode, still(at_s), at_s, LIMITS)
        if episodes.wants_look(episode, at_s, LIMITS):
            looks.append(at_s)
            said = verdict if isinstance(verdict, State) else verdict(at_s)
            episode, tell = episodes.looked(episode, said, at_s, LIMITS)
            reports += [at_s] if tell else []
        at_s += EVERY_S
    return looks, reports


def test_all_is_well() -> None:
    assert watched(24, lambda _: NOBODY, State.HUNG) == ([], [])


@pytest.mark.parametrize("state", [State.HUNG, State.UNKNOWN, State.BUSY, State.SLOW])
def test_a_stall_is_told_once_however_long_it_lasts(state: State) -> None:
    looks, reports = watched(24, lambda at_s: RANK_0 if at_s >= 1000 else NOBODY, state)
    assert looks == reports == [1000.0]


def test_others_that_come_to_stand_still_too_are_the_same_stall() -> None:
    def still(at_s: float) -> Still:
        return NOBODY if at_s < 1000 else RANK_0 if at_s < 1100 else RANK_0 | RANK_1

    assert watched(24, still, State.HUNG)[1] == [1000.0]


def test_two_stalls_are_told_no_closer_than_the_limit() -> None:
    # Ten minutes of every twenty, and then a minute of every two.
    _, reports = watched(1, lambda at_s: RANK_0 if at_s % 1200 >= 600 else NOBODY, State.HUNG)
    assert reports == [600.0, 1800.0, 3000.0]
    _, reports = watched(1, lambda at_s: RANK_0 if at_s % 120 >= 60 else NOBODY, State.HUNG)
    assert all(later - sooner >= LIMITS.rate_limit_s for sooner, later in itertools.pairwise(reports))
    assert len(reports) == 6


def test_a_server_that_idles_all_night_is_never_told_and_seldom_looked_at() -> None:
    looks, reports = watched(12, lambda at_s: RANK_0 if at_s >= 60 else NOBODY, State.IDLE)
    assert reports == []
    assert 10 < len(looks) < 20
    assert looks[-1] > 11 * 3600  # the safety net stays


def test_a_server_with_a_request_now_and_then_is_looked_at_no_closer_than_the_limit() -> None:
    looks, reports = watched(12, lambda at_s: RANK_0 if at_s % 180 >= 60 else NOBODY, State.IDLE)
    assert reports == []
    assert len(looks) <= 12 * 6 + 5


def test_what_hangs_after_an_idle_night_is_told_at_once() -> None:
    hangs_at = 8 * 3600.0

    def still(at_s: float) -> Still:
        return NOBODY if hangs_at - 10 <= at_s < hangs_at + 60 else RANK_0

    _, reports = watched(9, still, lambda at_s: State.HUNG if at_s >= hangs_at else State.IDLE)
    assert len(reports) == 1
    assert reports[0] <= hangs_at + 60 + LIMITS.rate_limit_s


def test_after_work_for_a_while_the_first_stall_is_looked_at_at_once() -> None:
    def still(at_s: float) -> Still:
        return RANK_0 if at_s < 3600 or at_s >= 7200 else NOBODY

    _, reports = watched(3, still, lambda at_s: State.HUNG if at_s >= 7200 else State.IDLE)
    assert reports == [7200.0]


def test_a_look_that_fails_is_tried_again() -> None:
    episode = episodes.observe(episodes.begin(LIMITS), RANK_0, 60.0, LIMITS)
    assert episodes.wants_look(episode, 60.0, LIMITS)
    episode = episodes.failed(episode, 60.0, LIMITS)
    assert not episodes.wants_look(episode, 65.0, LIMITS)
    assert episodes.wants_look(episode, 60.0 + episode.gap_s, LIMITS)
