"""Whether processes have set themselves an alarm (alarm(2), setitimer(2)), which no file of /proc tells.

Read by a BPF iterator over threads. Asked for where a hang was found: it would not be one for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect import rungs
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.processes import ProcessFacts

if TYPE_CHECKING:
    from pyhangtrace._native import AlarmReader

ALARMS_TASK = "alarms"


def alarms_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for the first pid, `AlarmStates` of all of them."""
    progress(pids[0])
    yield pids[0], state.keep(ALARMS_TASK, _reader).read(list(pids))
    yield from ((pid, None) for pid in pids[1:])


def _reader() -> AlarmReader:
    from pyhangtrace import _native

    return _native.AlarmReader()


def collect(
    reader: GuardedReader, facts: Mapping[int, ProcessFacts], pids: Sequence[int], *, deadline_s: float
) -> tuple[dict[int, ProcessFacts], SourceStatus]:
    """The facts of those of these processes that have one set, changed to say for when."""
    answers = reader.run(ALARMS_TASK, pids, deadline_s=deadline_s)
    states, reason = answers.of_all()
    if states is None:
        return {}, SourceStatus(source=rungs.ALARMS, state=SourceState.FAILED, reason=reason)
    found = {
        pid: replace(facts[pid], alarm_s=round(left_s, 3))
        for pid, left_s in states["left_s"].items()
        if pid in facts
    }
    return found, rungs.status(rungs.ALARMS, *states["status"])
