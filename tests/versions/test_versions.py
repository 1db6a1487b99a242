"""The same hangs under each Python on this machine: layouts, frames and names differ between versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.generated.plan import draw
from tests.generated.trial import try_plan
from tests.hangs.attach import try_case
from tests.hangs.cases import CASES
from tests.hangs.facts import Case
from tests.hangs.judge import Outcome
from tests.versions.interpreters import VERSIONS, interpreter

SEEDS = (15, 35, 37)

#: Cases whose programs use what older versions lack (mmap.MAP_POPULATE).
SINCE = {"rss-illusion": (3, 10)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hangs,
    pytest.mark.root,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("version", VERSIONS),
]


def by_python(case: Case) -> bool:
    """Whether the programs of a case are Python and need nothing but its standard library."""
    words = [word for program in case.programs for word in program.argv]
    demo = any("{repository}" in value for program in case.programs for value in program.env.values())
    return "{python}" in words and not demo and not case.torch


PLAIN = tuple(case for case in CASES if by_python(case))


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.kind)
def test_the_report_holds_the_facts(case: Case, version: str) -> None:
    python = interpreter(version)
    if (since := SINCE.get(case.kind)) and tuple(map(int, version.removesuffix("t").split("."))) < since:
        pytest.skip(f"{case.kind} needs Python {since[0]}.{since[1]}")
    if version.endswith("t") and case.kind.startswith("gil-"):
        pytest.skip(f"{case.kind} needs a GIL")
    programs = tuple(
        replace(program, argv=tuple(python if word == "{python}" else word for word in program.argv))
        for program in case.programs
    )
    result = try_case(replace(case, programs=programs))
    verdict = (result.report or {}).get("verdict", {})
    reasons = (python, result.attached_to, *result.judgement.reasons, verdict.get("summary"))
    # An older interpreter may leave less to see: then the report may leave it open, but not guess.
    assert result.judgement.outcome in (Outcome.RIGHT, Outcome.ABSTAINED), reasons


@pytest.mark.parametrize("seed", SEEDS)
def test_made_up_jobs(seed: int, version: str) -> None:
    trial = try_plan(draw(seed, torch=False), python=interpreter(version))
    reasons = (trial.summary, *trial.judgement.reasons, trial.verdict)
    assert trial.judgement.outcome in (Outcome.RIGHT, Outcome.ABSTAINED), reasons
