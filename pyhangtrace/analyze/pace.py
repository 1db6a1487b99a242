"""Whether processes get on, by counters of whole processes.

A job that hangs is seldom still: watchdogs wake up, heartbeats write a line, and who waits for a GPU may spin. And one
that is well may be quiet for minutes. So this only says who has done no work for how long; what that means is for a
look to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyhangtrace.model.pace import Pace, ProcessCounters, Standing

# Of one process, averaged since it last worked. Far more than heartbeats, watchdogs and a monitor of the job make, far
# less than loading, computing on the host or logging do. Who works and stays below costs a look now and then, who hangs
# and stays above is not seen: rather the former.
_BYTES_PER_S = 65536.0
_FAULTS_PER_S = 200.0
# Of a CPU. Two more, so that one that is between does not change its pace with every reading.
_SPINS = 0.2
_BEGINS_TO_SPIN = 0.5
_ENDS_TO_SPIN = 0.05


def advance(
    before: Mapping[int, Standing], now: Mapping[int, ProcessCounters], at_s: float
) -> dict[int, Standing]:
    """How each of the processes of this reading stands; `at_s` is when it was taken, by any steady clock."""
    return {pid: _stands(before.get(pid), counters, at_s) for pid, counters in now.items()}


def stalled(
    standings: Mapping[int, Standing], ranks: Collection[int], at_s: float, stall_s: float
) -> frozenset[tuple[int, Pace]]:
    """Who has done no work for `stall_s`: any of the ranks; of a job without ranks all processes, or nobody.

    A rank that does nothing is worth a look, whatever others do. A launcher, a shell or a helper does nothing all day.
    """
    still = {
        pid: standing.pace
        for pid, standing in standings.items()
        if standing.pace is not Pace.WORKING and at_s - standing.since_s >= stall_s
    }
    known = standings.keys() & set(ranks)
    if known:
        return frozenset((pid, pace) for pid, pace in still.items() if pid in known)
    return frozenset(still.items()) if still and len(still) == len(standings) else frozenset()


def _stands(before: Standing | None, now: ProcessCounters, at_s: float) -> Standing:
    if before is None or before.anchor.start_ticks != now.start_ticks:
        return _works(now, at_s)
    passed_s = at_s - before.last_s
    if passed_s <= 0:
        return before
    share = _share(before, now, passed_s)
    if _worked(before.anchor, now, at_s - before.anchor_s):
        return _works(now, at_s, share)
    pace = _idle_pace(before.pace, share)
    return Standing(
        anchor=before.anchor,
        anchor_s=before.anchor_s,
        last=now,
        last_s=at_s,
        # What computes and what waits are two things: the one begins when the other one ends.
        since_s=before.since_s if before.pace in (pace, Pace.WORKING) else at_s,
        pace=pace,
        cpu_share=share,
    )


def _works(now: ProcessCounters, at_s: float, share: float = 0.0) -> Standing:
    return Standing(
        anchor=now, anchor_s=at_s, last=now, last_s=at_s, since_s=at_s, pace=Pace.WORKING, cpu_share=share
    )


def _share(before: Standing, now: ProcessCounters, passed_s: float) -> float:
    """A mean over the last few readings: a monitor of the job that computes for a moment changes little."""
    return (before.cpu_share + (now.cpu_s - before.last.cpu_s) / passed_s) / 2


def _worked(anchor: ProcessCounters, now: ProcessCounters, passed_s: float) -> bool:
    faults = now.minor_faults + now.major_faults - anchor.minor_faults - anchor.major_faults
    if faults > _FAULTS_PER_S * passed_s or now.threads > anchor.threads:
        return True
    if now.io_bytes is None or anchor.io_bytes is None:
        return False
    return now.io_bytes - anchor.io_bytes > _BYTES_PER_S * passed_s


def _idle_pace(before: Pace, share: float) -> Pace:
    if before is Pace.WORKING:
        return Pace.SPINNING if share >= _SPINS else Pace.QUIET
    if before is Pace.QUIET:
        return Pace.SPINNING if share >= _BEGINS_TO_SPIN else Pace.QUIET
    return Pace.QUIET if share < _ENDS_TO_SPIN else Pace.SPINNING
