"""How soon the verdict of a job that hangs under the eyes of its user stands on the screen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.stepping import stepping_job
from tests.integration.terminals import terminal

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(400)]

ROUNDS = 5
WITHIN_S = 3.0


def test_verdict_on_the_screen(tmp_path: Path) -> None:
    took = []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            stepping_job(folder) as job,
            terminal(folder, "attach", job.ranks[0], "--live", "--no-bpf") as screen,
        ):
            screen.until("2 of 3 processes move")
            screen.until("looked ")
            job.hang()
            hung_s = time.monotonic()
            screen.until("HUNG deadlock: ranks 0-1")
            took.append(time.monotonic() - hung_s)
    print(f"\nlive, verdict on the screen {min(took):.1f} to {max(took):.1f} s after the hang, of {ROUNDS}")
    assert max(took) <= WITHIN_S
