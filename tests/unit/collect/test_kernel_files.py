"""Timeouts that sockets have themselves become those of the calls that they limit."""

from __future__ import annotations

import pytest

from pyhangtrace.collect.descriptors import Descriptor
from pyhangtrace.collect.kernel_files import KernelFiles, PipeFill, complete, not_asked, with_timeouts
from pyhangtrace.model.kinds import FdKind, SourceState
from pyhangtrace.model.open_files import FdFacts, SocketTimeouts
from pyhangtrace.model.threads import ThreadSample

READ, WRITE, POLL, SENDTO, RECVFROM, CONNECT = 0, 1, 7, 44, 45, 42
LIMITS = SocketTimeouts(receive_s=60.0, send_s=None)


def sample(call: int, *fds: int, asleep_for_s: float | None = 20.0) -> ThreadSample:
    return ThreadSample(
        pid=100,
        tid=100,
        comm="x",
        syscall=call,
        args=(5, 0, 0, 0, 0, 0),
        io_fds=fds,
        asleep_for_s=asleep_for_s,
    )


def fd(kind: FdKind = FdKind.SOCKET, **more: object) -> FdFacts:
    return FdFacts(pid=100, fd=5, kind=kind, target="socket:[70]", inode=70, **more)  # type: ignore[arg-type]


def times(one: ThreadSample) -> tuple[float | None, float | None]:
    [found] = with_timeouts([one], [fd(timeouts=LIMITS)], machine="x86_64")
    return found.timeout_s, found.remaining_s


@pytest.mark.parametrize("call", [READ, RECVFROM])
def test_receiving_ends_when_the_time_of_the_socket_is_over(call: int) -> None:
    assert times(sample(call, 5)) == (60.0, 40.0)
    assert times(sample(call, 5, asleep_for_s=None)) == (60.0, None)
    assert times(sample(call, 5, asleep_for_s=61.0)) == (60.0, 0.0)


@pytest.mark.parametrize("call", [WRITE, SENDTO, CONNECT, POLL])
def test_other_calls_do_not(call: int) -> None:
    assert times(sample(call, 5)) == (None, None)


def test_nor_do_calls_on_other_sockets() -> None:
    assert times(sample(READ, 6)) == (None, None)
    assert times(sample(READ)) == (None, None)


def test_descriptors_get_what_was_found_of_them() -> None:
    found = KernelFiles(timeouts={(100, 5): LIMITS}, pipes={(100, 6): PipeFill(queued=7, capacity=65536)})
    pipe = FdFacts(pid=100, fd=6, kind=FdKind.PIPE, target="pipe:[71]", inode=71)
    other = FdFacts(pid=101, fd=5, kind=FdKind.SOCKET, target="socket:[72]", inode=72)
    with_limits, filled, same = complete([fd(), pipe, other], found)
    assert with_limits.timeouts == LIMITS
    assert (filled.queued, filled.capacity) == (7, 65536)
    assert same == other


@pytest.mark.parametrize(("call", "told"), [(RECVFROM, True), (WRITE, True), (POLL, False)])
def test_who_may_not_ask_says_that_timeouts_are_missing_where_somebody_may_have_one(
    call: int, told: bool
) -> None:
    described = {(100, 5): Descriptor(pid=100, fd=5, kind=FdKind.SOCKET, link="socket:[70]", inode=70)}
    found = not_asked([sample(call, 5)], described, machine="x86_64", reason="--no-bpf", fix="leave it out")
    assert (found.status is not None) is told
    if found.status is not None:
        assert (found.status.source, found.status.state) == ("socket timeouts", SourceState.ABSENT)
        assert found.status.fix == "leave it out"
