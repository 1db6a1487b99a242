"""Folded stacks: `rank 3;MainThread;outer;…;inner 1`, one line per class and rank, for flamegraph tools."""

from __future__ import annotations

from collections import Counter

from pyhangtrace.model.report import Report
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import frame_label, stack_classes


def render_folded(report: Report) -> str:
    """One line per distinct stack of a rank; the number is how many threads stand there."""
    lines: Counter[str] = Counter()
    for item in stack_classes(report):
        frames = [_safe(frame_label(frame)) for frame in item.frames]
        for member in item.members:
            owner = f"rank {member.rank}" if member.rank is not None else f"pid {member.pid}"
            lines[";".join([owner, _safe(member.thread), *frames])] += 1
    return "".join(f"{stack} {count}\n" for stack, count in sorted(lines.items()))


def _safe(name: str) -> str:
    # The separator of the format may not occur in a name.
    return clean(name).replace(";", ":")
