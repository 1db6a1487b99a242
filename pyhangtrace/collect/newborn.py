"""Which processes a job has started while it was watched."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.quantities import plural

NEWBORN_SOURCE = "new processes"
_MOST_NAMED = 8


def newborn(before: ProcessTable, after: ProcessTable, members: Sequence[int], own: int) -> tuple[int, ...]:
    """Processes below the members that were not there before. Not `own` (that watches) and what is below it."""
    ours = {own, *after.descendants(own)}
    below = {
        pid
        for member in members
        if _same(before, after, member)
        for pid in after.descendants(member)
        if pid not in ours and not _same(before, after, pid)
    }
    return tuple(sorted(below))


def _same(before: ProcessTable, after: ProcessTable, pid: int) -> bool:
    then, now = before.get(pid), after.get(pid)
    return then is not None and now is not None and then.start_ticks == now.start_ticks


def status(before: ProcessTable, after: ProcessTable, members: Sequence[int], own: int) -> SourceStatus:
    """That the probes count none of them: the members are chosen when the window begins."""
    found = newborn(before, after, members, own)
    if not found:
        reason = "none is there at the end that was not at the beginning"
        return SourceStatus(source=NEWBORN_SOURCE, state=SourceState.USED, reason=reason)
    named = ", ".join(map(str, found[:_MOST_NAMED])) + (", ..." if len(found) > _MOST_NAMED else "")
    what = f"{len(found)} {plural(len(found), 'was', 'were')}"
    reason = f"{what} started by the job in the meantime, not counted in any number above: pid {named}"
    return SourceStatus(
        source=NEWBORN_SOURCE, state=SourceState.ABSENT, reason=reason, fix="record again while they live"
    )
