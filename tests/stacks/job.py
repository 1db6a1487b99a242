"""A job of gloo ranks that hangs, whose threads wait in many ways: what stacks are measured and compared on."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyhangtrace import _native
from tests.hangs.processes import end_sessions

PROGRAMS = Path(__file__).parent / "programs"
START_DEADLINE_S = 120.0
SETTLE_DEADLINE_S = 30.0
SETTLE_S = 0.05
#: Threads that wake now and then by design: waiters for a GIL, keepers of connections.
RESTLESS = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that hang; `ticks` is the file in which rank 0 counts its ticks, if it was asked to."""

    pids: tuple[int, ...]
    ticks: Path | None


def compiled(source: Path, folder: Path, *flags: str) -> Path:
    """A program or library made from C or C++; skips the test where there is no compiler."""
    built = folder / f"{source.stem}{'.so' if '-shared' in flags else ''}"
    language = ("-std=c++20",) if source.suffix == ".cpp" else ("-std=c11", "-D_GNU_SOURCE")
    compiler = os.environ.get("CXX", "c++") if source.suffix == ".cpp" else os.environ.get("CC", "cc")
    command = [compiler, *language, "-Wall", "-Wextra", "-pthread", *flags, "-o", str(built), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip(f"needs a compiler ({compiler})")
    assert done.returncode == 0, done.stderr
    return built


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]], *, ready: bytes = b"ready\n", environ: Mapping[str, str] | None = None
) -> Iterator[tuple[int, ...]]:
    """Processes whose output has come to `ready`, each a session of its own; killed at the end with all below."""
    with contextlib.ExitStack() as cleanup:
        processes: list[subprocess.Popen[bytes]] = []
        cleanup.callback(end_sessions, processes)
        log = cleanup.enter_context(tempfile.TemporaryFile())
        settings = {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"}
        for command in commands:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # stays open
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **settings, **(environ or {})},
                start_new_session=True,
            )
            assert process.stdout is not None
            cleanup.callback(process.stdout.close)
            processes.append(process)
        deadline = time.monotonic() + START_DEADLINE_S
        for process in processes:
            if not _says(ready, process, deadline):
                log.seek(0)
                raise AssertionError(f"{process.args} is not ready: {log.read()[-3000:].decode()}")
        yield tuple(process.pid for process in processes)


def _says(ready: bytes, process: subprocess.Popen[bytes], deadline: float) -> bool:
    assert process.stdout is not None
    said = b""
    while not said.endswith(ready):
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        part = os.read(process.stdout.fileno(), 4096)
        if not part:
            return False
        said += part
    return True


@contextlib.contextmanager
def hung_job(*, world: int = 8, further: int = 0, ticking: bool = False) -> Iterator[Job]:
    """Ranks with some 47 threads each, and `further` ones; on entry all of them wait."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stacks-")))
        library = compiled(PROGRAMS / "waits.cpp", folder, "-O2", "-shared", "-fPIC")
        ticks = folder / "ticks" if ticking else None
        if ticks is not None:
            ticks.touch()
        common = (str(world), str(folder / "store"), str(library), str(further))
        commands = [
            (
                sys.executable,
                str(PROGRAMS / "rank.py"),
                str(rank),
                *common,
                str(ticks) if ticks and rank == 0 else "",
            )
            for rank in range(world)
        ]
        pids = stack.enter_context(started(commands))
        settle(pids)
        yield Job(pids, ticks)


def settle(pids: Sequence[int]) -> None:
    """Returns when no more than a few threads have moved for a while."""
    deadline = time.monotonic() + SETTLE_DEADLINE_S
    before = _native.thread_counters(pids)
    while True:
        time.sleep(SETTLE_S)
        now = _native.thread_counters(pids)
        if len(now) == len(before) and len(set(now) - set(before)) <= RESTLESS * len(now):
            return
        assert time.monotonic() < deadline, f"still moving: {set(now) - set(before)}"
        before = now
