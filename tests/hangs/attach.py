"""Run the installed tool on a case and judge what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hangs.facts import Case, Waits
from tests.hangs.judge import Judgement, Outcome, judge
from tests.hangs.processes import Running, descendants, running, stat_fields

#: Seconds that one look may take before it counts as a hang of our own.
ATTACH_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """How one attach to one case went."""

    kind: str
    attached_to: str
    judgement: Judgement
    wall_s: float
    cpu_s: float
    report: dict[str, Any] | None


def tool() -> list[str]:
    """The command under test: HANGTRACE, else the one beside this Python."""
    return [os.environ.get("HANGTRACE") or str(Path(sys.executable).parent / "hangtrace")]


def look(pid: int, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Attach once, for JSON. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        [*tool(), "attach", str(pid), "--json", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=ATTACH_DEADLINE_S,
        check=False,
    )


def try_case(case: Case, *, turn: int = 0, options: tuple[str, ...] = ()) -> Result:
    """Start the case, attach to one of its members and judge. `turn` picks the member.

    Raises NotReached when the programs do not come to hang.
    """
    role = case.attach[turn % len(case.attach)]
    with running(case) as stage:
        member = stage.members[role]
        before = os.times()
        started = time.monotonic()
        try:
            done = look(member.pid, *options)
        except subprocess.TimeoutExpired:
            overdue = Judgement(Outcome.WRONG, (f"not done after {ATTACH_DEADLINE_S:.0f} s",))
            return Result(case.kind, role, overdue, ATTACH_DEADLINE_S, 0.0, None)
        wall = time.monotonic() - started
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        judgement, report = _judge_output(done, stage)
    return Result(case.kind, role, judgement, wall, cpu, report)


def _judge_output(
    done: subprocess.CompletedProcess[bytes], stage: Running
) -> tuple[Judgement, dict[str, Any] | None]:
    complaint = done.stderr.decode(errors="replace").strip()[-500:]
    if done.returncode not in (0, 3):
        return Judgement(Outcome.WRONG, (f"exit code {done.returncode}: {complaint}",)), None
    try:
        report = json.loads(done.stdout)
    except ValueError as problem:
        return Judgement(Outcome.WRONG, (f"no JSON ({problem}): {complaint}",)), None
    judgement = judge(report, stage.case.facts, stage.members, descendants)
    if harm := _harm_done(stage):
        return Judgement(max_outcome(judgement.outcome), (*judgement.reasons, *harm)), report
    return judgement, report


def max_outcome(outcome: Outcome) -> Outcome:
    """Who harms a target is at least wrong."""
    return outcome if outcome is Outcome.INNOCENT else Outcome.WRONG


def _harm_done(stage: Running) -> list[str]:
    """Members that are not alive any more, or that stand still although they did not before."""
    harm = []
    wanted = {role: waits for program in stage.case.programs for role, waits in program.members.items()}
    for role, member in stage.members.items():
        if wanted.get(role) is Waits.ENDED:
            continue
        fields = stat_fields(member.pid, member.tid)
        if fields is None or fields[0] in "ZX":
            harm.append(f"{role} has ended meanwhile")
        elif fields[0] in "Tt" and wanted.get(role) is not Waits.STOPPED:
            harm.append(f"{role} is left in state {fields[0]}")
    return harm
