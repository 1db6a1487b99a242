"""Why processes gave nothing, or not everything, as lines of coverage with what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhangtrace.collect.stacks import ProcessPicture
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import FrameKind, SourceState

# The loop of CPython's interpreter, of all versions.
_INTERPRETER = ("PyEval_EvalFrameEx", "_PyEval_EvalFrameDefault")


def of_processes(pictures: Mapping[int, ProcessPicture]) -> dict[int, tuple[str, int | None]]:
    """(problem, thread) of the processes that gave nothing or not everything."""
    return {
        pid: (shown.problem, shown.problem_tid)
        for pid, shown in pictures.items()
        if shown.problem is not None
    }


def coverage(pictures: Mapping[int, ProcessPicture], unkillable: Sequence[int]) -> list[SourceStatus]:
    """What became of reading stacks, of each process that could not be read, and of helpers that cannot be ended."""
    problems = of_processes(pictures)
    failed = sorted({why for why, _ in problems.values() if why.startswith("reader_")})
    found = [
        SourceStatus(
            source="stacks",
            state=SourceState.FAILED if failed else SourceState.USED,
            reason="; ".join(failed),
            fix="make setup, or reinstall pyhangtrace" if any("_native" in why for why in failed) else "",
        )
    ]
    for pid, (why, tid) in sorted(problems.items()):
        if not why.startswith("reader_") and why not in ("gone", "zombie"):
            found.append(process_status(pid, why, tid))
    found += _unread_interpreters(pictures)
    if unkillable:
        found.append(
            SourceStatus(
                source="reader",
                state=SourceState.TIMED_OUT,
                reason=f"helper {', '.join(map(str, unkillable))} sleeps in the kernel behind a target's lock and "
                "ends when that lock is released",
            )
        )
    return found


def _unread_interpreters(pictures: Mapping[int, ProcessPicture]) -> list[SourceStatus]:
    """Processes that run Python code of which no frame could be read, as those of versions that are too old."""
    pids = [pid for pid, shown in sorted(pictures.items()) if shown.python is None and _interprets(shown)]
    if not pids:
        return []
    who = f"pid{'s' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
    return [
        SourceStatus(
            source="python frames",
            state=SourceState.ABSENT,
            reason=f"of {who}: the interpreter is not understood, as none before 3.8 is; its C functions are shown",
            fix="Python 3.8 or newer",
        )
    ]


def _interprets(shown: ProcessPicture) -> bool:
    frames = [frame for thread in shown.threads for frame in thread.frames]
    return not any(frame.kind is FrameKind.PYTHON for frame in frames) and any(
        frame.function.startswith(_INTERPRETER) for frame in frames if frame.kind is FrameKind.NATIVE
    )


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
