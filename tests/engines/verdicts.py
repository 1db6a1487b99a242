"""What a report says of a scene against what it should: the judge of the hangs, and phase and roles. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.engines.scenes import Scene
from tests.hangs.judge import Outcome, judge
from tests.hangs.processes import Member


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a report did, part by part; `reasons` are the facts that do not hold."""

    outcome: Outcome
    state: bool
    symptom: bool
    cause: bool
    culprit: bool
    phase: bool
    roles: bool
    accused: bool  # an innocent
    reasons: tuple[str, ...]


def verdict(
    report: Mapping[str, Any],
    scene: Scene,
    members: Mapping[str, Member],
    below: Callable[[int], set[int]] = lambda _pid: set(),
) -> Verdict:
    """`below` gives the processes below a pid, for facts that speak of them."""
    facts, said = scene.facts, report["verdict"]
    judged = judge(report, facts, members, below)
    phase = (report["workload"]["phase"] or {}).get("name")
    wrong_roles = _wrong_roles(report, scene, members)
    reasons = list(judged.reasons)
    if phase not in scene.phases:
        reasons.append(f"phase {phase}, not {' or '.join(map(str, scene.phases))}")
    outcome = judged.outcome
    reasons += wrong_roles
    if outcome is Outcome.RIGHT and len(reasons) > len(judged.reasons):
        outcome = Outcome.ABSTAINED if phase is None and not wrong_roles else Outcome.WRONG
    allowed = {members[role].pid for role in facts.culprit}
    first = said["culprits"][0] if said["culprits"] else None
    return Verdict(
        outcome=outcome,
        state=said["state"] in facts.state,
        symptom=facts.symptom is None or said["symptom"] in facts.symptom,
        cause=facts.cause is None or said["cause"] in facts.cause,
        culprit=first is not None and first["pid"] in allowed
        if allowed
        else judged.outcome is not Outcome.INNOCENT,
        phase=phase in scene.phases,
        roles=not wrong_roles,
        accused=judged.outcome is Outcome.INNOCENT,
        reasons=tuple(reasons),
    )


def _wrong_roles(report: Mapping[str, Any], scene: Scene, members: Mapping[str, Member]) -> list[str]:
    processes = {process["pid"]: process for process in report["processes"]}
    wrong = []
    for role, wanted in scene.roles.items():
        member = members[role]
        process = processes.get(member.pid)
        if process is None:
            wrong.append(f"{role} (pid {member.pid}) is not part of the job")
            continue
        if process["role"] != wanted:
            wrong.append(f"{role} is called {process['role']}, not {wanted}")
        if member.rank is not None and process["rank"] != member.rank:
            wrong.append(f"{role} is called rank {process['rank']}")
    return wrong
