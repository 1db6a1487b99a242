"""Waits for any other thread of the process: one node of the graph stands for all of them, and changes nothing."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze.blocked import changed
from pyhangtrace.analyze.crowds import Siblings, in_short
from pyhangtrace.analyze.graph import judge
from pyhangtrace.analyze.holders import siblings
from pyhangtrace.analyze.scene import build_scene
from pyhangtrace.analyze.waits import classify
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b


def on_condition(tid: int, address: int) -> ThreadSample:
    lock = LockFacts(kind="condition", address=address, uaddr=address, op=9, value=0)
    return b.sleeper(100, tid, lock=lock, frames=(b.native("wait", "app"), b.native("main", "app")))


CROWD = tuple(on_condition(tid, 0x9000 + tid) for tid in range(101, 106))
TIMER = b.asleep(100, 107, seconds=2.0)
RING = (b.on_mutex(100, 108, owner=109), b.on_mutex(100, 109, owner=108, address=0x8100))


@pytest.mark.parametrize(
    ("others", "alive"),
    [
        ((), False),
        ((b.running(100, 107),), True),
        ((TIMER,), True),
        (RING, False),
        ((*RING, on_condition(110, 0x9000 + 101)), False),
    ],
)
def test_who_waits_for_any_other_is_judged_as_if_each_were_named(
    others: tuple[ThreadSample, ...], *, alive: bool
) -> None:
    scene = build_scene(b.evidence([b.process(100)], b.twice(b.sleeper(100), *CROWD, *others)))
    waits = {key: wait for key in scene.thread_keys() if (wait := classify(scene, key)) is not None}
    by_name = {key: changed(wait, targets=tuple(wait.targets)) for key, wait in waits.items()}
    judged, expected = judge(scene, waits), judge(scene, by_name)
    assert dict(judged.outcomes) == dict(expected.outcomes)
    assert (judged.cycles, judged.lively) == (expected.cycles, expected.lively)
    assert ((100, 103) in judged.lively) is alive


def test_only_all_the_others_are_a_crowd() -> None:
    twin = on_condition(106, 0x9000 + 101)
    scene = build_scene(b.evidence([b.process(100)], b.twice(b.sleeper(100), *CROWD, twin)))
    assert isinstance(siblings(scene, (100, 102)), Siblings)
    assert len(in_short(siblings(scene, (100, 102)))) == 1
    of_twins = siblings(scene, (100, 101))
    assert (100, 106) not in of_twins
    assert in_short(of_twins) == of_twins
