"""No healthy program is called hung, whichever of its processes is looked at, and nobody of it is accused."""

from __future__ import annotations

import pytest

from tests.healthy.facts import Well
from tests.healthy.scenes import SCENES
from tests.healthy.trial import judge, try_scene

LOOKS = 4


def _parameters() -> list[object]:
    marks = [pytest.mark.hangs, pytest.mark.root, pytest.mark.timeout(180)]
    slow = [*marks, pytest.mark.slow]
    return [pytest.param(scene, id=scene.name, marks=slow if scene.slow else marks) for scene in SCENES]


@pytest.mark.parametrize("scene", _parameters())
def test_is_not_called_hung(scene: Well) -> None:
    if (why := scene.needs()) is not None:
        pytest.skip(why)
    tally = try_scene(scene, looks=LOOKS)
    assert not tally.defects
    assert tally.looks + tally.gone == LOOKS


@pytest.mark.parametrize(
    ("state", "culprits", "right"),
    [
        ("running", [], True),
        ("hung", [], False),
        ("running", [{"pid": 1}], False),
        ("slow", [{"pid": 1}], True),
    ],
)
def test_the_judge(state: str, culprits: list[object], right: bool) -> None:
    verdict = {"state": state, "culprits": culprits, "confidence": None, "summary": "…"}
    assert (not judge({"verdict": verdict}, frozenset({"running", "slow"}))) is right
