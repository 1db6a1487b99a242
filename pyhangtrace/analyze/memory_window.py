"""What paging, stalls and reads did within the window: differences of counters, as rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyhangtrace.model.memory import MemoryCounters, MemoryFacts, PagingCounters, StallCounters

_LONG_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRates:
    """Of one process, a second; None where it is not known."""

    major_faults: float | None = None
    read_bytes: float | None = None
    read_chars: float | None = None
    rss_grown: int | None = None  # bytes within the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`refaulted` and `swapped_in` are pages a second: of the job's own control group where it has one that counts,
    else of the machine (`of` says which).
    """

    seconds: float
    of: str
    refaulted: float | None = None
    refaulted_anon: float | None = None
    swapped_in: float | None = None
    swapped_out: float | None = None
    host_major_faults: float | None = None
    oom_kills: int | None = None
    limit_hits: int | None = None
    memory_full: float | None = None  # share of the window in which all waited for memory
    processes: Mapping[int, ProcessRates] = field(default_factory=dict)

    @property
    def major_faults(self) -> float | None:
        """Of all members together."""
        known = [rates.major_faults for rates in self.processes.values() if rates.major_faults is not None]
        return sum(known) if known else None

    @property
    def read_bytes(self) -> float | None:
        """Of all members together, from disk."""
        known = [rates.read_bytes for rates in self.processes.values() if rates.read_bytes is not None]
        return sum(known) if known else None

    def read_by(self, pids: Iterable[int]) -> float:
        """Bytes a second from disk, of these processes together as far as it is known."""
        return sum(self.processes[pid].read_bytes or 0.0 for pid in pids if pid in self.processes)

    @property
    def read_chars(self) -> float | None:
        """Of all members together, by system calls."""
        known = [rates.read_chars for rates in self.processes.values() if rates.read_chars is not None]
        return sum(known) if known else None

    @property
    def rss_grown(self) -> int:
        """Bytes by which members grew within the window."""
        return sum(max(0, rates.rss_grown or 0) for rates in self.processes.values())


def window_of(facts: MemoryFacts | None, cgroup_path: str | None) -> Window | None:
    """None without counters at two moments."""
    if facts is None or len(facts.counters) < 2:
        return None
    first, last = facts.counters[0], facts.counters[-1]
    seconds = last.at_s - first.at_s
    if seconds <= 0:
        return None
    own = cgroup_path not in (None, "/") and first.cgroup is not None and last.cgroup is not None
    before, after = _paging(first, own=own), _paging(last, own=own)
    stalls = _stalls(first), _stalls(last)
    # Version 1 of control groups counts no swapping: the machine does.
    swap_before, swap_after = (before, after) if before.swapped_in is not None else (first.host, last.host)
    return Window(
        seconds=seconds,
        of=f"control group {cgroup_path}" if own else "the machine",
        refaulted=_rate(before.refaulted, after.refaulted, seconds),
        refaulted_anon=_rate(before.refaulted_anon, after.refaulted_anon, seconds),
        swapped_in=_rate(swap_before.swapped_in, swap_after.swapped_in, seconds),
        swapped_out=_rate(swap_before.swapped_out, swap_after.swapped_out, seconds),
        host_major_faults=_rate(first.host.major_faults, last.host.major_faults, seconds),
        oom_kills=_difference(before.oom_kills, after.oom_kills),
        limit_hits=_difference(before.limit_hits, after.limit_hits),
        memory_full=_share(stalls[0].memory_full_s, stalls[1].memory_full_s, seconds),
        processes=_processes(first, last, seconds),
    )


def _paging(counters: MemoryCounters, *, own: bool) -> PagingCounters:
    return counters.cgroup if own and counters.cgroup is not None else counters.host


def _stalls(counters: MemoryCounters) -> StallCounters:
    own = counters.cgroup_stalls
    return own if own is not None and own.memory_some_s is not None else counters.stalls


def _processes(first: MemoryCounters, last: MemoryCounters, seconds: float) -> dict[int, ProcessRates]:
    before = {process.pid: process for process in first.processes}
    found = {}
    for now in last.processes:
        then = before.get(now.pid)
        if then is not None:
            grown = now.rss - then.rss if now.rss is not None and then.rss is not None else None
            found[now.pid] = ProcessRates(
                major_faults=_rate(then.major_faults, now.major_faults, seconds),
                read_bytes=_rate(then.read_bytes, now.read_bytes, seconds),
                read_chars=_rate(then.read_chars, now.read_chars, seconds),
                rss_grown=grown,
            )
    return found


def _difference(before: int | None, after: int | None) -> int | None:
    return max(0, after - before) if before is not None and after is not None else None


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    passed = _difference(before, after)
    return round(passed / seconds, 1) if passed is not None else None


def _share(before: float | None, after: float | None, seconds: float) -> float | None:
    # The kernel brings its totals up to date every two seconds (kernel/sched/psi.c, PSI_FREQ): within a short window
    # they may hold more of what was before it than of itself. Averages over 10 s say it then.
    if before is None or after is None or seconds < _LONG_S:
        return None
    return min(1.0, round(max(0.0, after - before) / seconds, 3))
