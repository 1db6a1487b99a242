"""Threads whose program is over: the interpreter, or the C library, works through what is to be done at the end.

Such a thread comes to no collective any more, so whoever waits for its rank waits in vain, unless another thread of the
process makes these calls.
"""

from __future__ import annotations

from collections.abc import Set

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import path_has, python_frames, short
from pyhangtrace.analyze.progress import SETTLED_S, STILL
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import FrameKind, Kind, WaitKind
from pyhangtrace.model.threads import ThreadSample

# Of CPython (Python/pylifecycle.c), and of the C library, where its own symbols are there.
_ENDS = frozenset({"Py_FinalizeEx", "_Py_Finalize", "Py_Finalize", "__run_exit_handlers"})
# A worker of multiprocessing leaves by os._exit, after this.
_PYTHON_ENDS = (("_exit_function", "multiprocessing/util.py"), ("_shutdown", "threading.py"))
# Waits of which the kind does not say better why they last.
_FOR_SOMEBODY = frozenset(
    {WaitKind.JOIN, WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.QUEUE, WaitKind.BARRIER}
)
_SAID = "frames of the end of the process: its program is over"


def tears_down(sample: ThreadSample) -> bool:
    """Whether a main thread is in the last steps of its process."""
    if sample.pid != sample.tid:
        return False
    if any(frame.kind is FrameKind.NATIVE and frame.function in _ENDS for frame in sample.frames):
        return True
    return any(
        short(frame.function) == name and path_has(frame.file, file)
        for frame in python_frames(sample.frames)
        for name, file in _PYTHON_ENDS
    )


def at_the_end(sample: ThreadSample, wait: Blocked) -> Blocked:
    """The wait, said to be one of tear-down, and called so if that is all that can be said of it."""
    if (
        wait.kind not in (*_FOR_SOMEBODY, WaitKind.CHILD)
        or wait.service is not None
        or not tears_down(sample)
    ):
        return wait
    cause = wait.cause if wait.kind is WaitKind.CHILD else Kind.LOCK_TEARDOWN
    return changed(wait, cause=cause, over=True, evidence=(*wait.evidence, _SAID))


def never_comes(scene: Scene, wait: Blocked | None, lively: Set[Key]) -> bool:
    """Whether a rank whose program is over cannot come to what others wait for: no thread of it is left that something
    could wake.
    """
    if wait is None or not wait.over:
        return False
    if wait.standing not in (Standing.FIRM, Standing.IDLE) or wait.progress not in STILL:
        return False
    if (wait.since_s or 0.0) < SETTLED_S:
        return False
    return all(
        key not in lively and scene.samples[key][-1].stack_complete
        for key in scene.threads_of(wait.key[0])
        if scene.services[key] is None
    )
