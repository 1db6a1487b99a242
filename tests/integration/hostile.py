"""What the tests of the register ladder share: a program whose frames are hard to unwind, and whose truth is known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.bad_targets import await_that, started, thread_states

ROOT = Path(__file__).parents[2]
HOSTILE = ROOT / "native" / "tests" / "unwind_target.cpp"


@dataclass(frozen=True, slots=True)
class Noted:
    """A thread of the hostile program: what it blocks in, and the return addresses of its functions."""

    shape: str
    way: str
    syscall: int
    returns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hostile:
    pid: int
    program: str
    threads: dict[int, Noted]

    def all_blocked(self) -> bool:
        for tid, noted in self.threads.items():
            call = Path(f"/proc/{self.pid}/task/{tid}/syscall").read_text().split(maxsplit=1)[0]
            # A timed call that was interrupted goes on as restart_syscall.
            if call not in (str(noted.syscall), "219"):
                return False
        # In its call it may still wait for a CPU, on which it will go to sleep.
        return not set(thread_states(self.pid).values()) & {"R"}

    def is_right(self, thread: dict[str, Any]) -> bool:
        """Whether the program's own frames are those it noted, from the innermost caller on."""
        noted = self.threads[thread["tid"]]
        own = [frame[5] for frame in thread["frames"] if frame[4] == self.program]
        # Not noted: where the innermost function is, and the function that raised the signal.
        signalled = noted.shape in ("in_signal", "on_other_stack")
        expected = noted.returns[1:-1] if signalled else noted.returns[:-1]
        found = own[2:] if signalled else own[1:]
        if not thread["complete"]:
            return found == list(expected[: len(found)])
        return found == list(expected)


def build(folder: Path, *flags: str) -> Path:
    """The hostile program, built with these flags."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder.chmod(0o755)  # other users run it, too
    built = folder / "hostile"
    subprocess.run(
        [compiler, "-std=c++20", "-pthread", *flags, HOSTILE, "-o", built], check=True, timeout=100
    )
    return built


@contextmanager
def hostile(binary: Path, *prefix: str) -> Iterator[Hostile]:
    with started(*prefix, binary, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        threads = {}
        for line in iter(process.stdout.readline, b"end\n"):
            assert line, "it ended"
            tid, shape, way, _, syscall, *returns = line.decode().split()
            threads[int(tid)] = Noted(shape, way, int(syscall), tuple(int(word, 16) for word in returns))
        target = Hostile(process.pid, str(binary), threads)
        await_that("all threads blocked", target.all_blocked)
        yield target


def rung(process: Any, source: str) -> tuple[str, str]:
    """State and reason of one way, ("", "") if nothing needed it."""
    return next(((state, reason) for name, state, reason in process["rungs"] if name == source), ("", ""))


def skip_without(process: Any, source: str) -> None:
    """Skips the test where the machine has not got this way; one that fails is a matter of the test."""
    state, reason = rung(process, source)
    if state in ("refused", "absent"):
        pytest.skip(f"no {source} here: {reason}")


@contextmanager
def ready(*command: str | Path) -> Iterator[int]:
    """A program that has said that it is ready."""
    with started(*command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


def seen_by(program: str, pid: int) -> dict[str, Any]:
    """The picture that a Python program prints of the one process it is told to look at."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(pid)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [process] = json.loads(done.stdout)
    found: dict[str, Any] = process
    return found
