"""The structures that `calls.bpf.c` fills (`headers/include/hangtrace/calls_events.h`), keys before values.

A test compares them with what a C compiler makes of the header. Times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

ARGUMENTS = 6
NO_OBJECT = ARGUMENTS
SITE_KEY = struct.Struct("=Q2I")
SITE = struct.Struct("=4I")
CALL_KEY = struct.Struct("=Q4I")
CALL_SUMS = struct.Struct("=3Q")
CALL_EVENT = struct.Struct("=8Q3Ii")


class CallSums(NamedTuple):
    """`struct call_sums` with its key."""

    object: int
    tid: int
    tgid: int
    site: int
    unused: int
    calls: int
    call_ns: int
    longest_ns: int


class CallEvent(NamedTuple):
    """`struct call_event`."""

    at_ns: int
    took_ns: int
    arguments: tuple[int, ...]
    tid: int
    tgid: int
    site: int
    result: int


class LostCalls(NamedTuple):
    """`enum call_lost_kind`."""

    call: int = 0
    call_sum: int = 0
    call_event: int = 0


_SUM_RECORD = struct.Struct(CALL_KEY.format + CALL_SUMS.format[1:])


def sum_records(data: bytes) -> Iterator[CallSums]:
    """Sums of calls. Raises: ValueError if the bytes are not whole records."""
    return (CallSums(*values) for values in _records(_SUM_RECORD, data))


def event_records(data: bytes) -> Iterator[CallEvent]:
    """The time line. Raises: ValueError if the bytes are not whole records."""
    for at_ns, took_ns, *rest in _records(CALL_EVENT, data):
        arguments, (tid, tgid, site, result) = rest[:ARGUMENTS], rest[ARGUMENTS:]
        yield CallEvent(at_ns, took_ns, tuple(arguments), tid, tgid, site, result)


def _records(record: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    if len(data) % record.size:
        raise ValueError(f"{len(data)} bytes are not records of {record.size}")
    return record.iter_unpack(data)
