"""Every case against the tool, as the scoreboard does it, one test a kind."""

from __future__ import annotations

import pytest

from tests.hangs.attach import try_case
from tests.hangs.cases import CASES
from tests.hangs.facts import Case, lacking
from tests.hangs.judge import Outcome


def _parameters() -> list[object]:
    parameters = []
    for number, case in enumerate(CASES):
        marks = [pytest.mark.hangs, pytest.mark.root, pytest.mark.timeout(180)]
        if case.torch:
            marks.append(pytest.mark.torch)
        if case.slow:
            marks.append(pytest.mark.slow)
        parameters.append(pytest.param(case, number, id=case.kind, marks=marks))
    return parameters


@pytest.mark.parametrize(("case", "turn"), _parameters())
def test_the_report_holds_the_facts(case: Case, turn: int) -> None:
    if missing := lacking(case):
        pytest.skip(f"needs {missing}")
    result = try_case(case, turn=turn)
    summary = (result.report or {}).get("verdict", {}).get("summary")
    assert result.judgement.outcome is Outcome.RIGHT, (result.attached_to, *result.judgement.reasons, summary)
