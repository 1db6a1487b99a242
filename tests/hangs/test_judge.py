"""The judge itself: it must tell right from withheld, wrong and unjust."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.model.kinds import Kind, State
from tests.hangs.attach import Result
from tests.hangs.cases import CASES
from tests.hangs.facts import healthy, hung
from tests.hangs.judge import Judgement, Outcome, judge
from tests.hangs.processes import Member
from tests.hangs.table import table

MEMBERS = {
    "rank0": Member("rank0", 10, 10),
    "rank1": Member("rank1", 11, 11),
    "holder": Member("holder", 99, 99),
}

FACTS = hung(
    "collective.missing_rank",
    "file_lock.held",
    culprit=("rank1",),
    may_name=("holder",),
    holder="holder",
    victims=("rank0",),
    missing=frozenset({1}),
    op="all_reduce",
    cleared=("memory",),
)


def good_report() -> dict[str, Any]:
    return {
        "verdict": {
            "state": "hung",
            "symptom": "collective.missing_rank",
            "cause": "file_lock.held",
            "summary": "rank 1 waits for a file lock",
            "culprits": [{"rank": 1, "pid": 11, "tid": 11, "wait": "w1", "part": "culprit"}],
            "victims": [{"rank": 0, "pid": 10, "tid": 10, "wait": "w0"}],
            "chain": ["w0", "w1"],
            "cycle": [],
            "cleared": [{"suspect": "memory.oom", "because": "there is enough"}],
            "next_steps": ["kill 99"],
        },
        "waits": [
            {"id": "w0", "pid": 10, "tid": 10, "holder": None},
            {"id": "w1", "pid": 11, "tid": 11, "holder": {"pid": 99, "tid": 99, "alive": True}},
        ],
        "collectives": [{"op": "all_reduce", "missing": [1]}],
        "workload": {"ranks_missing": []},
        "memory": {"verdict": "normal"},
        "cost": {"stopped_us": {"10": 0}},
    }


def outcome(report: dict[str, Any], facts: Any = FACTS) -> Outcome:
    return judge(report, facts, MEMBERS).outcome


def test_a_report_that_holds_the_facts_is_right() -> None:
    assert judge(good_report(), FACTS, MEMBERS).reasons == ()
    assert outcome(good_report()) is Outcome.RIGHT


def test_a_foreign_holder_may_be_named_too() -> None:
    report = good_report()
    report["verdict"]["culprits"].append(
        {"rank": None, "pid": 99, "tid": 99, "wait": None, "part": "culprit"}
    )
    assert outcome(report) is Outcome.RIGHT


@pytest.mark.parametrize(
    "path",
    ["verdict.cause", "verdict.symptom", "collectives.0.missing", "verdict.victims", "verdict.culprits"],
)
def test_what_is_left_open_is_abstained(path: str) -> None:
    report = good_report()
    *folders, last = path.split(".")
    place: Any = report
    for step in folders:
        place = place[int(step)] if step.isdigit() else place[step]
    place[last] = [] if isinstance(place[last], list) else None
    assert outcome(report) is Outcome.ABSTAINED


def test_unknown_claims_nothing() -> None:
    report = good_report()
    report["verdict"].update(
        state="unknown", symptom=None, cause=None, culprits=[], victims=[], chain=[], cleared=[]
    )
    assert outcome(report) is Outcome.ABSTAINED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "running"),
        ("cause", "timer"),
        ("symptom", "lock.cycle"),
        ("cycle", ["w0", "w1"]),
        ("chain", ["w7"]),
        ("next_steps", []),
        ("summary", ""),
    ],
)
def test_another_claim_is_wrong(field: str, value: object) -> None:
    report = good_report()
    report["verdict"][field] = value
    # `running` with somebody named is worse than wrong.
    expected = Outcome.INNOCENT if value == "running" else Outcome.WRONG
    assert outcome(report) is expected


def test_a_stop_is_wrong() -> None:
    report = good_report()
    report["cost"]["stopped_us"]["10"] = 5
    assert outcome(report) is Outcome.WRONG


@pytest.mark.parametrize("part", ["culprit", "party", "absent"])
def test_naming_a_victim_is_unjust(part: str) -> None:
    report = good_report()
    named = report["verdict"]["culprits"]
    named.append({"rank": 0, "pid": 10, "tid": 10, "wait": "w0", "part": part})
    assert outcome(report) is Outcome.INNOCENT


def test_a_wrong_rank_is_wrong() -> None:
    report = good_report()
    report["verdict"]["culprits"][0]["rank"] = 0
    assert outcome(report) is Outcome.WRONG


def test_a_healthy_program_has_no_culprit() -> None:
    report = good_report()
    report["verdict"]["state"] = "idle"
    assert outcome(report, healthy("idle")) is Outcome.INNOCENT
    quiet = copy.deepcopy(report)
    quiet["verdict"].update(culprits=[], victims=[], chain=[])
    quiet["collectives"] = []
    assert outcome(quiet, healthy("idle")) is Outcome.RIGHT
    assert outcome(quiet, healthy("running")) is Outcome.WRONG


def test_parties_are_all_named_and_nobody_is_singled_out() -> None:
    facts = hung("lock.cycle", "lock.cycle", parties=("rank0", "rank1"), cycle=True)
    report = good_report()
    report["verdict"].update(symptom="lock.cycle", cause="lock.cycle", victims=[], cycle=["w0", "w1"])
    named = [
        {"rank": rank, "pid": 10 + rank, "tid": 10 + rank, "wait": f"w{rank}", "part": "party"}
        for rank in (0, 1)
    ]
    report["verdict"]["culprits"] = named
    assert outcome(report, facts) is Outcome.RIGHT
    report["verdict"]["culprits"] = named[:1]
    assert outcome(report, facts) is Outcome.ABSTAINED
    report["verdict"]["culprits"] = [{**named[0], "part": "culprit"}, named[1]]
    assert outcome(report, facts) is Outcome.WRONG


def test_facts_speak_the_language_of_the_contract() -> None:
    kinds = {kind.value for kind in Kind} | {None}
    states = {state.value for state in State}
    for case in CASES:
        assert case.facts.state <= states, case.kind
        for claimed in (case.facts.symptom, case.facts.cause):
            assert (claimed or frozenset()) <= kinds, case.kind


def test_every_kind_has_its_line_in_the_documentation() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "hangs.md").read_text().splitlines()
    for case in CASES:
        assert sum(line.startswith(f"| `{case.kind}` |") for line in lines) == 1, case.kind


def test_kinds_are_named_once_and_attach_to_their_own_members() -> None:
    kinds = [case.kind for case in CASES]
    assert len(kinds) == len(set(kinds))
    for case in CASES:
        roles = {role for program in case.programs for role in program.members}
        facts = case.facts
        named = {
            role.removesuffix("/*")
            for role in (*facts.culprit, *facts.may_name, *facts.parties, *facts.victims, *facts.chain_end)
        }
        assert set(case.attach) | named <= roles | {"launcher"}, case.kind


def test_a_table_tells_operation_ranks_and_innocents() -> None:
    collective = {
        "op": "all_reduce",
        "seq": 2,
        "group": "tp",
        "missing": [1],
        "mismatched": [],
    }
    said = {"collectives": [collective], "verdict": {}, "waits": []}
    accused = Judgement(Outcome.INNOCENT, ("names rank 3, pid 9, tid 9 (culprit)",))
    results = [
        Result("gloo-one", "rank0", Judgement(Outcome.RIGHT, ()), 1.0, 1.0, said),
        Result("gloo-two", "rank0", accused, 1.0, 1.0, None),
    ]
    assert table(results)[2:] == [
        "| `gloo-one` | all_reduce #2 of tp | right | 0 |",
        "| `gloo-two` | – | wrong | 1 |",
    ]


def test_a_table_tells_messages_and_keys_where_there_is_no_collective() -> None:
    waits = [
        {"id": "w1", "kind": "p2p", "object": {"name": "recv", "path": None, "peer_rank": 1}},
        {"id": "w2", "kind": "rendezvous", "object": {"name": "store", "path": "ready", "peer_rank": None}},
        {"id": "w3", "kind": "timer", "object": {"name": None, "path": None, "peer_rank": None}},
    ]
    said = {"collectives": [], "verdict": {"chain": ["w1", "w2", "w3"]}, "waits": waits}
    (row,) = table([Result("gloo-one", "rank0", Judgement(Outcome.ABSTAINED, ("x",)), 1.0, 1.0, said)])[2:]
    assert row == "| `gloo-one` | recv, rank 1; store: ready | withheld in part | 0 |"
