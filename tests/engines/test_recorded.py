"""Servers that hung, from the evidence that was kept of them: no engine is needed."""

from __future__ import annotations

import dataclasses

import pytest

from pyhangtrace.model.logs import LogMark
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


@pytest.mark.parametrize("name", ["vllm-all-reduce-gloo", "vllm-lost-answer", "sglang-all-reduce"])
def test_who_has_taken_a_request_is_a_victim_of_the_parts_behind(name: str) -> None:
    report, _ = judge_again(load(name))
    (asking,) = [wait for wait in report["waits"] if wait["object"]["name"] == "answers to 1 request"]
    assert asking["id"] in {victim["wait"] for victim in report["verdict"]["victims"]}
    roles = {process["pid"]: process["role"] for process in report["processes"]}
    assert roles[asking["pid"]] == "launcher"


def test_a_server_whose_log_tells_the_end_of_a_part_has_ended() -> None:
    recorded = load("vllm-idle")
    mark = LogMark(pids=(1,), phase="shutdown", detail="worker 1 has died, exit code -9")
    report, _ = judge_again(
        dataclasses.replace(recorded, evidence=dataclasses.replace(recorded.evidence, log_marks=(mark,)))
    )
    verdict = report["verdict"]
    assert (verdict["state"], verdict["cause"], verdict["culprits"]) == ("ended", "peer.exited", [])
    assert "worker 1 has died, exit code -9" in verdict["summary"]


def test_a_request_that_nobody_is_at_makes_no_idle_server() -> None:
    recorded, asked = load("vllm-idle"), load("vllm-lost-answer")
    (request,) = [
        task
        for task in asked.evidence.looks[-1].tasks
        if any(frame.function.endswith("AsyncLLM.generate") for frame in task.frames)
    ]
    loop = recorded.evidence.looks[-1].tasks[0]
    lost = dataclasses.replace(request, pid=loop.pid, tid=loop.tid)
    looks = tuple(dataclasses.replace(look, tasks=(*look.tasks, lost)) for look in recorded.evidence.looks)
    report, _ = judge_again(
        dataclasses.replace(recorded, evidence=dataclasses.replace(recorded.evidence, looks=looks))
    )
    assert report["verdict"]["state"] == "unknown"
    assert "answers to 1 request" in report["verdict"]["summary"]


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
