"""Other tools that show stacks: how they are called, and what a call takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool and its command line for one process."""

    name: str
    command: Callable[[int], tuple[str, ...]]

    def missing(self) -> str | None:
        """Why it cannot run here."""
        return None if shutil.which(self.command(0)[0]) else f"{self.name} is not installed"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run over one process took, and what it printed."""

    wall_s: float
    cpu_s: float
    memory: int
    output: str


def beside_python(name: str) -> str:
    """A program of the environment that runs us."""
    return str(Path(sys.executable).parent / name)


PY_SPY = Peer(
    "py-spy dump --native", lambda pid: (beside_python("py-spy"), "dump", "--native", "--pid", str(pid))
)
PYSTACK = Peer(
    "pystack --native-all",
    lambda pid: (beside_python("pystack"), "remote", "--native-all", "--no-color", str(pid)),
)
EU_STACK = Peer("eu-stack", lambda pid: ("eu-stack", "-n", "0", "-p", str(pid)))
GDB = Peer(
    "gdb thread apply all bt",
    lambda pid: ("gdb", "-nx", "-batch", "-p", str(pid), "-ex", "set width 0", "-ex", "thread apply all bt"),
)
PEERS = (PY_SPY, PYSTACK, EU_STACK, GDB)


def run(peer: Peer, pid: int) -> Run:
    """One run over one process.

    Raises: AssertionError if it fails or does not end.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        peer.command(pid),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", "DEBUGINFOD_URLS": ""},
        start_new_session=True,
    )
    assert process.stdout is not None
    output = process.stdout.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    # eu-stack also fails when one thread ended meanwhile.
    assert process.returncode == 0 or peer is EU_STACK, output[-2000:]
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output)
