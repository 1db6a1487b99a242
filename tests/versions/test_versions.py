"""The same hangs under each Python on this machine: layouts, frames and names differ between versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.generated.plan import draw
from tests.generated.trial import try_plan
from tests.hangs.attach import try_case
from tests.hangs.cases import CASES
from tests.hangs.facts import Case
from tests.hangs.judge import Outcome

VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
SEEDS = (15, 35, 37)

#: Cases whose programs use what older versions lack (mmap.MAP_POPULATE).
SINCE = {"rss-illusion": (3, 10)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hangs,
    pytest.mark.root,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("version", VERSIONS),
]


def by_python(case: Case) -> bool:
    """Whether the programs of a case are Python and need nothing but its standard library."""
    words = [word for program in case.programs for word in program.argv]
    demo = any("{repository}" in value for program in case.programs for value in program.env.values())
    return "{python}" in words and not demo and not case.torch


PLAIN = tuple(case for case in CASES if by_python(case))


def interpreter(version: str) -> str:
    """Path of a Python of that version; skips the test if there is none that starts."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(kept.glob(f"{version}.*/bin/python"))]
    if (on_path := shutil.which(f"python{version}")) is not None:
        found.append(on_path)
    for path in found:
        code = "import ctypes, json, multiprocessing, sys; print(json.dumps(list(sys.version_info[:2])))"
        done = subprocess.run([path, "-c", code], capture_output=True, timeout=60, check=False)
        if done.returncode == 0 and json.loads(done.stdout) == [int(part) for part in version.split(".")]:
            return path
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.kind)
def test_the_report_holds_the_facts(case: Case, version: str) -> None:
    python = interpreter(version)
    if (since := SINCE.get(case.kind)) and tuple(map(int, version.split("."))) < since:
        pytest.skip(f"{case.kind} needs Python {since[0]}.{since[1]}")
    programs = tuple(
        replace(program, argv=tuple(python if word == "{python}" else word for word in program.argv))
        for program in case.programs
    )
    result = try_case(replace(case, programs=programs))
    verdict = (result.report or {}).get("verdict", {})
    reasons = (python, result.attached_to, *result.judgement.reasons, verdict.get("summary"))
    # An older interpreter may leave less to see: then the report may leave it open, but not guess.
    assert result.judgement.outcome in (Outcome.RIGHT, Outcome.ABSTAINED), reasons


@pytest.mark.parametrize("seed", SEEDS)
def test_made_up_jobs(seed: int, version: str) -> None:
    trial = try_plan(draw(seed, torch=False), python=interpreter(version))
    reasons = (trial.summary, *trial.judgement.reasons, trial.verdict)
    assert trial.judgement.outcome in (Outcome.RIGHT, Outcome.ABSTAINED), reasons
