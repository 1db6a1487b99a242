"""Look at a scene with the installed tool, judge what it says, and keep the evidence."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines import venvs
from tests.engines.recorded import below
from tests.engines.scenes import Scene
from tests.engines.stage import Played, harm_done, members_as_json, played
from tests.engines.verdicts import Verdict, verdict
from tests.hangs.attach import tool

#: Seconds for the command; on a machine that others keep busy, to start Python alone takes a while.
ATTACH_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one look at one scene. `torch` is what torch's own analyser says of the recorders' dumps."""

    scene: Scene
    verdict: Verdict
    wall_s: float
    cpu_s: float
    started_s: float
    report: dict[str, Any]
    text: str
    torch: str


def try_scene(scene: Scene, *, keep: Path | None = None) -> Result:
    """Plays the scene, attaches to its member once, judges. `keep`: folder for evidence, report, log, who is who.

    Raises NotReached and NoEngine; AssertionError where the tool fails or harms the server.
    """
    with played(scene) as stage, tempfile.TemporaryDirectory(prefix="engines-out-") as scratch:
        folder = keep or Path(scratch)
        stem = folder / scene.name
        dumps = Path(scratch) / "dumps"
        files = [f"{stem}.{suffix}" for suffix in ("hang", "json", "txt")]
        command = [*tool(), "attach", str(stage.members[scene.attach].pid)]
        for file in files:
            command += ["-o", file]
        before, started = os.times(), time.monotonic()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ATTACH_DEADLINE_S, check=False
        )  # fmt: skip
        wall, after = time.monotonic() - started, os.times()
        assert done.returncode in (0, 3), done.stderr
        harm = [] if scene.ends else harm_done(stage)
        assert not harm, harm
        report = json.loads(Path(files[1]).read_text())
        Path(f"{stem}.members.json").write_text(members_as_json(stage.members))
        if keep:
            Path(f"{stem}.log").write_bytes(stage.log.read_bytes())
        said = _torch_says(stage, dumps) if not scene.ends else "no dump: the server has ended"
        if keep:
            run = {"wall_s": round(wall, 1), "torch": said}
            Path(f"{stem}.run.json").write_text(json.dumps(run, indent=1))
        return Result(
            scene=scene,
            verdict=verdict(report, scene, stage.members, lambda pid: below(report, pid)),
            wall_s=wall,
            cpu_s=after.children_user + after.children_system - before.children_user - before.children_system,
            started_s=stage.started_s,
            report=report,
            text=Path(files[2]).read_text(),
            torch=said,
        )


def _torch_says(stage: Played, dumps: Path) -> str:
    """torch's own analyser on the same ranks, of dumps that are written for it."""
    pid = str(stage.members[stage.scene.attach].pid)
    wrote = subprocess.run(
        [*tool(), "attach", pid, "--json", "--fr-dump", str(dumps)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ATTACH_DEADLINE_S,
        check=False,
    )
    if not dumps.is_dir() or not any(dumps.iterdir()):
        return f"no dump: {(wrote.stderr.strip().splitlines() or ['nothing was recorded'])[-1]}"
    python = str(venvs.python(stage.scene.engine))
    command = [python, "-m", "torch.distributed.flight_recorder.fr_trace", str(dumps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    # It repeats itself for each operation of the ring.
    return "\n".join(words[:40]) or "(nothing)"
