"""How the probe process is started, and what it is asked for."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE_PARENT = str(Path(__file__).parents[2])
# Isolated and without site-packages: the child needs the standard library and our own package only, and must not
# import what happens to lie in the current directory, since it runs as root.
_START = (
    "import sys; sys.path.append(sys.argv[1]); from pyhangtrace.probes.child import main; main(sys.argv[2:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One window.

    `program` is the BPF source to run: "window" (with `calls`), "activity", or "calls" (with `places` and `sites`, the
    values of `calls.Place` and `calls.Site`). `wants` is what of it, as that says. `waits`: it counts when it is told
    to. `parent` is the process with which the child ends.
    """

    pids: tuple[int, ...]
    window_s: float
    max_threads: int
    calls: tuple[str, ...] = ("futex",)
    program: str = "window"
    wants: tuple[str, ...] = ()
    long_wait_ns: int = 0
    waits: bool = False
    places: tuple[tuple[str, int, int], ...] = ()
    sites: tuple[tuple[int, int, int, int, bool], ...] = ()
    parent: int

    def command(self) -> list[str]:
        """The command line of the child process."""
        return [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _START,
            _PACKAGE_PARENT,
            json.dumps(dataclasses.asdict(self)),
        ]


def request(
    pids: Sequence[int],
    *,
    window_s: float,
    max_threads: int,
    calls: Sequence[str] = ("futex",),
    program: str = "window",
    wants: Sequence[str] = (),
    long_wait_ns: int = 0,
    waits: bool = False,
    places: Sequence[tuple[str, int, int]] = (),
    sites: Sequence[tuple[int, int, int, int, bool]] = (),
) -> Request:
    """A request of this process."""
    return Request(
        pids=tuple(pids),
        window_s=window_s,
        max_threads=max_threads,
        calls=tuple(calls),
        program=program,
        wants=tuple(wants),
        long_wait_ns=long_wait_ns,
        waits=waits,
        places=tuple(places),
        sites=tuple(sites),
        parent=os.getpid(),
    )


def parse(text: str) -> Request:
    """The other side of `command`."""
    values: dict[str, Any] = json.loads(text)
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Request(**{**values, **lists})
