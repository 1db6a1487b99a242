"""Programs with known lock graphs: cycles are found and proven, owners are right, nobody innocent is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hangs.judge import Outcome
from tests.lockgraphs.kinds import KINDS, Language
from tests.lockgraphs.plan import Last, Shape
from tests.lockgraphs.shapes import FILES_FROM, draw
from tests.lockgraphs.trial import build, try_plan
from tests.lockgraphs.truth import truth_of

FORMS = range(1, 1501)
#: Each shape in each language; the rest of the seeds is for whoever has more time.
QUICK = 20
MORE = range(1, 121)
FILES = range(FILES_FROM, FILES_FROM + 6)


def quick_seeds() -> list[int]:
    """The first seeds of as many pairs of language and shape as there are, few threads first."""
    found: dict[tuple[Language, Shape], int] = {}
    for seed in FORMS:
        plan = draw(seed)
        if len(plan.players) <= 16:
            found.setdefault((plan.language, plan.shape), seed)
    return sorted(found.values())[:QUICK]


def test_a_seed_always_stands_for_the_same_plan() -> None:
    for seed in range(1, 200):
        assert draw(seed) == draw(seed)


def test_each_part_is_drawn() -> None:
    plans = [draw(seed) for seed in FORMS]
    assert {(plan.language, plan.shape) for plan in plans} == {
        (language, shape) for language in Language for shape in Shape if shape is not Shape.FILES
    }
    assert {draw(seed).shape for seed in FILES} == {Shape.FILES}
    assert {player.last for plan in plans for player in plan.players} == set(Last)
    for language, kinds in KINDS.items():
        waited = {
            wait.kind.name
            for plan in plans
            if plan.language is language
            for wait in truth_of(plan).waits.values()
        }
        assert waited == set(kinds)
    sizes = [len(plan.players) for plan in plans]
    assert min(sizes) == 2
    assert max(sizes) >= 50
    assert max(len(plan.processes) for plan in plans) >= 4


def test_only_shapes_that_are_cycles_have_some() -> None:
    rings = {
        Shape.CYCLE: 1,
        Shape.CYCLE_APART: 1,
        Shape.SOFT_CYCLE: 1,
        Shape.TWO_CYCLES: 2,
        Shape.ITSELF: 1,
    }
    for plan in map(draw, FORMS):
        truth = truth_of(plan)
        assert len(truth.rings) == rings.get(plan.shape, 0)
        if plan.shape in (Shape.SOFT_CYCLE, Shape.ITSELF, Shape.TWO_CYCLES):
            soft = plan.shape is Shape.SOFT_CYCLE
            assert all(ring.recorded != soft and ring.may_prove != soft for ring in truth.rings)


def test_nobody_may_be_named_who_does_well() -> None:
    for plan in map(draw, FORMS):
        decoys = {player.name for player in plan.players if player.decoy}
        if plan.shape not in (Shape.CROSSED, Shape.FILE_KEPT):
            assert not truth_of(plan).may_name & decoys


@pytest.fixture(scope="session")
def lockplay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that plays plans in C++."""
    return build(tmp_path_factory.mktemp("lockplay"))


@pytest.mark.hangs
@pytest.mark.root
@pytest.mark.parametrize("seed", [*quick_seeds(), *FILES])
def test_the_report_holds_what_the_plan_says(seed: int, lockplay: Path) -> None:
    _hold(seed, lockplay)


@pytest.mark.slow
@pytest.mark.hangs
@pytest.mark.root
@pytest.mark.parametrize("seed", sorted(set(MORE) - set(quick_seeds())))
def test_more_reports_hold_what_their_plans_say(seed: int, lockplay: Path) -> None:
    _hold(seed, lockplay)


def _hold(seed: int, lockplay: Path) -> None:
    trial = try_plan(draw(seed), lockplay)
    judgement = trial.compared.judgement
    assert judgement.outcome in (Outcome.RIGHT, Outcome.ABSTAINED), (
        judgement.outcome.value,
        trial.plan.describe(),
        *judgement.reasons,
        trial.verdict,
        trial.plan.text(),
    )
