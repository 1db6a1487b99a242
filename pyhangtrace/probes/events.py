"""The structures that the window's BPF programs fill (`headers/include/hangtrace/window_events.h`), as numpy dtypes.

Keys come before values, as the child process sends them. Times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

THREAD_SUMS = np.dtype(
    [
        ("waiting_since_ns", np.uint64),
        ("uaddr", np.uint64),
        ("waits", np.uint64),
        ("wait_ns", np.uint64),
        ("longest_ns", np.uint64),
        ("longest_uaddr", np.uint64),
        ("timed_out", np.uint64),
        ("interrupted", np.uint64),
        ("not_slept", np.uint64),
        ("wake_calls", np.uint64),
        ("woken", np.uint64),
        ("minor_faults", np.uint64),
        ("major_faults", np.uint64),
        ("last_major_address", np.uint64),
        ("tgid", np.uint32),
        ("operation", np.uint32),
    ]
)
WAKE_PAIR = np.dtype([("waker_tid", np.uint32), ("woken_tid", np.uint32)])
LOST_KINDS = ("thread", "pair", "wake")  # enum lost_kind, in its order

THREAD_RECORD = np.dtype([("tid", np.uint32), ("sums", THREAD_SUMS)])
PAIR_RECORD = np.dtype([("pair", WAKE_PAIR), ("count", np.uint64)])

_WAITS = frozenset({0, 6, 9, 11, 13, 64})  # enum futex_operation of window.bpf.c: those that wait
_OPERATION = 0x7F


def thread_records(data: bytes) -> npt.NDArray[np.void]:
    """Records of `THREAD_RECORD`, ordered by tid. Raises: ValueError if the bytes are not whole records."""
    return np.sort(np.frombuffer(data, dtype=THREAD_RECORD), order="tid")


def pair_records(data: bytes) -> npt.NDArray[np.void]:
    """Records of `PAIR_RECORD`, ordered by waker. Raises: ValueError if the bytes are not whole records."""
    return np.sort(np.frombuffer(data, dtype=PAIR_RECORD), order="pair")


def is_wait(operation: int) -> bool:
    """Whether a call with this operation word sleeps."""
    return operation & _OPERATION in _WAITS
