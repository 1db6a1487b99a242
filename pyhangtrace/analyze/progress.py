"""Does a thread still move? Two looks compared, or one that says how long it has been asleep.

A timed wait that ran out and was taken up again at the same place on the same object is the same wait: its
thread ran, but made no progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from pyhangtrace.analyze.calls import python_frames
from pyhangtrace.model.evidence import Frame, ThreadSample
from pyhangtrace.model.kinds import FrameKind

# Asleep this long excludes whatever used to move every second or so; a straggler or a request loop shows before.
SETTLED_S = 3.0

# A waiter for the GIL runs some 20 microseconds each 5 ms.
_GIL_WAITER_SHARE = 0.1
_GIL_WAITER_WAKES_S = 0.005

_STOPPED = ("T", "t")
_DEAD = ("Z", "X", "x")


class Progress(str, Enum):
    """What became of a thread between the looks."""

    UNMOVED = "unmoved"
    REARMED = "re-armed"
    MOVING = "moving"
    RUNNING = "running"
    UNSEEN = "unseen"  # one look only, or no counters: nothing can be said


def progress(samples: Sequence[ThreadSample], times: Sequence[float]) -> Progress:
    """Compares the samples of one thread (in order of time, at least one)."""
    first, last = samples[0], samples[-1]
    if last.state in _STOPPED or last.state in _DEAD:
        return Progress.UNMOVED if all(sample.state == last.state for sample in samples) else Progress.MOVING
    waits_for_gil = gil_wait(samples, times) is not None
    if (last.state == "R" or last.running) and not waits_for_gil:
        return Progress.RUNNING
    elapsed = times[-1] - times[0]
    if last.asleep_for_s is not None and last.asleep_for_s >= max(elapsed, SETTLED_S):
        return Progress.UNMOVED
    if len(samples) == 1:
        return Progress.UNSEEN
    # Every thread has run once: zeros are a kernel that does not count.
    if not first.run_ns and not first.slices:
        return Progress.UNSEEN if same_place(samples) else Progress.MOVING
    if (first.run_ns, first.slices) == (last.run_ns, last.slices):
        return Progress.UNMOVED
    if waits_for_gil:
        return Progress.REARMED
    if _waits_for_gil(last) and not _just_waits_for_gil(samples, elapsed):
        return Progress.MOVING
    if same_place(samples) and (_times_out_within(last, elapsed) or _was_due(first, elapsed)):
        return Progress.REARMED
    return Progress.MOVING


def gil_wait(samples: Sequence[ThreadSample], times: Sequence[float]) -> ThreadSample | None:
    """The newest sample that shows a thread waiting for the GIL, if that is all it did.

    A waiter wakes every 5 ms to look at the clock, so one look in many finds it on the CPU. Who got the GIL and
    waits for it again was on the CPU more often, or longer, or has come to another line meanwhile.
    """
    waiting = [sample for sample in samples if _waits_for_gil(sample)]
    if not waiting or samples[-1].holds_gil:
        return None
    if len(waiting) < len(samples) and (samples[0].run_ns is None or samples[-1].run_ns is None):
        return None
    return waiting[-1] if _just_waits_for_gil(samples, times[-1] - times[0]) else None


def _just_waits_for_gil(samples: Sequence[ThreadSample], elapsed: float) -> bool:
    """Whether a thread that waits for the GIL now cannot have had it since the first look, as far as it shows."""
    first, last = samples[0], samples[-1]
    stacks = [
        tuple((frame.function, frame.line) for frame in python_frames(sample.frames)) for sample in samples
    ]
    if len(set(stacks)) > 1:
        return False
    ran_s = ((last.run_ns or 0) - (first.run_ns or 0)) / 1e9
    # Twice a wake-up: the mutex beside the GIL may be taken just then; and some for the ends of the time.
    wakes = 2 * elapsed / _GIL_WAITER_WAKES_S + 10
    return ran_s <= _GIL_WAITER_SHARE * elapsed and (last.slices or 0) - (first.slices or 0) <= wakes


def same_place(samples: Sequence[ThreadSample]) -> bool:
    """Whether all samples show the same call at the same place on the same object."""
    return len({_place(sample) for sample in samples}) == 1


def _place(sample: ThreadSample) -> tuple[object, ...]:
    stack = tuple((frame.function, frame.file, frame.line) for frame in python_frames(sample.frames))
    native = () if stack else tuple(_native(sample.frames))
    return sample.syscall, sample.lock.uaddr if sample.lock else None, sample.io_fds, stack, native


def _native(frames: Sequence[Frame]) -> list[str]:
    return [frame.function or hex(frame.address or 0) for frame in frames if frame.kind is FrameKind.NATIVE]


def _waits_for_gil(sample: ThreadSample) -> bool:
    return sample.lock is not None and sample.lock.kind == "gil" and not sample.holds_gil


def _was_due(sample: ThreadSample, elapsed: float) -> bool:
    """Whether the wait seen first had to run out before the last look."""
    if sample.timeout_s is None or sample.asleep_for_s is None:
        return False
    return sample.timeout_s - sample.asleep_for_s <= elapsed


def _times_out_within(sample: ThreadSample, elapsed: float) -> bool:
    length = sample.timeout_s if sample.timeout_s is not None else sample.remaining_s
    if length is not None:
        return length <= elapsed * 1.5 + 0.1
    return sample.lock is not None and sample.lock.timeout
