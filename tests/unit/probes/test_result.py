"""From the kernel's tables to what the report shows."""

from __future__ import annotations

from pyhangtrace.model.probes import ProbeEvidence, WakerCount
from pyhangtrace.probes import events
from pyhangtrace.probes.result import ProcessProbe, decode

NOW = 10_000_000_000


def thread(tid: int, tgid: int, **members: int) -> bytes:
    sums = events.ThreadSums(*[0] * 16)._replace(tgid=tgid, **members)
    return events.TID.pack(tid) + events.THREAD_SUMS.pack(*sums)


def pair(waker: int, woken: int, count: int) -> bytes:
    return events.WAKE_PAIR.pack(waker, woken) + events.COUNT.pack(count)


def decoded(
    *pids: int, threads: bytes = b"", pairs: bytes = b"", lost: tuple[int, int, int] = (0, 0, 0)
) -> tuple[ProcessProbe, ...]:
    return decode(pids, threads=threads, pairs=pairs, lost=events.Lost(*lost), window_s=0.5, closed_ns=NOW)


def test_a_process_that_did_nothing_has_zeros() -> None:
    assert decoded(7) == (ProcessProbe(pid=7, evidence=ProbeEvidence(window_s=0.5), threads=()),)


def test_sums_are_over_the_threads_of_one_process() -> None:
    data = thread(9, 7, waits=2, wait_ns=3_000_000_000, longest_ns=2_000_000_000, minor_faults=5)
    data += thread(8, 7, waits=1, wait_ns=500_000_000, longest_ns=500_000_000, major_faults=4)
    data += thread(20, 20, waits=100)
    data += thread(30, 31, waits=100)  # nobody asked for that process
    seven, twenty = decoded(7, 20, threads=data)
    assert seven.evidence == ProbeEvidence(
        window_s=0.5, futex_waits=3, futex_wait_s=3.5, longest_wait_s=2.0, minor_faults=5, major_faults=4
    )
    assert [each.tid for each in seven.threads] == [8, 9]
    assert twenty.evidence.futex_waits == 100


def test_wakers_are_pairs_and_a_rest() -> None:
    data = (
        thread(1, 1, wake_calls=20, woken=10)
        + thread(2, 1, wake_calls=1, woken=1)
        + thread(3, 1, wake_calls=4)
    )
    (process,) = decoded(
        1, threads=data, pairs=pair(1, 3, 4) + pair(1, 2, 5) + pair(2, 1, 1) + pair(77, 3, 9)
    )
    assert process.evidence.wakers == (
        WakerCount(tid=1, woke=2, count=5),
        WakerCount(tid=1, woke=3, count=4),
        WakerCount(tid=1, woke=None, count=1),
        WakerCount(tid=2, woke=1, count=1),
    )


def test_pairs_beyond_what_wake_calls_return_make_no_negative_rest() -> None:
    """An unlock of a priority-inheriting mutex wakes and returns nothing."""
    (process,) = decoded(1, threads=thread(1, 1), pairs=pair(1, 2, 3))
    assert process.evidence.wakers == (WakerCount(tid=1, woke=2, count=3),)


def test_a_wait_in_progress_is_beside_the_sums() -> None:
    waiting = thread(5, 5, waiting_since_ns=NOW - 250_000_000, operation=0x189, uaddr=0x1000)
    waking = thread(6, 5, waiting_since_ns=NOW - 250_000_000, operation=0x81, uaddr=0x2000)
    (process,) = decoded(5, threads=waiting + waking)
    assert [(each.open_wait_s, each.open_uaddr) for each in process.threads] == [(0.25, 0x1000), (None, None)]
    assert process.evidence.futex_waits == 0


def test_what_was_lost_is_said_by_every_process() -> None:
    assert [each.evidence.lost for each in decoded(1, 2, lost=(1, 2, 4))] == [7, 7]


def test_the_order_of_the_tables_does_not_matter() -> None:
    one, two = thread(1, 1, woken=3), thread(2, 1, waits=3)
    pairs = pair(1, 2, 2), pair(1, 3, 1)
    assert decoded(1, threads=one + two, pairs=b"".join(pairs)) == decoded(
        1, threads=two + one, pairs=b"".join(reversed(pairs))
    )
