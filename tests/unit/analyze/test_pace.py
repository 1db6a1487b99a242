"""Who works and who stands still, by counters alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze.pace import advance, stalled
from pyhangtrace.model.pace import Pace, ProcessCounters, Standing

EVERY_S = 5.0
STILL = ProcessCounters(
    pid=7, start_ticks=1, state="S", threads=4, cpu_s=100.0, minor_faults=10, major_faults=0, io_bytes=1 << 20
)


def after(
    minutes: float, start: ProcessCounters = STILL, *, per_s: dict[str, float], at_s: float = 0.0
) -> tuple[dict[int, Standing], ProcessCounters, float]:
    """The standing of one process that does so much in every second."""
    standings: dict[int, Standing] = advance({}, {start.pid: start}, at_s)
    now = start
    for _ in range(int(minutes * 60 / EVERY_S)):
        at_s += EVERY_S
        now = replace(
            now,
            **{
                name: getattr(now, name) + type(getattr(now, name))(each * EVERY_S)
                for name, each in per_s.items()
            },
        )
        standings = advance(standings, {now.pid: now}, at_s)
    return standings, now, at_s


@pytest.mark.parametrize(
    ("per_s", "pace"),
    [
        ({}, Pace.QUIET),
        (
            {"cpu_s": 0.02, "io_bytes": 200, "minor_faults": 2},
            Pace.QUIET,
        ),  # watchdogs and a heartbeat in the log
        ({"cpu_s": 1.0}, Pace.SPINNING),
        ({"cpu_s": 1.0, "io_bytes": 1e6}, Pace.WORKING),
        ({"cpu_s": 1.0, "minor_faults": 5000}, Pace.WORKING),
        ({"cpu_s": 0.01, "io_bytes": 1e6}, Pace.WORKING),  # loading from a slow file server
        ({"cpu_s": 0.01, "major_faults": 1000}, Pace.WORKING),
    ],
)
def test_pace(per_s: dict[str, float], pace: Pace) -> None:
    standings, _, at_s = after(2, per_s=per_s)
    assert standings[7].pace is pace
    assert bool(stalled(standings, {7}, at_s, 60.0)) is (pace is not Pace.WORKING)


def test_a_stall_takes_its_time() -> None:
    standings, _, at_s = after(0.5, per_s={})
    assert not stalled(standings, {7}, at_s, 60.0)
    assert stalled(standings, {7}, at_s + 30.0, 60.0) == {(7, Pace.QUIET)}


def test_a_burst_of_a_monitor_is_no_work() -> None:
    """200 kB of /proc and 0.3 s of CPU, once a minute."""
    standings, now, at_s = after(2, per_s={})
    for _ in range(3):
        now = replace(now, io_bytes=(now.io_bytes or 0) + 200_000, cpu_s=now.cpu_s + 0.3)
        for _ in range(12):
            at_s += EVERY_S
            standings = advance(standings, {7: now}, at_s)
    assert at_s - standings[7].since_s > 240.0


def test_to_fall_silent_after_spinning_is_a_stall_of_its_own() -> None:
    standings, now, at_s = after(10, per_s={"cpu_s": 1.0})
    spun_until = at_s
    while at_s < spun_until + 120.0:
        at_s += EVERY_S
        standings = advance(standings, {7: now}, at_s)
    assert standings[7].pace is Pace.QUIET
    assert spun_until <= standings[7].since_s <= spun_until + 30.0


def test_a_process_of_the_same_number_is_another_one() -> None:
    standings, now, at_s = after(2, per_s={})
    other = replace(now, start_ticks=2)
    assert advance(standings, {7: other}, at_s + EVERY_S)[7].since_s == at_s + EVERY_S


def test_who_ended_stands_nowhere() -> None:
    standings, _, at_s = after(2, per_s={})
    assert advance(standings, {}, at_s + EVERY_S) == {}


def test_without_rights_to_see_bytes_faults_still_tell() -> None:
    blind = replace(STILL, io_bytes=None)
    assert after(2, blind, per_s={"minor_faults": 5000})[0][7].pace is Pace.WORKING
    assert after(2, blind, per_s={})[0][7].pace is Pace.QUIET


def test_one_rank_is_enough_and_a_launcher_is_not() -> None:
    still = after(2, per_s={})[0][7]
    works = replace(still, pace=Pace.WORKING)
    assert stalled({1: still, 2: works, 3: works}, {2, 3}, 200.0, 60.0) == frozenset()
    assert stalled({1: still, 2: works, 3: still}, {2, 3}, 200.0, 60.0) == {(3, Pace.QUIET)}


def test_without_ranks_all_have_to_stand_still() -> None:
    still = after(2, per_s={})[0][7]
    works = replace(still, pace=Pace.WORKING)
    assert stalled({1: still, 2: works}, (), 200.0, 60.0) == frozenset()
    assert stalled({1: still, 2: still}, (), 200.0, 60.0) == {(1, Pace.QUIET), (2, Pace.QUIET)}
    assert stalled({}, (), 200.0, 60.0) == frozenset()
