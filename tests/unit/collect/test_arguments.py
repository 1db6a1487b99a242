"""What a system call's arguments say: descriptors and times."""

from __future__ import annotations

import platform
import select
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace.collect import arguments
from pyhangtrace.collect.arguments import Clocks
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model import syscalls
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import blocked, program, write

CLOCKS = Clocks(monotonic=1000.0, realtime=1_700_000_000.0)
NUMBERS = {name: number for number, name in syscalls.X86_64.items()}


class FixedMemory:
    """A reader whose memory is a table."""

    def __init__(self, content: dict[int, bytes]) -> None:
        self.content = content

    def run(
        self, task: str, pids: object, pieces: dict[int, list[tuple[int, int]]], *, deadline_s: float
    ) -> object:
        from pyhangtrace.collect.guarded import Answers

        assert task == arguments.MEMORY_TASK
        return Answers(
            {
                pid: {
                    (address, size): self.content[address][:size]
                    for address, size in wanted
                    if len(self.content.get(address, b"")) >= size
                }
                for pid, wanted in pieces.items()
            },
            {},
        )


def one(
    call: str,
    *args: int,
    memory: dict[int, bytes] | None = None,
    asleep: float | None = None,
    proc_root: str = "/nowhere",
) -> ThreadSample:
    sample = ThreadSample(
        pid=1,
        tid=1,
        comm="x",
        syscall=NUMBERS[call],
        args=(*args, *[0] * (6 - len(args))),
        asleep_for_s=asleep,
    )
    (filled,) = arguments.collect(
        FixedMemory(memory or {}),  # type: ignore[arg-type]
        [sample],
        machine="x86_64",
        deadline_s=1,
        clocks=CLOCKS,
        proc_root=proc_root,
    )
    return filled


def timespec(seconds: float) -> bytes:
    return struct.pack("=qq", int(seconds), round(seconds % 1 * 1e9))


@pytest.mark.parametrize(
    "call", ["read", "write", "recvfrom", "accept4", "flock", "fcntl", "epoll_wait", "connect"]
)
def test_first_argument(call: str) -> None:
    assert one(call, 7).io_fds == (7,)


def test_negative_descriptor_is_none() -> None:
    assert one("read", 0xFFFFFFFF).io_fds == ()


def test_two_descriptors() -> None:
    assert one("splice", 9, 0, 4).io_fds == (4, 9)


def test_poll_set() -> None:
    entries = struct.pack("=ihhihhihh", 5, 1, 0, 3, 1, 0, -1, 1, 0)
    seen = one("poll", 0x1000, 3, 0xFFFFFFFF, memory={0x1000: entries})
    assert seen.io_fds == (3, 5)
    assert seen.room_fds == ()
    assert seen.timeout_s is None


def test_descriptors_that_are_watched_for_room_alone() -> None:
    entries = struct.pack(
        "=ihhihhihh", 5, select.POLLOUT, 0, 3, select.POLLIN, 0, 4, select.POLLIN | select.POLLOUT, 0
    )
    seen = one("poll", 0x1000, 3, 0xFFFFFFFF, memory={0x1000: entries})
    assert (seen.io_fds, seen.room_fds) == ((3, 4, 5), (5,))
    reads, writes = (bits.to_bytes(8, "little") for bits in (1 << 3 | 1 << 4, 1 << 4 | 1 << 5))
    seen = one("select", 6, 0x10, 0x20, 0, 0, memory={0x10: reads, 0x20: writes})
    assert (seen.io_fds, seen.room_fds) == ((3, 4, 5), (5,))


@pytest.mark.parametrize(("address", "fds"), [(0x1000, (7,)), (0x2000, ())])
def test_a_set_that_is_no_longer_waited_on_is_not_read(
    tmp_path: Path, address: int, fds: tuple[int, ...]
) -> None:
    write(tmp_path, {"1/task/1/syscall": f"7 {address:#x} 0x1 0x1388 0x0 0x0 0x0 0x7ff0 0x7ff1\n"})
    memory = {0x1000: struct.pack("=ihh", 7, 1, 0)}
    assert one("poll", 0x1000, 1, 5000, memory=memory, proc_root=str(tmp_path)).io_fds == fds


