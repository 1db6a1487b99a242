"""Which samples of a thread tell what it waits for, and what they tell of one another.

Who naps between two questions, or takes a timed wait up again, is met on the CPU now and then, on a crowded machine
quite often, and what was read of it while it was awake is of two moments. Such a sample says nothing of its wait that
another one, which met it asleep, does not say better; and the nap of which only some could be read is one nap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyhangtrace.analyze.calls import has_stack, in_libc, python_frames
from pyhangtrace.analyze.progress import TIMEOUT_BLUR_S, is_ready, lines, place, waits_for_gil, was_due
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

# To take a wait up again needs no more CPU than this, or what it needed the other times.
_TAKES_UP_S = 0.001
_TAKES_UP_SHARE = 0.005
_AS_BEFORE = 3.0
_AT_MOST = 0.1  # who takes more of the time works in between
# Calls that nothing but the clock ends.
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})


def completed(samples: Sequence[ThreadSample], calls: Mapping[int, str]) -> list[ThreadSample]:
    """With how long a nap is, and what its loop asks for, from the nearest sample that shows it at the same place.

    Both are read after the stack: who woke meanwhile lacks them.
    """
    result = list(samples)
    if len(samples) < 2 or not any(map(_may_lack, samples)):
        return result
    places = [place(sample) for sample in samples]
    for index, sample in enumerate(samples):
        others = [each for each in range(len(samples)) if each != index and places[each] == places[index]]
        others.sort(key=lambda each: abs(each - index))
        timed = [each for each in others if _same_nap(sample, samples[each], calls)]
        length = next(
            (samples[each].timeout_s for each in timed if samples[each].timeout_s is not None), None
        )
        if sample.timeout_s is None and sample.lock is None and length is not None:
            result[index] = replace(result[index], timeout_s=length)
        asked = next((samples[each] for each in others if samples[each].polls_for is not None), None)
        if sample.polls_for is None and asked is not None:
            result[index] = replace(
                result[index], polls_for=asked.polls_for, polled=asked.polled, nap_unread=False
            )
    return result


def _may_lack(sample: ThreadSample) -> bool:
    return (
        sample.state == "S"
        and sample.syscall is not None
        and (sample.timeout_s is None or not sample.polls_for)
    )


def _same_nap(one: ThreadSample, other: ThreadSample, calls: Mapping[int, str]) -> bool:
    """Whether the length of the one is that of the other: of a call that always has one, or has the same arguments."""
    return one.args == other.args or _naps(one, calls)


def at_rest(
    samples: Sequence[ThreadSample], times: Sequence[float], calls: Mapping[int, str]
) -> tuple[int, ...]:
    """Which samples of one thread tell what it waits for; not those that met it when its time was over, and it only
    takes up its wait again. There must be two others.
    """
    anchor = next((index for index, sample in enumerate(samples) if _rests(sample, calls)), None)
    if anchor is None:
        return tuple(range(len(samples)))
    used = _usual(samples, times, calls)
    kept = [
        index
        for index in range(anchor)
        if not _takes_up(samples[anchor], samples[index], times[anchor] - times[index], used, earlier=True)
    ]
    kept.append(anchor)
    for index in range(anchor + 1, len(samples)):
        before = kept[-1]
        elapsed = times[index] - times[before]
        if not (_rests(samples[before], calls) and _takes_up(samples[before], samples[index], elapsed, used)):
            kept.append(index)
    return tuple(kept) if len(kept) > 1 else tuple(range(len(samples)))


def in_passing(samples: Sequence[ThreadSample], times: Sequence[float], calls: Mapping[int, str]) -> int:
    """How many of the newest samples in a row met a thread as it took up its wait again, as others show it."""
    found = [index for index, sample in enumerate(samples) if _rests(sample, calls)]
    if not found or (found[-1] == len(samples) - 1 and len(samples) > 2):
        return 0
    used = _usual(samples, times, calls)
    if found[-1] == len(samples) - 1:
        early = _takes_up(samples[-1], samples[0], times[-1] - times[0], used, earlier=True)
        return 1 if len(samples) == 2 and early else 0
    last = found[-1]
    later = range(last + 1, len(samples))
    met = all(_takes_up(samples[last], samples[index], times[index] - times[last], used) for index in later)
    return len(later) if met else 0


def _rests(sample: ThreadSample, calls: Mapping[int, str]) -> bool:
    """Asleep until its time is over at the latest, by all that was read of it."""
    if sample.state != "S" or sample.running:
        return False
    if sample.lock is not None:
        return sample.lock.timeout and not waits_for_gil(sample)
    return has_stack(sample) and (sample.timeout_s is not None or _naps(sample, calls))


def _naps(sample: ThreadSample, calls: Mapping[int, str]) -> bool:
    return sample.syscall is not None and calls.get(sample.syscall) in _SLEEPS


def _usual(samples: Sequence[ThreadSample], times: Sequence[float], calls: Mapping[int, str]) -> float:
    """The share of the time for which a thread is on the CPU from one of its naps to another one."""
    naps = [index for index, sample in enumerate(samples) if _rests(sample, calls) and sample.lock is None]
    if len(naps) < 2:
        return 0.0
    first, last = naps[0], naps[-1]
    before, after = samples[first].run_ns, samples[last].run_ns
    if before is None or after is None or times[last] <= times[first]:
        return 0.0
    return max(0.0, (after - before) / 1e9 / (times[last] - times[first]))


def _takes_up(
    waits: ThreadSample, other: ThreadSample, elapsed: float, used: float, *, earlier: bool = False
) -> bool:
    """Whether a sample meets a thread between two rounds of the wait that another one shows; `earlier`: before it."""
    if waits.run_ns is None or other.run_ns is None:
        return False
    ran_s = (waits.run_ns - other.run_ns if earlier else other.run_ns - waits.run_ns) / 1e9
    if ran_s < 0:
        return False
    if waits.lock is not None:
        due = earlier or was_due(waits, elapsed)
        met = is_ready(other) and lines(waits) == lines(other)
        return met and due and ran_s <= _TAKES_UP_S + _TAKES_UP_SHARE * elapsed
    if not (is_ready(other) or _half_read(waits, other)) or not _inside(waits, other):
        return False
    due = waits.timeout_s is None or waits.timeout_s <= elapsed + TIMEOUT_BLUR_S or was_due(waits, elapsed)
    share = max(_TAKES_UP_SHARE, min(_AS_BEFORE * used, _AT_MOST))
    return (earlier or due) and ran_s <= _TAKES_UP_S + share * elapsed


def _half_read(waits: ThreadSample, other: ThreadSample) -> bool:
    """Asleep, but without a stack, or with one that may be of another moment than its call."""
    if other.state != "S" or other.lock is not None:
        return False
    return not has_stack(other) or (other.moved and place(other) != place(waits))


def _inside(waits: ThreadSample, other: ThreadSample) -> bool:
    """Whether what is seen of the stack of one that is awake lies within the function whose loop naps, or none is."""
    if not has_stack(other):
        return True
    nap, now = _outside_in(waits.frames), _outside_in((*other.frames, *other.unmerged_native))
    if not nap or not now:
        return not now
    # The loop of a nap that asks for something is where it naps, of another one it may be in the caller.
    around = len(nap) if waits.polls_for is not None else max(1, len(nap) - 1)
    if len(now) < around:
        return False
    # The innermost one that they share may be in another line by now.
    same = all(one[:2] == two[:2] for one, two in zip(nap[:around], now, strict=False))
    return same and all(one == two for one, two in zip(nap[: around - 1], now, strict=False))


def _outside_in(frames: Sequence[Frame]) -> list[tuple[str, str | None, int | None]]:
    """Functions of the program from its first one on: those of Python, or without any those in C, but for the nap's."""
    own = [(frame.function, frame.file, frame.line) for frame in python_frames(frames)]
    if own:
        return own[::-1]
    native = [frame for frame in frames if frame.kind is FrameKind.NATIVE]
    while native and in_libc(native[0]):
        native.pop(0)
    return [(frame.function, frame.module, None) for frame in reversed(native)]
