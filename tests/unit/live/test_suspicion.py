"""When the view takes a whole look: threads on a made-up clock."""

from __future__ import annotations

from collections.abc import Callable

from pyhangtrace.live import suspicion
from pyhangtrace.live.suspicion import CREDIT_S, SHARE, Suspicion
from pyhangtrace.model.live import ThreadMark

KEY = (10, 11)
BEAT_S = 0.25


def mark(moved_s: float) -> ThreadMark:
    return ThreadMark(state="S", slices=1, run_ns=1, moved_s=moved_s, seen_s=0.0)


def followed(until_s: float, moved: Callable[[float], float], now: Suspicion | None = None) -> Suspicion:
    """One thread that was last seen to move at that time, from the last reading on."""
    now = now or suspicion.observe(Suspicion(), {KEY: mark(0.0)}, BEAT_S)
    at_s = now.at_s
    while at_s < until_s - 1e-9:
        at_s += BEAT_S
        now = suspicion.observe(now, {KEY: mark(moved(at_s))}, at_s)
    return now


def steps(every_s: float, until_s: float) -> Callable[[float], float]:
    """Moves at every multiple of that, and for the last time at `until_s`."""
    return lambda at_s: min(at_s, until_s) // every_s * every_s


def spent(now: Suspicion) -> Suspicion:
    return suspicion.paid(now, 0.1)


def test_who_moves_is_not_suspected() -> None:
    assert suspicion.suspects(followed(60.0, steps(0.25, 60.0)), {10}) == {}


def test_who_falls_silent_is_suspected_within_a_second() -> None:
    now = spent(followed(60.0, steps(0.25, 60.0)))
    assert not suspicion.wants_look(now, {10})
    now = followed(60.75, steps(0.25, 60.0), now)
    assert suspicion.suspects(now, {10}) == {KEY: 0.75}
    assert suspicion.wants_look(now, {10})


def test_only_those_who_work_are_suspected() -> None:
    now = followed(62.0, steps(0.25, 60.0))
    assert suspicion.suspects(now, {99}) == {}


def test_long_steps_are_learned_and_forgotten() -> None:
    now = followed(60.0, steps(2.0, 60.0))
    assert suspicion.suspects(followed(62.0, steps(2.0, 60.0), now), {10}) == {}
    assert suspicion.suspects(followed(63.5, steps(2.0, 60.0), now), {10}) != {}
    quick = followed(60.0 + 600.0, steps(0.25, 660.0), now)
    assert suspicion.suspects(followed(660.75, steps(0.25, 660.0), quick), {10}) != {}


def test_what_was_looked_at_is_suspected_again_only_after_it_has_moved() -> None:
    now = suspicion.begun(followed(61.0, steps(0.25, 60.0)))
    assert suspicion.suspects(followed(90.0, steps(0.25, 60.0), now), {10}) == {}
    again = followed(100.0, lambda at_s: max(60.0, min(at_s, 95.0)), now)
    assert suspicion.suspects(again, {10}) != {}


def test_threads_that_rest_from_the_start_are_those_of_the_first_look() -> None:
    now = suspicion.begun(followed(BEAT_S, lambda _: 0.0))
    assert suspicion.suspects(followed(60.0, lambda _: 0.0, now), {10}) == {}


def test_looks_are_paid_for() -> None:
    """A thread that falls silent all the time costs no more than the share, after what is there at the start."""
    now = followed(10.0, steps(0.25, 10.0))
    looks, cost_s, at_s = 0, 1.0, 10.0
    while at_s < 3600.0:
        at_s += BEAT_S
        # Works for a second, rests for four.
        last = at_s if at_s % 5 < 1 else at_s // 5 * 5 + 0.75
        now = suspicion.observe(now, {KEY: mark(last)}, at_s)
        if suspicion.wants_look(now, {10}):
            now = suspicion.paid(suspicion.begun(now), cost_s)
            looks += 1
    assert 10 < looks * cost_s < SHARE * 3600 + CREDIT_S + 2 * cost_s


def test_without_credit_a_job_in_which_nobody_moves_is_still_looked_at() -> None:
    now = suspicion.paid(suspicion.begun(followed(60.0, steps(0.25, 60.0))), 10.0)
    assert not suspicion.wants_look(followed(64.0, steps(0.25, 60.0), now), {10})
    later = followed(120.0, steps(0.25, 110.0), now)
    assert suspicion.wants_look(later, {10})
    # And not at the next moment again.
    assert not suspicion.wants_look(suspicion.begun(later), {10})


def test_now_and_then_without_any_suspicion() -> None:
    now = suspicion.paid(followed(60.0, steps(0.25, 60.0)), 1.0)
    assert not suspicion.wants_look(now, {10})
    assert suspicion.wants_look(followed(60.0 + 1.0 / SHARE + 1, steps(0.25, 1e9), now), {10})