def test_select_sets() -> None:
    bits = {0x10: (1 << 3 | 1 << 65).to_bytes(16, "little"), 0x20: (1 << 4).to_bytes(16, "little")}
    seen = one(
        "select", 70, 0x10, 0x20, 0, 0x30, memory={**bits, 0x30: struct.pack("=qq", 2, 500_000)}, asleep=0.5
    )
    assert seen.io_fds == (3, 4, 65)
    assert (seen.timeout_s, seen.remaining_s) == (2.5, 2.0)


def test_poll_timeout_in_milliseconds() -> None:
    seen = one("poll", 0, 0, 5000, asleep=1.5)
    assert (seen.timeout_s, seen.remaining_s) == (5.0, 3.5)
    assert one("epoll_wait", 3, 0, 1, 250).timeout_s == 0.25


def test_relative_sleep() -> None:
    seen = one("clock_nanosleep", 0, 0, 0x40, memory={0x40: timespec(3600)}, asleep=60)
    assert (seen.timeout_s, seen.remaining_s) == (3600.0, 3540.0)


def test_absolute_sleep_needs_no_age() -> None:
    seen = one("clock_nanosleep", 1, 1, 0x40, memory={0x40: timespec(1100.5)})
    assert (seen.timeout_s, seen.remaining_s) == (None, 100.5)
    assert one("clock_nanosleep", 1, 1, 0x40, memory={0x40: timespec(1100.5)}, asleep=10).timeout_s == 110.5


@pytest.mark.parametrize(
    ("operation", "value", "remaining"),
    [
        (0x80, timespec(30), 20.0),  # FUTEX_WAIT_PRIVATE: relative
        (0x89, timespec(1020), 20.0),  # FUTEX_WAIT_BITSET_PRIVATE: absolute, monotonic
        (0x189, timespec(1_700_000_020), 20.0),  # with FUTEX_CLOCK_REALTIME
        (0x86, timespec(1_700_000_020), 20.0),  # FUTEX_LOCK_PI: realtime always
    ],
)
def test_futex(operation: int, value: bytes, remaining: float) -> None:
    assert one("futex", 0x99, operation, 0, 0x50, memory={0x50: value}, asleep=10).remaining_s == remaining


def test_futex_without_timeout_and_wake() -> None:
    assert one("futex", 0x99, 0x80, 0, 0).timeout_s is None
    assert one("futex", 0x99, 0x81, 1, 0x50, memory={0x50: timespec(5)}).timeout_s is None


@pytest.mark.parametrize(
    "content", [b"", struct.pack("=qq", -1, 0), struct.pack("=qq", 1, 2_000_000_000), timespec(1 << 40)]
)
def test_nonsense_in_memory_is_unknown(content: bytes) -> None:
    seen = one("nanosleep", 0x40, memory={0x40: content}, asleep=1)
    assert (seen.timeout_s, seen.remaining_s) == (None, None)


def test_a_huge_set_is_bounded() -> None:
    entries = struct.pack("=ihh", 1, 1, 0) * arguments.MAX_FDS
    assert one("poll", 0x1000, 1 << 40, 0, memory={0x1000: entries}).io_fds == (1,)


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    with GuardedReader(TASKS) as made:
        yield made


@pytest.mark.parametrize(
    ("wait", "call", "at_least"),
    [
        ("time.sleep(3600)", "clock_nanosleep", 3500),
        ("select.select([r], [], [], 1000)", "pselect6", 900),
        ("select.poll().poll(1000000)", "poll", 900),
        ("threading.Event().wait(2000)", "futex", 1900),
    ],
)
def test_real_calls(reader: GuardedReader, wait: str, call: str, at_least: float) -> None:
    machine = platform.machine()
    source = f"""
        import os, select, threading, time
        r, w = os.pipe()
        print("ready", r, flush=True)
        {wait}
        """
    with program(source) as child:
        similar = {call, "select", "ppoll"} if call in ("pselect6", "poll") else {call}
        sample = blocked(child.pid, lambda seen: syscalls.name(seen.syscall, machine) in similar)
        from dataclasses import replace

        (seen,) = arguments.collect(
            reader, [replace(sample, asleep_for_s=1.0)], machine=machine, deadline_s=10
        )
    assert seen.remaining_s is not None
    assert at_least < seen.remaining_s <= 3600
    if "select(" in wait:
        assert len(seen.io_fds) == 1
