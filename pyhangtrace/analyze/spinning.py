"""Whether a running thread stays at one place, by samples of its stack.

Counters cannot tell a spin from a computation, and neither can one function in all samples: a tight loop that computes
looks the same. Only functions that do nothing but wait are called spins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyhangtrace.analyze.calls import first_own_frame
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.threads import ThreadSample

# Fewer samples than one look takes say nothing: any function lasts for a millisecond now and then.
_ENOUGH = 4

# The interpreter itself: all Python code runs in it.
_INTERPRETER = re.compile(r"^(_PyEval_EvalFrameDefault|_TAIL_CALL_)")

# Functions that only wait for a word in memory to change.
_SPINS = re.compile(
    r"^(__)?sched_yield$"
    r"|^(__)?pthread_spin_(lock|trylock)$"
    r"|^(gomp_(barrier|team_barrier)_wait|__kmp_(wait|flag_wait|yield|hyper_barrier|hierarchical_barrier))"
    r"|(^|::|_)(spin_?wait|spin_?lock|spin_?until|busy_?wait|cpu_relax)(_|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A thread that all samples of all looks show in one function, called in one way.

    `function` is "" where it is the interpreter: then the Python frame says where.
    """

    function: str
    count: int
    is_spin: bool


def loop_of(samples: Sequence[ThreadSample]) -> Loop | None:
    """What a thread loops in, `None` if it moves or too little was seen. `samples` are its looks in order of time."""
    taken = [sample.samples for sample in samples]
    if not taken or any(one is None or not one.same_stack for one in taken):
        return None
    count = sum(one.count for one in taken if one is not None)
    leaves = {leaf for one in taken if one is not None for leaf in one.leaves}
    if count < _ENOUGH or len(leaves) != 1 or len({_callers(sample) for sample in samples}) != 1:
        return None
    leaf = leaves.pop()
    if _INTERPRETER.search(leaf):
        places = {
            (frame.function, frame.file) for sample in samples if (frame := first_own_frame(sample.frames))
        }
        return Loop(function="", count=count, is_spin=False) if len(places) == 1 else None
    # With a loop around a call that returns at once, the samples are in the call.
    return Loop(function=leaf, count=count, is_spin=_SPINS.search(_plain(leaf)) is not None)


def describe_samples(samples: Sequence[ThreadSample]) -> str | None:
    """`10 samples of its stack, all in spin_here`, for the evidence of a wait."""
    taken = [sample.samples for sample in samples if sample.samples is not None]
    if not taken:
        return None
    count = sum(one.count for one in taken)
    leaves = list(dict.fromkeys(leaf for one in taken for leaf in one.leaves))
    noun = "sample" if count == 1 else "samples"
    if len(leaves) == 1:
        loop = loop_of(samples)
        way = ", called in the same way" if loop is not None else ""
        return f"{count} {noun} of its stack, {'all ' if count > 1 else ''}in {leaves[0]}{way}"
    return f"{count} {noun} of its stack, in {len(leaves)} functions"


def _callers(sample: ThreadSample) -> tuple[int | None, ...]:
    frames = (*sample.frames, *sample.unmerged_native)
    native = [frame for frame in frames if frame.kind is FrameKind.NATIVE]
    leaf = sample.samples.leaves[0] if sample.samples is not None and sample.samples.leaves else None
    # The innermost address differs within the function; where the interpreter is innermost, a Python frame stands
    # for it.
    if native and not _INTERPRETER.search(leaf or ""):
        native = native[1:]
    return tuple(frame.address for frame in native)


def _plain(function: str) -> str:
    """Without arguments, and without what compilers add to parts of a function."""
    return function.replace("(anonymous namespace)::", "").partition("(")[0].partition(".")[0]
