"""A terminal in which `hangtrace` runs, and what is on its screen."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace.collect.procfs import numbers
from tests.integration.bad_targets import await_that

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Terminal:
    """A terminal of tmux in which a command runs, 80 x 24, with a server of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._server = f"hangtrace-{os.getpid()}-{time.monotonic_ns()}"
        self._folder = folder
        self._exit = folder / "exit"
        line = " ".join(command) + f"; echo $? > {self._exit}; exec sleep 1000"
        self._tmux(
            "-f", os.devnull, "new-session", "-d", "-x", "80", "-y", "24", "-s", "live", "-c", str(ROOT), line
        )

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._server, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "live")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", "-t", "live", *keys)

    def until(self, words: str, seconds: float = PATIENCE_S) -> str:
        """The screen that has these words: the next one may have others."""
        shown = ""

        def there() -> bool:
            nonlocal shown
            shown = self.screen()
            return words in shown

        await_that(words, there, deadline_s=seconds)
        return shown

    def exit_code(self) -> int:
        await_that("the end", lambda: self._exit.exists() and self._exit.read_text())
        return int(self._exit.read_text())

    def below(self) -> int:
        """The command that runs in it."""
        (child,) = below(int(self._tmux("display-message", "-p", "-t", "live", "#{pane_pid}")))[:1]
        return child

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")


@contextlib.contextmanager
def terminal(folder: Path, *arguments: object) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    pytest.importorskip("textual")
    command = [sys.executable, "-m", "pyhangtrace", *map(str, arguments)]
    shown = Terminal(command, folder)
    try:
        yield shown
    finally:
        shown.close()


def below(pid: int) -> list[int]:
    """Processes that this one has started, and those that they have."""
    found = []
    for tid in numbers(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{tid}/children").read_text().split():
                found += [int(child), *below(int(child))]
    return found
