"""Ranks that get on no faster than the storage gives them their files: late is nobody of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyhangtrace.analyze.finding import Case, Finding, Named, name_of, one_a_process
from pyhangtrace.analyze.memory_window import window_of
from pyhangtrace.analyze.phase import reads_files
from pyhangtrace.analyze.progress import SETTLED_S, Progress
from pyhangtrace.analyze.scene import Key
from pyhangtrace.model.kinds import Confidence, Kind, Part, State, WaitKind


def slow_reads(case: Case) -> Finding | None:
    """Ranks that load files wait for the storage for long, and may yet get what they want: nobody of them is late."""
    if not reads_files(case.scene):
        return None
    found = [
        key
        for key in sorted(case.waits, key=case.order)
        if case.waits[key].kind in (WaitKind.PAGE_FAULT, WaitKind.IO)
        and case.waits[key].cause is Kind.IO_STALLED
        and case.waits[key].progress is Progress.UNMOVED
        and (case.waits[key].since_s or 0.0) >= SETTLED_S
        and case.scene.who.rank(key[0]) is not None
    ]
    if not found:
        return None
    return _slow(found[0], named=[name_of(case, key, Part.PARTY) for key in one_a_process(found)])


def reading(case: Case) -> Finding | None:
    """Nobody gets on, but what somebody faulted for comes from its disk, bit by bit."""
    found = [
        key
        for key in sorted(case.waits, key=case.order)
        if case.waits[key].kind is WaitKind.PAGE_FAULT
        and case.waits[key].service is None
        and case.scene.is_member(key[0])
    ]
    if not read_from_disk(case, {pid for pid, _ in found}):
        return None
    return _slow(found[0], victims=one_a_process(found))


def _slow(first: Key, *, named: Sequence[Named] = (), victims: Sequence[Key] = ()) -> Finding:
    return Finding(
        state=State.SLOW,
        cause=Kind.IO_STALLED,
        confidence=Confidence.LIKELY,
        named=tuple(named),
        victims=tuple(victims),
        chain=(first,),
    )


def read_from_disk(case: Case, pids: Collection[int]) -> float:
    """Bytes a second that came from a disk for these processes while they were looked at; 0 where nothing tells."""
    window = window_of(case.scene.evidence.memory, None)
    return window.read_by(pids) if window is not None else 0.0
