"""Evidence of scenes that were played, kept in the repository: what the normal suite judges without any engine.

``python -m tests.engines.recorded`` prints what is said of it, as a table; with the folder of
``python -m tests.engines --keep FOLDER`` it takes over what that has left there first.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pyhangtrace.analyze import analyze
from pyhangtrace.model.codec import pack, report_to_json, unpack
from pyhangtrace.model.evidence import Evidence
from tests.engines import venvs
from tests.engines.board import HEAD, row
from tests.engines.scenes import SCENES, Scene
from tests.engines.verdicts import Verdict, verdict
from tests.hangs.processes import Member

FOLDER = Path(__file__).parent / "recorded"
#: A bundle that is bigger stays out of the repository.
MAX_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """One scene as it was seen, and who was who."""

    scene: Scene
    evidence: Evidence
    members: Mapping[str, Member]
    wall_s: float  # that the look took
    torch: str  # what torch's own analyser said meanwhile

    def report(self) -> dict[str, Any]:
        """As JSON shows it."""
        return dict(json.loads(report_to_json(analyze(self.evidence))))


def names() -> list[str]:
    """Scenes of which there is evidence."""
    return [scene.name for scene in SCENES if (FOLDER / f"{scene.name}.hang").exists()]


def load(name: str) -> Recorded:
    """Evidence of one of `names`."""
    [scene] = [scene for scene in SCENES if scene.name == name]
    evidence = unpack((FOLDER / f"{name}.hang").read_bytes())
    ids = json.loads((FOLDER / f"{name}.members.json").read_text())
    members = {role: Member(role, pid, tid) for role, (pid, tid) in ids.items()}
    run = json.loads((FOLDER / f"{name}.run.json").read_text())
    return Recorded(scene, evidence, members, run["wall_s"], run["torch"])


def judge_again(recorded: Recorded) -> tuple[dict[str, Any], Verdict]:
    """The report that this version makes of the evidence, and how it does."""
    report = recorded.report()
    return report, verdict(report, recorded.scene, recorded.members, lambda pid: below(report, pid))


def table() -> list[str]:
    """What this version says of all that is recorded, as lines of Markdown."""
    lines = list(HEAD)
    for name in names():
        recorded = load(name)
        report, judged = judge_again(recorded)
        lines.append(row(name, report, judged, wall_s=recorded.wall_s, torch=recorded.torch))
    return lines


def below(report: Mapping[str, Any], pid: int) -> set[int]:
    """Processes of a report that descend from `pid`."""
    found = {pid}
    while more := {one["pid"] for one in report["processes"] if one["ppid"] in found} - found:
        found |= more
    return found - {pid}


def cleaned(bundle: bytes) -> bytes:
    """The same evidence without the name of the machine and the folders of who played the scene."""
    text = gzip.decompress(bundle).decode()
    host = json.loads(text)["host"]["name"]
    text = re.sub(re.escape(json.dumps(host)), '"host"', text)
    return pack(msgspec.json.decode(_without_folders(text).encode(), type=Evidence))


def _without_folders(text: str) -> str:
    for pattern, name in (
        (re.escape(str(venvs.cache())), "/opt/engines"),
        (r"/[^\" ]*(?=/tests/(?:engines|hangs)/)", "/opt/pyhangtrace"),
        (r"/[^\" ]*(?=/\.venv/bin/)", "/opt/pyhangtrace"),
        (r"/[^\" ]*/\.pyenv/versions/[^/\" ]+", "/opt/python"),
        (r"/[^\" ]*/engines-[a-z0-9_]{8}(?=/|\"|$)", "/run/server"),
        (re.escape(str(Path.home())) + "(?=/)", "/home/user"),
    ):
        text = re.sub(pattern, name, text)
    return text


def keep(played: Path) -> None:
    """Takes evidence that ``python -m tests.engines --keep`` has left into the repository."""
    FOLDER.mkdir(exist_ok=True)
    for scene in SCENES:
        source = played / f"{scene.name}.hang"
        if not source.exists():
            continue
        bundle = cleaned(source.read_bytes())
        if len(bundle) > MAX_BYTES:
            print(f"{scene.name}: {len(bundle)} bytes, left out")
            continue
        (FOLDER / source.name).write_bytes(bundle)
        for kind in ("members", "run"):
            beside = played / f"{scene.name}.{kind}.json"
            (FOLDER / beside.name).write_text(_without_folders(beside.read_text()) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        keep(Path(sys.argv[1]))
    print(*table(), sep="\n")
