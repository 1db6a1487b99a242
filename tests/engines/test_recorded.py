"""Servers that hung, from the evidence that was kept of them: no engine is needed."""

from __future__ import annotations

import pytest

from tests.engines.recorded import below, load, names
from tests.engines.verdicts import verdict
from tests.hangs.judge import Outcome


@pytest.mark.parametrize("name", names())
def test_the_report_holds_the_facts(name: str) -> None:
    recorded = load(name)
    report = recorded.report()
    judged = verdict(report, recorded.scene, recorded.members, lambda pid: below(report, pid))
    assert judged.outcome is Outcome.RIGHT, (*judged.reasons, report["verdict"]["summary"])
