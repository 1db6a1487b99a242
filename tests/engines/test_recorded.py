"""Servers that hung, from the evidence that was kept of them: no engine is needed."""

from __future__ import annotations

import dataclasses

import pytest

from tests.engines.board import in_short
from tests.engines.recorded import judge_again, load, names
from tests.hangs.judge import Outcome


@pytest.mark.parametrize("name", names())
def test_the_report_holds_the_facts(name: str) -> None:
    report, judged = judge_again(load(name))
    assert judged.outcome is Outcome.RIGHT, (*judged.reasons, report["verdict"]["summary"])


def test_who_waits_for_pages_is_not_idle_where_nobody_counted_them() -> None:
    recorded = load("sglang-slow-load")
    uncounted = dataclasses.replace(recorded.evidence, memory=None)
    report, _ = judge_again(dataclasses.replace(recorded, evidence=uncounted))
    assert report["verdict"]["state"] == "unknown"


def test_the_other_rank_would_be_an_innocent() -> None:
    recorded = load("sglang-load-event")
    rank0, rank1 = recorded.members["rank0"], recorded.members["rank1"]
    swapped = {
        **recorded.members,
        "rank0": dataclasses.replace(rank0, pid=rank1.pid, tid=rank1.tid),
        "rank1": dataclasses.replace(rank1, pid=rank0.pid, tid=rank0.tid),
    }
    _, judged = judge_again(dataclasses.replace(recorded, members=swapped))
    assert judged.accused
    assert not judged.roles
    assert judged.outcome is Outcome.INNOCENT


@pytest.mark.parametrize(
    ("printed", "short"),
    [
        ("no dump: hangtrace: no flight recorder to write: timed_out", "no dump"),
        ("tabulate is not installed. Proceeding without it.", "nothing"),
        ("Not all ranks joining collective\nmissing ranks: {0}\nmissing ranks: {0}", "rank 0 missing"),
        ("error msg: Culprit rank 2; Error type: ...", "culprit rank 2"),
        ("Traceback (most recent call last):\nKeyError: ('0', 3)", "crashes"),
    ],
)
def test_torchs_analyser_in_short(printed: str, short: str) -> None:
    assert in_short(printed) == short
