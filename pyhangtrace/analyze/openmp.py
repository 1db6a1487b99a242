"""Teams of OpenMP, by the frames of the runtimes of GNU, LLVM and Intel. They record nobody that waits would name.

The members of a team run the same outlined function, called by the runtime. One that waits is in the runtime itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyhangtrace.model.evidence import Frame
from pyhangtrace.model.kinds import FrameKind

_LIBRARIES = ("libgomp", "libomp.", "libomp5", "libiomp")
_C_LIBRARY = ("libc.so", "libc-", "libpthread", "ld-musl")

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
    def meets(self) -> bool:
        """Whether it waits for all of the team."""
        return _MEETINGS.match(self.called) is not None

    @property
    def wants_lock(self) -> bool:
        """Whether it waits for what one of the team has."""
        return _LOCKS.match(self.called) is not None


def place(frames: Sequence[Frame]) -> Place | None:
    """Where these frames are in a team; None if no runtime of OpenMP is among them, or Python is in between."""
    native = [frame for frame in frames if frame.kind is not FrameKind.KERNEL]
    if any(frame.kind is FrameKind.PYTHON for frame in native[: _last_of_runtime(native) + 1]):
        return None
    start = next((i for i, frame in enumerate(native) if not _is(frame, _C_LIBRARY)), len(native))
    end = start
    while end < len(native) and _is(native[end], _LIBRARIES):
        end += 1
    called = _function(native[end - 1]) if end > start else ""
    region = None
    for inner, outer in zip(native[start:], native[start + 1 :], strict=False):
        if not _is(inner, _LIBRARIES) and _is(outer, _LIBRARIES):
            region = (_function(inner), inner.module or "")
            break
    last = _last_of_runtime(native)
    if last < 0:
        return None
    leads = last + 1 < len(native) and not _is(native[last + 1], _C_LIBRARY)
    return Place(called=called, region=region, leads=leads)


def is_spare(frames: Sequence[Frame]) -> bool:
    """A thread that the runtime keeps for the next region, or that has done its part of this one."""
    found = place(frames)
    return found is not None and found.region is None and not found.leads


def _last_of_runtime(frames: Sequence[Frame]) -> int:
    return max((i for i, frame in enumerate(frames) if _is(frame, _LIBRARIES)), default=-1)


def _is(frame: Frame, names: tuple[str, ...]) -> bool:
    return (frame.module or "").rpartition("/")[2].startswith(names)


def _function(frame: Frame) -> str:
    return frame.function.partition("@")[0]
