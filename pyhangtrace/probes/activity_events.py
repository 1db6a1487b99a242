"""The structures that `activity.bpf.c` fills (`headers/include/hangtrace/activity_events.h`), keys before values.

A test compares them with what a C compiler makes of the header. Times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

OFF_KEY = struct.Struct("=i3I")
OFF_SUMS = struct.Struct("=3Q")
OFF_NOW = struct.Struct("=Q" + OFF_KEY.format[1:])
IO_KEY = struct.Struct("=2I")
IO_SUMS = struct.Struct("=2Q")
ACTIVITY = struct.Struct("=2Q4I")

OFF_SLEEPING, OFF_UNINTERRUPTIBLE, OFF_RUNNABLE = 0, 1, 2
ACTIVITY_EXIT, ACTIVITY_SIGNAL, ACTIVITY_OOM, ACTIVITY_OFF = 16, 17, 18, 19


class OffSums(NamedTuple):
    """`struct off_sums` with its key. `kernel_stack` is -1 where it found no room."""

    kernel_stack: int
    state: int
    tid: int
    tgid: int
    times: int
    off_ns: int
    longest_ns: int


class OffNow(NamedTuple):
    """`struct off_now`: a thread that was off the CPU when the counting ended."""

    global_tid: int
    since_ns: int
    kernel_stack: int
    state: int
    tid: int
    tgid: int


class IoSums(NamedTuple):
    """`struct io_sums` with its key."""

    tid: int
    tgid: int
    requests: int
    sectors: int


class Activity(NamedTuple):
    """`struct activity`."""

    at_ns: int
    took_ns: int
    tid: int
    tgid: int
    kind: int
    detail: int


class LostActivity(NamedTuple):
    """`enum activity_lost_kind`."""

    switch: int = 0
    stack: int = 0
    io: int = 0
    activity: int = 0


_OFF_RECORD = struct.Struct(OFF_KEY.format + OFF_SUMS.format[1:])
_NOW_RECORD = struct.Struct("=I" + OFF_NOW.format[1:])
_IO_RECORD = struct.Struct(IO_KEY.format + IO_SUMS.format[1:])


def off_records(data: bytes) -> Iterator[OffSums]:
    """Time off the CPU. Raises: ValueError if the bytes are not whole records."""
    return (OffSums(*values) for values in _records(_OFF_RECORD, data))


def now_records(data: bytes) -> Iterator[OffNow]:
    """Who was off the CPU in the end. Raises: ValueError if the bytes are not whole records."""
    return (OffNow(*values) for values in _records(_NOW_RECORD, data))


def io_records(data: bytes) -> Iterator[IoSums]:
    """Block I/O. Raises: ValueError if the bytes are not whole records."""
    return (IoSums(*values) for values in _records(_IO_RECORD, data))


def activity_records(data: bytes) -> Iterator[Activity]:
    """The time line. Raises: ValueError if the bytes are not whole records."""
    return (Activity(*values) for values in _records(ACTIVITY, data))


def _records(record: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    if len(data) % record.size:
        raise ValueError(f"{len(data)} bytes are not records of {record.size}")
    return record.iter_unpack(data)
