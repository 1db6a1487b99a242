"""Teams of OpenMP, by the frames of the runtimes of GNU, LLVM and Intel. They record nobody that waits would name.

The members of a team run the same outlined function, called by the runtime. One that waits is in the runtime itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter

from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame

_MODULE = attrgetter("module")


class _Library(Enum):
    RUNTIME = ("libgomp", "libomp.", "libomp5", "libiomp")
    C = ("libc.so", "libc-", "libpthread", "ld-musl")


# What the program called to wait for the whole team, and what to wait for one of it.
_MEETINGS = re.compile(
    r"^(GOMP_(barrier|parallel|(loop|sections|workshare|single_copy).*end.*|single_copy_start)|GOMP_parallel_\w+"
    r"|__kmpc_(barrier|fork_call|fork_teams|cancel_barrier|copyprivate|reduce))$"
)
_LOCKS = re.compile(
    r"^(GOMP_(critical|ordered|atomic)(_name)?_start|omp_set(_nest)?_lock"
    r"|__kmpc_(critical|critical_with_hint|ordered|set_lock|set_nest_lock))"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread is in a team. `called` is what it waits in, "" if it does not wait in the runtime.

    `region` is the outlined function (name, module) that it runs for the team, None outside of one. `leads`: the
    runtime was called by the program, which began the region; else the runtime started the thread.
    """

    called: str
    region: tuple[str, str] | None
    leads: bool

    @property
    def is_spare(self) -> bool:
        """Kept by the runtime for the next region, or done with its part of this one."""
        return self.region is None and not self.leads

    @property
    def meets(self) -> bool:
        """Whether it waits for all of the team."""
        return _MEETINGS.match(self.called) is not None

    @property
    def wants_lock(self) -> bool:
        """Whether it waits for what one of the team has."""
        return _LOCKS.match(self.called) is not None


def place(frames: Sequence[Frame]) -> Place | None:
    """Where these frames are in a team; None if no runtime of OpenMP is among them, or Python is in between."""
    if not any(map(_is_runtime, map(_MODULE, frames))):
        return None
    native = [frame for frame in frames if frame.kind is not FrameKind.KERNEL]
    libraries = [_library(frame.module) for frame in native]
    last = max(i for i, library in enumerate(libraries) if library is _Library.RUNTIME)
    if any(frame.kind is FrameKind.PYTHON for frame in native[: last + 1]):
        return None
    start = next(i for i, library in enumerate(libraries) if library is not _Library.C)
    end = start
    while end < len(native) and libraries[end] is _Library.RUNTIME:
        end += 1
    called = _function(native[end - 1]) if end > start else ""
    region = None
    for i in range(start, last):
        if libraries[i] is not _Library.RUNTIME and libraries[i + 1] is _Library.RUNTIME:
            region = (_function(native[i]), native[i].module or "")
            break
    leads = last + 1 < len(native) and libraries[last + 1] is not _Library.C
    return Place(called=called, region=region, leads=leads)


@lru_cache(maxsize=4096)
def _library(module: str | None) -> _Library | None:
    file = (module or "").rpartition("/")[2]
    return next((library for library in _Library if file.startswith(library.value)), None)


@lru_cache(maxsize=4096)
def _is_runtime(module: str | None) -> bool:
    return _library(module) is _Library.RUNTIME


def _function(frame: Frame) -> str:
    return frame.function.partition("@")[0]
