"""A look stops, signals and writes to nobody: it succeeds where the kernel kills who tries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stacks.job import PROGRAMS, settle, started

pytestmark = pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="the filter has the call numbers of x86-64"
)


def look(what: str, pid: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAMS / "look_harmlessly.py"), what, str(pid)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_look_does_nothing_to_the_process() -> None:
    with started([[sys.executable, str(PROGRAMS / "python_waits.py")]]) as pids:
        settle(pids)
        forbidden, allowed = look("signal", pids[0]), look("look", pids[0])
    assert forbidden.returncode == -signal.SIGSYS
    assert allowed.returncode == 0, allowed.stderr
    threads, complete = map(int, allowed.stdout.split())
    assert threads > 30
    assert complete == threads
