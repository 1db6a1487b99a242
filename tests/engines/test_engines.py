"""Real servers of vLLM and SGLang that really hang, one test a scene: minutes each, `make test-engines` only."""

from __future__ import annotations

import pytest

from tests.engines import venvs
from tests.engines.scenes import SCENES, Scene
from tests.engines.trial import try_scene
from tests.hangs.judge import Outcome


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_the_report_holds_the_facts(scene: Scene) -> None:
    try:
        venvs.python(scene.engine)
    except venvs.NoEngine as problem:
        pytest.skip(str(problem))
    result = try_scene(scene)
    assert result.verdict.outcome is Outcome.RIGHT, (*result.verdict.reasons, result.text)
