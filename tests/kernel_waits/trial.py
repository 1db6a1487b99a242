"""Stage a scene, look at it once, and judge."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hangs.attach import look
from tests.hangs.facts import Case, healthy
from tests.hangs.processes import running
from tests.kernel_waits.facts import Scene
from tests.kernel_waits.judge import OBJECT, Defect, judge


@dataclass(frozen=True, slots=True)
class Trial:
    """How one look went."""

    scene: Scene
    defects: tuple[Defect, ...]
    report: dict[str, Any] | None


def attempt(scene: Scene) -> Trial:
    """One look at one scene. Raises NotReached when its programs do not come to wait."""
    case = Case(kind=scene.name, summary="", programs=scene.programs, attach=(scene.attach,), facts=healthy())
    try:
        with running(case) as stage, scene.around(stage) if scene.around else nullcontext():
            done = look(stage.members[scene.attach].pid)
            if done.returncode not in (0, 3):
                complaint = done.stderr.decode(errors="replace")[-500:]
                return Trial(scene, (Defect(OBJECT, f"exit code {done.returncode}: {complaint}"),), None)
            report = json.loads(done.stdout)
            return Trial(scene, tuple(judge(report, scene, stage.members)), report)
    finally:
        # Not those of others: scenes may be staged side by side.
        for path in scene.leaves:
            Path(path).unlink(missing_ok=True)
