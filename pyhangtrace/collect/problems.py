"""Why a process gave nothing, as a line of coverage with what would help."""

from __future__ import annotations

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState


def process_status(pid: int, why: str, tid: int | None) -> SourceStatus:
    """What a word of `ProcessFacts.problem`, and the thread that causes it, mean."""
    thread = f" (thread {tid})" if tid is not None else ""
    reasons = {
        "mmap_lock_held": f"its memory map is locked{thread}: whoever reads its memory would hang, too",
        "timed_out": "reading its memory did not come back in time",
        "no_time": "the time for looking was over before it, or all of its threads, had their turn",
        "not_permitted": "the kernel does not let this user read it",
        "32bit": "a 32-bit program: stacks are not read",
        "exec_changed": "it started another program while it was looked at",
    }
    states = {"mmap_lock_held": SourceState.TIMED_OUT, "timed_out": SourceState.TIMED_OUT}
    states["no_time"] = SourceState.TIMED_OUT
    states["not_permitted"] = SourceState.REFUSED
    fixes = {
        "not_permitted": "run with sudo",
        "no_time": "look again when the machine is less busy, or name fewer processes",
    }
    return SourceStatus(
        source=f"process {pid}",
        state=states.get(why, SourceState.FAILED),
        reason=reasons.get(why, why),
        fix=fixes.get(why, ""),
    )
