"""File, line and inlined functions of native frames, from debug information, inside the guarded reader."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import printable
from pyhangtrace.collect.stacks import native_engine
from pyhangtrace.model.evidence import Look, SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.stacks import SourcePlace, SourcePosition, code_addresses

SOURCE = "source lines"
SOURCE_LINES_TASK = "source_lines"
_SLACK_S = 0.3  # for the way to the reader and back
_MOST_REASONS = 3


def source_lines_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (positions of each address, problems) of each pid; `argument` is (seconds, {pid: addresses})."""
    budget_s, addresses = argument
    until = time.monotonic() + budget_s
    for pid in pids:
        progress(pid)
        left = max(0.0, until - time.monotonic())
        yield pid, native_engine(state).source_lines(pid, list(addresses[pid]), budget_s=left)


def collect(
    reader: GuardedReader, look: Look, *, budget_s: float
) -> tuple[tuple[SourcePlace, ...], SourceStatus]:
    """Positions in the native frames of a look, and how far that went. Takes as long as `budget_s` at most."""
    wanted: dict[int, set[int]] = {}
    for thread in look.threads:
        for frames in (thread.frames, thread.unmerged_native):
            found = (address for address in code_addresses(frames) if address is not None)
            wanted.setdefault(thread.pid, set()).update(found)
    addresses = {pid: tuple(sorted(places)) for pid, places in wanted.items() if places}
    if not addresses:
        return (), SourceStatus(source=SOURCE, state=SourceState.ABSENT, reason="there are no native frames")
    answers = reader.run(
        SOURCE_LINES_TASK,
        list(addresses),
        (max(0.0, budget_s - _SLACK_S), addresses),
        deadline_s=budget_s,
    )
    places = []
    problems = [f"process {pid}: {why}" for pid, why in answers.problems.items()]
    for pid, (chains, why) in answers.values.items():
        problems += why
        for address, chain in zip(addresses[pid], chains, strict=True):
            positions = tuple(
                SourcePosition(
                    function=printable(function),
                    file=printable(file) if file is not None else None,
                    line=line,
                )
                for function, file, line in chain
            )
            if positions:
                places.append(SourcePlace(pid=pid, address=address, positions=positions))
    return tuple(places), _status(places, list(dict.fromkeys(problems)))


def _status(places: Sequence[SourcePlace], problems: Sequence[str]) -> SourceStatus:
    reason = "; ".join(problems[:_MOST_REASONS])
    if len(problems) > _MOST_REASONS:
        reason += f"; and {len(problems) - _MOST_REASONS} more"
    if places:
        return SourceStatus(source=SOURCE, state=SourceState.USED, reason=reason)
    if problems:
        return SourceStatus(source=SOURCE, state=SourceState.FAILED, reason=reason)
    return SourceStatus(
        source=SOURCE,
        state=SourceState.ABSENT,
        reason="no file in the stacks has debug information",
        fix="install debug packages (-dbg, -dbgsym, -debuginfo), or compile with -g",
    )
