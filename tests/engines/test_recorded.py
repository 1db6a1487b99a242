"""Servers that hung, from the evidence that was kept of them: no engine is needed."""

from __future__ import annotations

import pytest

from tests.engines.recorded import judge_again, load, names
from tests.hangs.judge import Outcome


@pytest.mark.parametrize("name", names())
def test_the_report_holds_the_facts(name: str) -> None:
    report, judged = judge_again(load(name))
    assert judged.outcome is Outcome.RIGHT, (*judged.reasons, report["verdict"]["summary"])
