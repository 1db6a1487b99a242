"""Programs to look at, and the first look that finds them where a test wants them."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyhangtrace import _native

DEADLINE_S = 30.0


@contextlib.contextmanager
def running(*command: str | Path, ready: bool = True, **options: Any) -> Iterator[int]:
    """The pid of a process, after it has printed "ready" if it does so; killed at the end."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            assert process.stdout is not None
            assert not ready or process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def until(condition: Callable[[Any], bool], pid: int, engine: Any = None, **options: Any) -> Any:
    """The first capture of a process that fulfils the condition, within the deadline."""
    engine = engine or _native.Engine()
    end = time.monotonic() + DEADLINE_S
    while True:
        [process] = engine.capture([pid], **options)
        if condition(process):
            return process
        assert time.monotonic() < end, process


def waits_in_read(process: Any) -> bool:
    """Its main thread does, at rest, and there is a stack of it."""
    thread = process["threads"][0]
    return thread["syscall"] == 0 and bool(thread["frames"]) and not thread["moved"]
