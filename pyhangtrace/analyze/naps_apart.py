"""Ranks that nap, each at a place of its own: one may nap between two questions for what another one, which sleeps
elsewhere, owes it. A job whose ranks all do the same round by the clock is idle; of these nobody can say so.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.calls import python_frames
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.threads import ThreadSample

# Libraries lie at another place in each process, but at the same one within a page.
_WITHIN_PAGE = 0xFFF


def naps_apart(scene: Scene, waits: Mapping[Key, Blocked]) -> tuple[Key, ...]:
    """Ranks that sleep by the clock, if they do so in more than one place, by rank."""
    found: dict[Key, tuple[object, ...]] = {}
    for _, pid in sorted(scene.who.pid_of_rank.items()):
        key = front(scene, waits, pid)
        sample = scene.thread(key)
        naps = key in waits and waits[key].standing is Standing.TIMER
        if naps and sample is not None and sample.stack_complete and (where := _place(sample)):
            found[key] = where
    return tuple(found) if len(set(found.values())) > 1 else ()


def _place(sample: ThreadSample) -> tuple[object, ...]:
    python = tuple((frame.function, frame.file, frame.line) for frame in python_frames(sample.frames))
    if python:
        return python
    return tuple(
        (frame.function, frame.module, (frame.address or 0) & _WITHIN_PAGE)
        for frame in sample.frames
        if frame.kind is FrameKind.NATIVE
    )
