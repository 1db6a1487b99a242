"""The structures that the window's BPF programs fill (`headers/include/hangtrace/window_events.h`).

Described once, with two views: `struct` for the few records of a window (the child process and `attach` have no time
to load numpy) and numpy dtypes for reading whole tables. A test compares both with what a C compiler makes of the
header. Keys come before values. Times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_WAITS = frozenset({0, 6, 9, 11, 13, 64})  # enum futex_operation of window.bpf.c: those that wait
_OPERATION = 0x7F


class ThreadSums(NamedTuple):
    """`struct thread_sums`, the members in its order."""

    waiting_since_ns: int
    uaddr: int
    waits: int
    wait_ns: int
    longest_ns: int
    longest_uaddr: int
    timed_out: int
    interrupted: int
    not_slept: int
    wake_calls: int
    woken: int
    minor_faults: int
    major_faults: int
    last_major_address: int
    tgid: int
    operation: int

    @property
    def waiting(self) -> bool:
        """Whether the thread was inside a call that sleeps when the counting ended."""
        return bool(self.waiting_since_ns) and self.operation & _OPERATION in _WAITS


class WakePair(NamedTuple):
    """`struct wake_pair`."""

    waker_tid: int
    woken_tid: int


class WordWaits(NamedTuple):
    """`struct word_waits` with its key; `slots[n]` counts waits of 2^n to 2^(n+1) units of 1.024 µs."""

    uaddr: int
    tid: int
    operation: int
    waits: int
    wait_ns: int
    longest_ns: int
    timed_out: int
    tgid: int
    slots: tuple[int, ...]


class PlaceFaults(NamedTuple):
    """`struct place_faults` with its key, `place` already an address."""

    place: int
    code: int
    tid: int
    tgid: int
    minor: int
    major: int


class TimedEvent(NamedTuple):
    """`struct timed_event`."""

    at_ns: int
    took_ns: int
    object: int
    tid: int
    tgid: int
    other: int
    kind: int


class Lost(NamedTuple):
    """`enum lost_kind`: events that found no room in a table."""

    thread: int = 0
    pair: int = 0
    wake: int = 0
    sum: int = 0
    event: int = 0
    place: int = 0


THREAD_SUMS = struct.Struct("=14Q2I")
WAKE_PAIR = struct.Struct("=2I")
TID = struct.Struct("=I")
COUNT = struct.Struct("=Q")
WAIT_SLOTS = 24
WORD_WAITS_KEY = struct.Struct("=Q2I")
WORD_WAITS = struct.Struct(f"=4Q{WAIT_SLOTS}I2I")
FAULT_PLACE = struct.Struct("=2Q2I")
PLACE_FAULTS = struct.Struct("=2Q")
PLACE_SHIFT = 21
TIMED_EVENT = struct.Struct("=3Q4I")
EVENT_FUTEX_WAIT, EVENT_MAJOR_FAULT = 1, 2
NEAR_WORDS = 2
NEAR_TID = struct.Struct("=2I")  # the beginning of `struct near_thread`
OF_THREADS = 0  # enum near_table
CLAIM_KEY = struct.Struct("=2I")
CLAIM = struct.Struct("=Q2I")
_THREAD_RECORD = struct.Struct(TID.format + THREAD_SUMS.format[1:])
_PAIR_RECORD = struct.Struct(WAKE_PAIR.format + COUNT.format[1:])
_WORD_RECORD = struct.Struct(WORD_WAITS_KEY.format + WORD_WAITS.format[1:])
_PLACE_RECORD = struct.Struct(FAULT_PLACE.format + PLACE_FAULTS.format[1:])


def thread_record_size(*, words: bool) -> int:
    """Bytes of `struct thread_record`, with waits by word or without."""
    near = NEAR_WORDS * (WORD_WAITS_KEY.size + WORD_WAITS.size) if words else 0
    return THREAD_SUMS.size + WAKE_PAIR.size + COUNT.size + near


def split_record(record: bytes) -> tuple[bytes, bytes, bytes]:
    """`struct thread_record` as the thread's sums, its pair and its waits by word: records like those of the tables
    that hold more of them, none where nothing was counted.

    Raises: ValueError if it is shorter than that.
    """
    pair_at = THREAD_SUMS.size
    words_at = pair_at + WAKE_PAIR.size + COUNT.size
    if len(record) < words_at:
        raise ValueError(f"{len(record)} bytes are no record of a thread")
    pair = record[pair_at:words_at]
    size = WORD_WAITS_KEY.size + WORD_WAITS.size
    words = [record[at : at + size] for at in range(words_at, len(record), size)]
    return (
        record[:pair_at],
        pair if any(pair) else b"",
        b"".join(word for word in words if any(word)),
    )


def thread_records(data: bytes) -> Iterator[tuple[int, ThreadSums]]:
    """Thread id and sums, record after record. Raises: ValueError if the bytes are not whole records."""
    for tid, *sums in _records(_THREAD_RECORD, data):
        yield tid, ThreadSums(*sums)


def pair_records(data: bytes) -> Iterator[tuple[WakePair, int]]:
    """Pair and count, record after record. Raises: ValueError if the bytes are not whole records."""
    for waker, woken, count in _records(_PAIR_RECORD, data):
        yield WakePair(waker, woken), count


def word_records(data: bytes) -> Iterator[WordWaits]:
    """Sums by futex word. Raises: ValueError if the bytes are not whole records."""
    for uaddr, tid, operation, waits, wait_ns, longest_ns, timed_out, *rest in _records(_WORD_RECORD, data):
        *slots, tgid, _ = rest
        yield WordWaits(uaddr, tid, operation, waits, wait_ns, longest_ns, timed_out, tgid, tuple(slots))


def place_records(data: bytes) -> Iterator[PlaceFaults]:
    """Page faults by place. Raises: ValueError if the bytes are not whole records."""
    for place, *rest in _records(_PLACE_RECORD, data):
        yield PlaceFaults(place << PLACE_SHIFT, *rest)


def timed_records(data: bytes) -> Iterator[TimedEvent]:
    """The time line. Raises: ValueError if the bytes are not whole records."""
    for values in _records(TIMED_EVENT, data):
        yield TimedEvent(*values)


def _records(record: struct.Struct, data: bytes) -> Iterator[tuple[Any, ...]]:
    if len(data) % record.size:
        raise ValueError(f"{len(data)} bytes are not records of {record.size}")
    return record.iter_unpack(data)


def thread_dtype() -> np.dtype[np.void]:
    """`struct thread_sums` for numpy."""
    return _dtype(ThreadSums._fields, "Q" * 14 + "I" * 2)


def pair_dtype() -> np.dtype[np.void]:
    """`struct wake_pair` for numpy."""
    return _dtype(WakePair._fields, "I" * 2)


def _dtype(names: tuple[str, ...], codes: str) -> np.dtype[np.void]:
    import numpy as np

    widths = {"Q": np.uint64, "I": np.uint32}
    return np.dtype([(name, widths[code]) for name, code in zip(names, codes, strict=True)])
