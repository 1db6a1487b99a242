"""Who has a descriptor is a process: any of its threads may use it, not only the one that speaks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze.report import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Confidence, Kind, State
from pyhangtrace.model.open_files import Holder, SocketFacts, SocketTimeouts
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

QUEUE = (b.py("wait", b.THREADING), b.py("get", "/usr/lib/python3.11/queue.py"))


def _both_read(*others: ThreadSample, **of_second: tuple[int, ...]) -> Evidence:
    ends = [
        b.pipe(100, 5, 70, Holder(pid=101, mode="w")),
        b.pipe(101, 6, 71, Holder(pid=100, mode="w")),
    ]
    looks = b.twice(b.on_fd(100, fd=5), b.on_fd(101, fd=6), *others, fds=ends)
    return b.evidence([b.process(100), b.process(101, **of_second)], looks)


def test_deadlock_of_two_that_have_no_other_thread_is_proven() -> None:
    verdict = analyze(_both_read()).verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.IPC_CYCLE,
        Confidence.PROVEN,
    )


@pytest.mark.parametrize("other", [b.asleep(101, 202, seconds=40), b.running(101, 202)])
def test_a_thread_that_the_clock_wakes_may_write(other: ThreadSample) -> None:
    verdict = analyze(_both_read(other)).verdict
    assert verdict.state is not State.HUNG
    assert not verdict.cycle
    assert not verdict.culprits


def test_a_thread_that_waits_for_the_others_makes_it_no_proof() -> None:
    verdict = analyze(_both_read(b.sleeper(101, 202, frames=QUEUE))).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.IPC_CYCLE)
    assert verdict.confidence is Confidence.LIKELY


def test_a_timer_with_a_handler_makes_it_no_proof() -> None:
    verdict = analyze(_both_read(signals_caught=(14,))).verdict
    assert (verdict.state, verdict.confidence) == (State.HUNG, Confidence.LIKELY)


def test_own_thread_may_write_into_a_set_that_is_watched() -> None:
    ends = [
        b.pipe(100, 5, 70, Holder(pid=101, mode="w")),
        b.pipe(100, 7, 72, Holder(pid=100, mode="w")),
        b.pipe(101, 6, 71, Holder(pid=100, mode="w")),
    ]
    watching = b.sleeper(100, syscall=b.POLL, args=(0x7000, 2, 2**64 - 1, 0, 0, 0), io_fds=(5, 7))
    looks = b.twice(watching, b.asleep(100, 201, seconds=40), b.on_fd(101, fd=6), fds=ends)
    verdict = analyze(b.evidence([b.process(100), b.process(101)], looks)).verdict
    assert verdict.state is not State.HUNG
    assert not verdict.cycle


def sockets_in_a_circle(
    timeouts: SocketTimeouts | None, about: SocketFacts, *, seconds: float = 100.0, **limits: float
) -> tuple[State, Kind | None, Confidence]:
    ends = [
        replace(b.connection(pid, fd, inode, Holder(pid=other, mode="rw")), socket=about, timeouts=timeouts)
        for pid, fd, inode, other in ((100, 5, 70, 101), (101, 6, 71, 100))
    ]
    both = (b.on_fd(pid, fd=fd, asleep_for_s=seconds, **limits) for pid, fd in ((100, 5), (101, 6)))
    looks = b.twice(*both, fds=ends)
    verdict = analyze(b.evidence([b.process(100), b.process(101)], looks)).verdict
    return verdict.state, verdict.cause, verdict.confidence


STREAM = SocketFacts(family="unix", state="ESTABLISHED", type="stream")
TCP = SocketFacts(family="tcp", state="ESTABLISHED", type="stream", rx_queue=0, tx_queue=0)
ENDLESS = SocketTimeouts(receive_s=None, send_s=30.0)


@pytest.mark.parametrize("about", [STREAM, replace(STREAM, type="seqpacket"), TCP])
def test_sockets_without_a_timeout_are_waited_for_without_end(about: SocketFacts) -> None:
    assert sockets_in_a_circle(ENDLESS, about) == (State.HUNG, Kind.IPC_CYCLE, Confidence.PROVEN)


def test_a_call_may_have_begun_with_another_timeout_than_its_socket_has_now() -> None:
    found = sockets_in_a_circle(ENDLESS, STREAM, seconds=10.0)
    assert found == (State.HUNG, Kind.IPC_CYCLE, Confidence.LIKELY)


def test_where_timeouts_cannot_be_read_nothing_is_said_within_a_minute() -> None:
    assert sockets_in_a_circle(None, STREAM, seconds=10.0)[0] is State.UNKNOWN


@pytest.mark.parametrize(
    ("timeouts", "about"),
    [
        (None, STREAM),
        (ENDLESS, replace(STREAM, type="")),
        (ENDLESS, replace(STREAM, type="dgram")),  # others may send to it, too
        (ENDLESS, replace(TCP, tx_queue=1)),  # TCP_USER_TIMEOUT
        (ENDLESS, replace(TCP, state="CLOSE_WAIT")),
    ],
)
def test_sockets_of_which_that_is_not_known_prove_nothing(
    timeouts: SocketTimeouts | None, about: SocketFacts
) -> None:
    assert sockets_in_a_circle(timeouts, about) == (State.HUNG, Kind.IPC_CYCLE, Confidence.LIKELY)


def test_sockets_with_a_timeout_of_an_hour_hang_until_then() -> None:
    timeouts = SocketTimeouts(receive_s=3600.0, send_s=None)
    found = sockets_in_a_circle(timeouts, STREAM, timeout_s=3600.0, remaining_s=3500.0)
    assert found == (State.HUNG, Kind.IPC_CYCLE, Confidence.LIKELY)


def test_sockets_with_a_timeout_of_seconds_are_no_deadlock() -> None:
    timeouts = SocketTimeouts(receive_s=20.0, send_s=None)
    state, _, _ = sockets_in_a_circle(timeouts, STREAM, timeout_s=20.0, remaining_s=12.0)
    assert state is State.SLOW
