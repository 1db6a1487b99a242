"""Every scene: what is waited for, who could end it, since when, whether the clock does, and nobody accused."""

from __future__ import annotations

import pytest

from tests.kernel_waits.facts import Scene
from tests.kernel_waits.scenes import SCENES
from tests.kernel_waits.trial import attempt


def _parameters() -> list[object]:
    marks = [pytest.mark.hangs, pytest.mark.root, pytest.mark.timeout(120)]
    slow = [*marks, pytest.mark.slow]
    return [
        pytest.param(scene, id=scene.name, marks=[*(slow if scene.slow else marks), *_limit(scene)])
        for scene in SCENES
    ]


def _limit(scene: Scene) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=scene.limit, strict=True)] if scene.limit is not None else []


@pytest.mark.parametrize("scene", _parameters())
def test_the_wait_is_named(scene: Scene) -> None:
    if (why := scene.needs()) is not None:
        pytest.skip(why)
    trial = attempt(scene)
    summary = trial.report["verdict"]["summary"] if trial.report is not None else None
    assert not trial.defects, (*trial.defects, summary)
