"""Does a thread still move? Two looks compared, or one that says how long it has been asleep.

A timed wait that ran out and was taken up again at the same place on the same object is the same wait: its
thread ran, but made no progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from pyhangtrace.analyze.calls import path_has, python_frames
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

# Asleep this long excludes whatever used to move every second or so; a straggler or a request loop shows before.
SETTLED_S = 3.0

# A waiter for the GIL runs some 20 microseconds each 5 ms.
_GIL_WAITER_SHARE = 0.1
_GIL_WAITER_WAKES_S = 0.005

# A wait has one length, whenever one looks: a share of it, or what clocks that are read one after the other differ by.
_TIMEOUT_BLUR = 0.1
TIMEOUT_BLUR_S = 0.05
# On a busy machine more passes between the reading of the one and the other, now and then.
_ALIKE = 0.75
# So often at the least a wait must have run out, before it says something that nobody ended it in between; and of so
# many times it may be on the CPU once more, for the scheduler's reasons.
_RAN_OUT = 3
_WAKES_APART = 4

# States of a thread that is stopped, and of one that has ended.
STOPPED = ("T", "t")
DEAD = ("Z", "X", "x")
_NEVER_RUNS = frozenset((*STOPPED, *DEAD))


class Progress(str, Enum):
    """What became of a thread between the looks."""

    UNMOVED = "unmoved"
    REARMED = "re-armed"
    MOVING = "moving"
    RUNNING = "running"
    UNSEEN = "unseen"  # one look only, or no counters: nothing can be said


# It went on between the looks, and it surely did not; UNSEEN is neither. (Tuples: members are the same objects.)
GOES_ON = (Progress.MOVING, Progress.RUNNING)
STILL = (Progress.UNMOVED, Progress.REARMED)


def in_place(found: Progress) -> Progress:
    """Of a wait that asks again and again: whoever goes on is in it at the same place."""
    return Progress.REARMED if found in GOES_ON else found


def is_ready(sample: ThreadSample) -> bool:
    """On the CPU, or ready for it."""
    return sample.state == "R" or sample.running


def progress(samples: Sequence[ThreadSample], times: Sequence[float]) -> Progress:
    """Compares the samples of one thread (in order of time, at least one)."""
    first, last = samples[0], samples[-1]
    if last.state in _NEVER_RUNS:
        return Progress.UNMOVED if all(sample.state == last.state for sample in samples) else Progress.MOVING
    if is_ready(last) and gil_wait(samples, times) is None:
        return Progress.RUNNING
    elapsed = times[-1] - times[0]
    # A machine that stood still for a while makes sleeps look longer than they are: counters know better.
    same_counters = (first.run_ns, first.slices) == (last.run_ns, last.slices)
    if same_counters and last.asleep_for_s is not None and last.asleep_for_s >= max(elapsed, SETTLED_S):
        return Progress.UNMOVED
    if len(samples) == 1:
        return Progress.MOVING if last.moved and not waits_for_gil(last) else Progress.UNSEEN
    # Every thread has run once: zeros are a kernel that does not count.
    if not first.run_ns and not first.slices:
        return Progress.UNSEEN if same_place(samples) else Progress.MOVING
    if same_counters:
        return Progress.UNMOVED
    if gil_wait(samples, times) is not None:
        return Progress.REARMED
    if waits_for_gil(last) and not _only_waits_for_gil(samples, elapsed):
        return Progress.MOVING
    if same_place(samples) and (_times_out_within(last, elapsed) or was_due(first, elapsed)):
        return Progress.REARMED
    return Progress.MOVING


def only_timed_out(samples: Sequence[ThreadSample], times: Sequence[float]) -> bool:
    """Whether a thread that waits at one place again and again ran only when its time was over.

    One that is woken in between, since what it waits for was let go and taken again, runs more often than that, and
    has slept for less than has passed of its wait.
    """
    first, last = samples[0], samples[-1]
    lengths = sorted(sample.timeout_s for sample in samples if sample.timeout_s is not None)
    if not lengths or not same_place(samples):
        return False
    if first.remaining_s is None or last.remaining_s is None or first.slices is None or last.slices is None:
        return False
    length = lengths[len(lengths) // 2]
    blur = max(TIMEOUT_BLUR_S, _TIMEOUT_BLUR * length)
    alike = sum(length - each <= blur for each in lengths)
    if length <= 0 or alike < _ALIKE * len(samples):
        return False
    # By how much later the wait that was seen last is to run out than the first one.
    later_s = (times[-1] + last.remaining_s) - (times[0] + first.remaining_s)
    ran_out = round(later_s / length)
    return ran_out >= _RAN_OUT and last.slices - first.slices <= ran_out + ran_out // _WAKES_APART


def gil_wait(samples: Sequence[ThreadSample], times: Sequence[float]) -> ThreadSample | None:
    """The newest sample that shows a thread waiting for the GIL, if that is all it did.

    A waiter wakes every 5 ms to look at the clock, so one look in many finds it on the CPU. Who got the GIL and
    waits for it again was on the CPU more often, or longer, or has come to another line meanwhile.
    """
    waiting = [sample for sample in samples if waits_for_gil(sample)]
    if not waiting or samples[-1].holds_gil:
        return None
    if len(waiting) < len(samples) and (samples[0].run_ns is None or samples[-1].run_ns is None):
        return None
    return waiting[-1] if _only_waits_for_gil(samples, times[-1] - times[0]) else None


def _only_waits_for_gil(samples: Sequence[ThreadSample], elapsed: float) -> bool:
    """Whether a thread that waits for the GIL now cannot have had it since the first look, as far as it shows."""
    first, last = samples[0], samples[-1]
    if len({lines(sample) for sample in samples}) > 1:
        return False
    ran_s = ((last.run_ns or 0) - (first.run_ns or 0)) / 1e9
    # Twice a wake-up: the mutex beside the GIL may be taken just then; and some for the ends of the time.
    wakes = 2 * elapsed / _GIL_WAITER_WAKES_S + 10
    return ran_s <= _GIL_WAITER_SHARE * elapsed and (last.slices or 0) - (first.slices or 0) <= wakes


def lines(sample: ThreadSample) -> tuple[tuple[str, int | None], ...]:
    """Where its Python code stands, innermost first."""
    return tuple((frame.function, frame.line) for frame in python_frames(sample.frames))


def same_place(samples: Sequence[ThreadSample]) -> bool:
    """Whether all samples show the same call at the same place on the same object."""
    return len({place(sample) for sample in samples}) == 1


def place(sample: ThreadSample) -> tuple[object, ...]:
    """The call, the object, and where in the code: equal for one wait that is taken up again."""
    stack = tuple((frame.function, frame.file, frame.line) for frame in python_frames(sample.frames))
    native = () if stack else tuple(_native(sample.frames))
    # A condition of Python makes a lock of its own for each time that one waits for it.
    fresh = bool(stack) and stack[0][0].rpartition(".")[2] == "wait" and path_has(stack[0][1], "threading.py")
    word = sample.lock.uaddr if sample.lock is not None and not fresh else None
    return sample.syscall, word, sample.io_fds, stack, native


def _native(frames: Sequence[Frame]) -> list[str]:
    return [frame.function or hex(frame.address or 0) for frame in frames if frame.kind is FrameKind.NATIVE]


def waits_for_gil(sample: ThreadSample) -> bool:
    """Whether it is seen in a wait for the GIL."""
    lock = sample.lock
    return lock is not None and lock.kind == "gil" and not sample.holds_gil


def was_due(sample: ThreadSample, elapsed: float) -> bool:
    """Whether the wait seen first had to run out before the last look."""
    if sample.timeout_s is None or sample.asleep_for_s is None:
        return False
    left_s = sample.timeout_s - sample.asleep_for_s
    return min(left_s, sample.remaining_s or left_s) <= elapsed + TIMEOUT_BLUR_S


def _times_out_within(sample: ThreadSample, elapsed: float) -> bool:
    length = sample.timeout_s if sample.timeout_s is not None else sample.remaining_s
    if length is not None:
        return length <= elapsed * 1.5 + 0.1
    return sample.lock is not None and sample.lock.timeout
