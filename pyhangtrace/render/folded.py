"""Folded stacks: `rank 3;MainThread;outer;…;inner 1`, one line per class and rank, for flamegraph tools."""

from __future__ import annotations

from collections import Counter

from pyhangtrace.model.report import Report
from pyhangtrace.model.weighted import StackProfile, Unit
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import frame_label, report_profile

# Tools want whole numbers: time is written in microseconds.
_SCALE = {Unit.THREADS: 1, Unit.SECONDS: 1_000_000, Unit.FAULTS: 1}


def render_folded(report: Report) -> str:
    """One line per distinct stack of a rank; the number is how many threads stand there."""
    return folded(report_profile(report))


def folded(profile: StackProfile) -> str:
    """One line per distinct stack of a thread name of a rank, with its weight; of a comparison with both weights, the
    earlier one first, as `difffolded.pl` writes them.
    """
    weights: Counter[str] = Counter()
    before: Counter[str] = Counter()
    scale = _SCALE[profile.unit]
    for stack in profile.stacks:
        owner = f"rank {stack.rank}" if stack.rank is not None else f"pid {stack.pid}"
        frames = [_safe(frame_label(frame)) for frame in stack.frames]
        line = ";".join([owner, _safe(stack.thread), *frames])
        weights[line] += round(stack.weight * scale)
        before[line] += round((stack.before or 0.0) * scale)
    if profile.compared:
        return "".join(f"{line} {before[line]} {weights[line]}\n" for line in sorted(weights))
    return "".join(f"{line} {weight}\n" for line, weight in sorted(weights.items()) if weight)


def _safe(name: str) -> str:
    # The separator of the format may not occur in a name.
    return clean(name).replace(";", ":")
