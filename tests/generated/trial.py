"""Run the tool on a made-up job and judge what it says, thread by thread."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.generated.case import allowed, build, chain_roles, is_recorded
from tests.generated.plan import Plan
from tests.hangs.attach import ATTACH_DEADLINE_S, tool
from tests.hangs.judge import Judgement, Outcome, judge
from tests.hangs.processes import Member, descendants, running


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one attach to one made-up job went. ``evidence`` is there if it was asked for."""

    summary: str
    attached_to: str
    judgement: Judgement
    verdict: str
    wall_s: float
    program: str
    members: Mapping[str, Member]
    report: Mapping[str, Any] | None
    evidence: bytes | None


def try_plan(plan: Plan, *, python: str = "{python}") -> Trial:
    """Starts the job of a plan, attaches to one of its members and judges. `python` is the interpreter it runs by.

    Raises NotReached when the job does not come to where it should be.
    """
    with tempfile.TemporaryDirectory(prefix="generated-") as name:
        folder = Path(name)
        case = build(plan, folder, python=python)
        program = next(folder.glob("*.py")).read_text()
        role = case.attach[0]
        with running(case) as stage:
            saved = folder / "evidence.hang"
            started = time.monotonic()
            command = [*tool(), "attach", str(stage.members[role].pid), "--json", "-o", str(saved)]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=ATTACH_DEADLINE_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                done = None
            wall = time.monotonic() - started
            report = None
            if done is None:
                judgement = Judgement(Outcome.WRONG, (f"not done after {ATTACH_DEADLINE_S:.0f} s",))
            elif done.returncode not in (0, 3):
                complaint = done.stderr.decode(errors="replace").strip()[-500:]
                judgement = Judgement(Outcome.WRONG, (f"exit code {done.returncode}: {complaint}",))
            else:
                report = json.loads(done.stdout)
                judgement = judge_all(report, plan, stage.members, descendants)
            members = dict(stage.members)
        return Trial(
            summary=case.summary,
            attached_to=role,
            judgement=judgement,
            verdict=one_line(report),
            wall_s=wall,
            program=program,
            members=members,
            report=report,
            evidence=saved.read_bytes() if saved.exists() else None,
        )


def one_line(report: Mapping[str, Any] | None) -> str:
    if report is None:
        return "no report"
    verdict = report["verdict"]
    words = (verdict["state"], verdict["symptom"], verdict["cause"], verdict["confidence"])
    return f"{' / '.join(str(word) for word in words)}: {verdict['summary']}"


_ORDER = (Outcome.RIGHT, Outcome.ABSTAINED, Outcome.WRONG, Outcome.INNOCENT)


def judge_all(
    report: Mapping[str, Any],
    plan: Plan,
    members: Mapping[str, Member],
    below: Callable[[int], set[int]] = lambda _pid: set(),
) -> Judgement:
    """The best judgement over the sets of facts that are allowed."""
    found = [
        judge_threads(judge(report, facts, members, below), report, plan, members) for facts in allowed(plan)
    ]
    return min(found, key=lambda judgement: _ORDER.index(judgement.outcome))


def judge_threads(
    before: Judgement, report: Mapping[str, Any], plan: Plan, members: Mapping[str, Member]
) -> Judgement:
    """What the facts of a case cannot say: which threads may be named, and which way the chain goes."""
    if plan.late is None:
        return before
    verdict = report["verdict"]
    roles = chain_roles(plan)
    actors = [(members[role].pid, members[role].tid) for role in roles]
    ids = {members[role].pid for role in roles}
    accused, wrong = [], []
    for entry in verdict["culprits"]:
        if entry["pid"] in ids and entry["tid"] is not None and (entry["pid"], entry["tid"]) not in actors:
            main_of_actors = entry["tid"] == entry["pid"] and not is_recorded(plan)
            if not main_of_actors:
                accused.append(
                    f"names thread {entry['tid']} of pid {entry['pid']}, which is none of the chain"
                )
    ranks = {members[role].pid for role in members if role.startswith(("rank", "worker")) and "." not in role}
    waits = {wait["id"]: wait for wait in report["waits"]}
    mains = {(pid, pid) for pid in ranks}
    for name in (*verdict["chain"], *verdict["cycle"]):
        key = (waits[name]["pid"], waits[name]["tid"])
        if verdict["state"] != "unknown" and key not in actors and key not in mains:
            wrong.append(f"the chain passes thread {key[1]} of pid {key[0]}, which has no part in it")
    named = [(entry["pid"], entry["tid"]) for entry in verdict["culprits"]]
    last = max((actors.index(key) for key in named if key in actors), default=len(actors))
    for entry in verdict["victims"] if plan.back_to is None else ():
        key = (entry["pid"], entry["tid"])
        if key in actors and actors.index(key) > last:
            wrong.append(f"calls thread {key[1]} of pid {key[0]} a victim of those who wait for it")
    outcome, reasons = before.outcome, before.reasons
    if verdict["state"] == "idle" and not is_recorded(plan) and outcome is Outcome.WRONG:
        # Nothing says who should give the signal, and somebody listens: silence is as good a reading.
        outcome = Outcome.ABSTAINED
    if accused:
        outcome = Outcome.INNOCENT
    elif wrong and outcome is not Outcome.INNOCENT:
        outcome = Outcome.WRONG
    return Judgement(outcome, (*accused, *wrong, *reasons))
