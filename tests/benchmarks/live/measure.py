"""A job of 8 ranks x 200 threads, and the CPU time of a tool that follows it with all that it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CROWD = Path(__file__).with_name("crowd.py")
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def crowd() -> Iterator[int]:
    """The pid of a rank."""
    process = subprocess.Popen([sys.executable, str(CROWD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split()[1])
    finally:
        process.communicate(timeout=60)


def share(pid: int, seconds: float) -> float:
    """CPU over so many seconds from now on, as a share of a core."""
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    """Of a process and its children, those that live and those that it has waited for."""
    folder = Path(f"/proc/{pid}")
    own = (
        sum(int((thread / "schedstat").read_text().split()[0]) for thread in (folder / "task").iterdir())
        / 1e9
    )
    fields = (folder / "stat").read_text().rpartition(") ")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / _TICKS
    children = (folder / "task" / str(pid) / "children").read_text().split()
    return own + ended + sum(cpu_s(int(child)) for child in children)
