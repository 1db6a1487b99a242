"""Made-up /proc trees, and waiting for real children to be where a test wants them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyhangtrace.collect.threads import read_thread
from pyhangtrace.model.threads import ThreadSample

DEADLINE_S = 30.0


def stat_line(
    pid: int,
    comm: str = "python",
    *,
    state: str = "S",
    ppid: int = 1,
    start: int = 1000,
    flags: int = 0,
    exit_code: int = 0,
    threads: int = 1,
) -> str:
    """A line of /proc/PID/stat."""
    middle = f"{ppid} {pid} {pid} 0 -1 {flags} 11 0 12 0 5 6 0 0 20 0 {threads} 0 {start}"
    return f"{pid} ({comm}) {state} {middle} " + " ".join(["0"] * 29) + f" {exit_code}\n"


def write(root: Path, files: dict[str, str | bytes]) -> None:
    """Files of a tree, by path below `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


class Memory:
    """A made-up process's memory: pieces that tests put there and may change, and nothing between them."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytearray] = {}
        self._next = 0x4000_0000

    def put(self, content: bytes, address: int | None = None) -> int:
        """Adds a piece, by itself behind the last one that was, and with a gap. Returns its address."""
        if address is None:
            address, self._next = self._next, self._next + len(content) + 0x1000 & ~0xFF
        self.pieces[address] = bytearray(content)
        return address

    def read(self, address: int, size: int) -> bytes | None:
        """What lies there, or None unless one piece has all of it."""
        for start, content in self.pieces.items():
            if start <= address and address + size <= start + len(content):
                return bytes(content[address - start : address - start + size])
        return None


@contextmanager
def program(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has printed `ready` (arguments after it are in `sys.argv`)."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("ready"), "the program did not get there"
        yield child
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def blocked(pid: int, condition: Callable[[ThreadSample], bool]) -> ThreadSample:
    """The main thread's sample, once it is blocked as it should."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        sample = read_thread(pid, pid)
        assert sample is not None, "the program is gone"
        if sample.syscall is not None and condition(sample):
            return sample
        os.sched_yield()
    raise AssertionError(f"not blocked as expected: {read_thread(pid, pid)}")
