"""What one window tells, per thread and per process."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.probes import ProbeEvidence, WakerCount
from pyhangtrace.probes import events


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadProbe:
    """One thread that waited, woke or faulted within the window.

    A wait counts when it began and ended inside the window. One that began inside and still goes on is
    `open_wait_s`, with `open_uaddr`. One that began before is not seen at all: that is what the state of the thread
    is for. `not_slept` are calls that found the word changed; `woken` is the number of threads woken by it.
    """

    tid: int
    waits: int
    wait_s: float
    longest_wait_s: float
    longest_uaddr: int | None
    timed_out: int
    interrupted: int
    not_slept: int
    wake_calls: int
    woken: int
    minor_faults: int
    major_faults: int
    last_major_address: int | None
    open_wait_s: float | None
    open_uaddr: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessProbe:
    """One target: the sums the report shows, and the threads they come from."""

    pid: int
    evidence: ProbeEvidence
    threads: tuple[ThreadProbe, ...]


def decode(
    pids: tuple[int, ...], *, threads: bytes, pairs: bytes, lost: events.Lost, window_s: float, closed_ns: int
) -> tuple[ProcessProbe, ...]:
    """Per process, in the order of `pids`, threads by number; one that did nothing has zeros.

    What was lost cannot be told apart by process, so each carries the total.

    Raises: ValueError if the bytes are not what `events` describes.
    """
    by_process: dict[int, list[ThreadProbe]] = {pid: [] for pid in pids}
    for tid, sums in sorted(events.thread_records(threads)):
        if sums.tgid in by_process:
            by_process[sums.tgid].append(_thread(tid, sums, closed_ns))
    known = sorted(events.pair_records(pairs))
    processes = []
    for pid, own in by_process.items():
        evidence = ProbeEvidence(
            window_s=window_s,
            futex_waits=sum(thread.waits for thread in own),
            futex_wait_s=sum((thread.wait_s for thread in own), 0.0),
            longest_wait_s=max((thread.longest_wait_s for thread in own), default=0.0),
            wakers=_wakers(own, known),
            minor_faults=sum(thread.minor_faults for thread in own),
            major_faults=sum(thread.major_faults for thread in own),
            lost=sum(lost),
        )
        processes.append(ProcessProbe(pid=pid, evidence=evidence, threads=tuple(own)))
    return tuple(processes)


def _thread(tid: int, sums: events.ThreadSums, closed_ns: int) -> ThreadProbe:
    return ThreadProbe(
        tid=tid,
        waits=sums.waits,
        wait_s=sums.wait_ns / 1e9,
        longest_wait_s=sums.longest_ns / 1e9,
        longest_uaddr=sums.longest_uaddr or None,
        timed_out=sums.timed_out,
        interrupted=sums.interrupted,
        not_slept=sums.not_slept,
        wake_calls=sums.wake_calls,
        woken=sums.woken,
        minor_faults=sums.minor_faults,
        major_faults=sums.major_faults,
        last_major_address=sums.last_major_address or None,
        open_wait_s=max(closed_ns - sums.waiting_since_ns, 0) / 1e9 if sums.waiting else None,
        open_uaddr=(sums.uaddr or None) if sums.waiting else None,
    )


def _wakers(threads: list[ThreadProbe], pairs: list[tuple[events.WakePair, int]]) -> tuple[WakerCount, ...]:
    """Known pairs, then for each waker what it woke beyond them; most first.

    A wake-up has no known other end when more than one thread woke on the same word, when the word is shared with
    other processes, or when the wait had begun before the window.
    """
    wakers = []
    for thread in threads:
        known = [
            WakerCount(tid=thread.tid, woke=pair.woken_tid, count=count)
            for pair, count in pairs
            if pair.waker_tid == thread.tid
        ]
        rest = thread.woken - sum(waker.count for waker in known)
        wakers += known
        if rest > 0:
            wakers.append(WakerCount(tid=thread.tid, woke=None, count=rest))
    return tuple(sorted(wakers, key=lambda waker: (-waker.count, waker.tid, waker.woke or 0)))
