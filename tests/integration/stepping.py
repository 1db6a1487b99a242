"""Starts `targets/stepping_job.py` and tells it what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).with_name("targets") / "stepping_job.py"


class SteppingJob:
    """`ranks` are the pids of the ranks that work now."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.ranks = self._told_ranks()

    def _said(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def _told_ranks(self) -> list[int]:
        word, *pids = self._said()
        assert word == "ranks"
        return [int(pid) for pid in pids]

    def _tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hang(self) -> None:
        """On return both ranks are at the lock that they will never get."""
        self._tell("hang")
        assert self._said() == ["hanging"]

    def restart(self) -> None:
        self._tell("restart")
        self.ranks = self._told_ranks()

    def restart_hung(self) -> None:
        """The same for ranks that hang."""
        self._tell("kill")
        self.ranks = self._told_ranks()

    def end(self) -> None:
        self._tell("end")
        assert self.process.wait(timeout=20) == 0

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def stepping_job(folder: Path) -> Iterator[SteppingJob]:
    job = SteppingJob(folder)
    try:
        yield job
    finally:
        job.close()
