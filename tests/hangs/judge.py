"""Compare a report with the facts of a case. Pure: works on the JSON object and the members' ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.hangs.facts import Facts
from tests.hangs.processes import Member

Report = Mapping[str, Any]


class Outcome(str, Enum):
    """How a report did. Only `RIGHT` is good; `ABSTAINED` is honest, the other two are defects."""

    RIGHT = "right"
    ABSTAINED = "abstained"
    WRONG = "wrong"
    INNOCENT = "innocent accused"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome, and every fact that does not hold."""

    outcome: Outcome
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Findings:
    accused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left_open: list[str] = field(default_factory=list)

    def claim(self, what: str, value: str | None, allowed: frozenset[str | None] | frozenset[str]) -> None:
        """A kind that was claimed: it may be withheld, but not another one than allowed."""
        if value in allowed:
            return
        wanted = " or ".join(sorted(str(one) for one in allowed))
        (self.left_open if value in (None, "unknown") else self.wrong).append(f"{what} {value}, not {wanted}")


def judge(
    report: Report,
    facts: Facts,
    members: Mapping[str, Member],
    descendants: Callable[[int], set[int]] = lambda _pid: set(),
) -> Judgement:
    """Judge one report. `descendants` gives the processes below a pid, for facts that speak of them."""
    verdict = report["verdict"]
    findings = _Findings()
    findings.claim("state", verdict["state"], facts.state)
    withheld = verdict["state"] == "unknown"
    if facts.symptom is not None and not withheld:
        findings.claim("symptom", verdict["symptom"], facts.symptom)
    if facts.cause is not None and not withheld:
        findings.claim("cause", verdict["cause"], facts.cause)
    _check_named(verdict["culprits"], facts, members, descendants, findings)
    _check_form(report, findings)
    if withheld:
        # Said nothing, so nothing more to hold against it; whether that is right depends on the case.
        return _conclude(findings)
    if facts.confidence is not None and verdict["confidence"] not in facts.confidence:
        wanted = " or ".join(sorted(facts.confidence))
        too_sure = verdict["confidence"] == "proven"
        (findings.wrong if too_sure else findings.left_open).append(f"{verdict['confidence']}, not {wanted}")
    _check_first(verdict["culprits"], facts, members, findings)
    _check_parties(report, facts, members, findings)
    _check_victims(verdict, facts, members, findings)
    _check_chain(report, facts, members, findings)
    _check_collective(report, facts, findings)
    _check_memory(report, facts, findings)
    for words in facts.says:
        if words not in verdict["summary"]:
            findings.left_open.append(f"does not say: {words}")
    return _conclude(findings)


def _conclude(findings: _Findings) -> Judgement:
    reasons = (*findings.accused, *findings.wrong, *findings.left_open)
    if findings.accused:
        return Judgement(Outcome.INNOCENT, reasons)
    if findings.wrong:
        return Judgement(Outcome.WRONG, reasons)
    return Judgement(Outcome.ABSTAINED if findings.left_open else Outcome.RIGHT, reasons)


def _check_named(
    named: list[dict[str, Any]],
    facts: Facts,
    members: Mapping[str, Member],
    descendants: Callable[[int], set[int]],
    findings: _Findings,
) -> None:
    allowed = {members[role].pid for role in (*facts.culprit, *facts.parties)}
    for role in facts.may_name:
        if role.endswith("/*"):
            allowed |= descendants(members[role[:-2]].pid)
        else:
            allowed.add(members[role].pid)
    ranks = {member.pid: member.rank for member in members.values() if member.rank is not None}
    for entry in named:
        who = f"rank {entry['rank']}, pid {entry['pid']}, tid {entry['tid']} ({entry['part']})"
        if entry["part"] == "absent" or entry["pid"] is None:
            if entry["rank"] not in facts.absent:
                findings.accused.append(f"names {who}")
        elif entry["pid"] not in allowed:
            findings.accused.append(f"names {who}")
        elif entry["rank"] not in (None, ranks.get(entry["pid"], entry["rank"])):
            findings.wrong.append(f"names {who}, but that is rank {ranks[entry['pid']]}")


def _check_parties(report: Report, facts: Facts, members: Mapping[str, Member], findings: _Findings) -> None:
    named = report["verdict"]["culprits"]
    ranks_missing = report["workload"]["ranks_missing"]
    pids = {(entry["pid"], entry["part"]) for entry in named}
    for role in facts.parties:
        if (members[role].pid, "party") not in pids:
            findings.left_open.append(f"{role} is not named as a party")
    for rank in facts.absent:
        if not any(entry["part"] == "absent" and entry["rank"] == rank for entry in named):
            findings.left_open.append(f"rank {rank} is not named as absent")
        if rank not in ranks_missing:
            findings.left_open.append(f"rank {rank} is not in ranks_missing")
    if facts.parties and any(entry["part"] == "culprit" for entry in named):
        findings.wrong.append("singles somebody out where all are parties")


