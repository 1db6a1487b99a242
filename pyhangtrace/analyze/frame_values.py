"""Which of the locals that were read belong to which frame of a stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyhangtrace.analyze.calls import python_frames
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import NamedValue, ThreadSample

Values = Mapping[str, NamedValue]


def by_frame(sample: ThreadSample) -> Iterator[tuple[Frame, Values]]:
    """The Python frames of which locals were read, innermost first, each with its own.

    Both lists are in the order of the stack; the values of one frame have one function and no name twice.
    """
    runs: list[tuple[str, dict[str, NamedValue]]] = []
    for value in sample.named_values:
        if not runs or runs[-1][0] != value.function or value.name in runs[-1][1]:
            runs.append((value.function, {}))
        runs[-1][1][value.name] = value
    following = iter(runs)
    expected = next(following, None)
    for frame in (*python_frames(sample.frames), *sample.unmerged_python):
        if expected is not None and frame.function == expected[0]:
            yield frame, expected[1]
            expected = next(following, None)