def _check_first(
    named: list[dict[str, Any]], facts: Facts, members: Mapping[str, Member], findings: _Findings
) -> None:
    if not facts.culprit:
        return
    if not named:
        findings.left_open.append(f"nobody is named, not even {facts.culprit[0]}")
        return
    first = named[0]
    allowed = [members[role] for role in facts.culprit]
    if first["pid"] not in {member.pid for member in allowed}:
        findings.wrong.append(f"names pid {first['pid']} first, not {' or '.join(facts.culprit)}")
    elif first["tid"] is not None and first["tid"] not in {member.tid for member in allowed}:
        findings.wrong.append(f"names thread {first['tid']} of pid {first['pid']}")
    elif first["rank"] is None and allowed[0].rank is not None:
        findings.left_open.append(f"does not know the rank of {facts.culprit[0]}")


def _check_victims(verdict: Report, facts: Facts, members: Mapping[str, Member], findings: _Findings) -> None:
    named, victims = verdict["culprits"], verdict["victims"]
    pids = {victim["pid"] for victim in victims}
    for role in facts.victims:
        if members[role].pid not in pids:
            findings.left_open.append(f"{role} is not among the victims")
    threads = {(victim["pid"], victim["tid"]) for victim in victims}
    if named and named[0]["part"] == "culprit" and (named[0]["pid"], named[0]["tid"]) in threads:
        findings.wrong.append("the culprit is called a victim too")


def _check_chain(report: Report, facts: Facts, members: Mapping[str, Member], findings: _Findings) -> None:
    verdict = report["verdict"]
    waits = {wait["id"]: wait for wait in report["waits"]}
    chain = [waits[one] for one in (*verdict["chain"], *verdict["cycle"]) if one in waits]
    if bool(verdict["cycle"]) != facts.cycle:
        claimed = findings.wrong if verdict["cycle"] else findings.left_open
        claimed.append("claims a cycle" if verdict["cycle"] else "shows no cycle")
    if facts.holder is not None:
        holder = members[facts.holder]
        held_by = [wait["holder"] for wait in chain if wait["holder"] is not None]
        if not any(one["pid"] == holder.pid for one in held_by):
            findings.left_open.append(f"no wait of the chain is held by {facts.holder}")
    if facts.chain_end and chain:
        ends = {(members[role].pid, members[role].tid) for role in facts.chain_end}
        if (chain[-1]["pid"], chain[-1]["tid"]) not in ends:
            findings.wrong.append(f"the chain does not end with {' or '.join(facts.chain_end)}")


def _check_collective(report: Report, facts: Facts, findings: _Findings) -> None:
    collectives = report["collectives"]
    if facts.missing is not None:
        found = [one for one in collectives if set(one["missing"]) == facts.missing]
        if not found:
            claimed = [sorted(one["missing"]) for one in collectives if one["missing"]]
            kind = findings.wrong if claimed else findings.left_open
            kind.append(f"missing {claimed}, not {sorted(facts.missing)}")
        elif facts.op is not None and not any(facts.op in (one["op"] or "") for one in found):
            findings.claim("op", found[0]["op"], frozenset({facts.op}))
        elif facts.group is not None and facts.group not in [one["group"] for one in found]:
            findings.claim("group", found[0]["group"], frozenset({facts.group}))


def _check_memory(report: Report, facts: Facts, findings: _Findings) -> None:
    memory = report["memory"]
    if memory is None:
        findings.left_open.append("no word about memory")
    else:
        findings.claim("memory", memory["verdict"], facts.memory)
    suspects = [cleared["suspect"] for cleared in report["verdict"]["cleared"]]
    for prefix in facts.cleared:
        if not any(suspect.startswith(prefix) for suspect in suspects):
            findings.left_open.append(f"{prefix} is not cleared")


def _check_form(report: Report, findings: _Findings) -> None:
    """What the contract says of every report."""
    verdict = report["verdict"]
    ids = {wait["id"] for wait in report["waits"]}
    used = [*verdict["chain"], *verdict["cycle"]]
    used += [one["wait"] for one in (*verdict["culprits"], *verdict["victims"]) if one.get("wait")]
    if unknown := sorted(set(used) - ids):
        findings.wrong.append(f"speaks of waits that are not there: {unknown}")
    if verdict["state"] in ("running", "idle") and verdict["culprits"]:
        findings.accused.append(f"names somebody although the state is {verdict['state']}")
    if verdict["state"] in ("hung", "busy") and not verdict["next_steps"]:
        findings.wrong.append("gives no next step")
    if not verdict["summary"]:
        findings.wrong.append("has no summary")
    if any(report["cost"]["stopped_us"].values()):
        findings.wrong.append("stopped somebody")
