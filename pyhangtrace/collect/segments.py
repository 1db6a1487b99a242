"""Segments of POSIX shared memory that queues lie in, by the frames that wait for them: who has them open.

CPython's SharedMemory (multiprocessing/shared_memory.py) keeps the descriptor of a segment for as long as it is mapped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyhangtrace.collect.descriptors import Openers
from pyhangtrace.collect.named_values import SEGMENT_VALUE
from pyhangtrace.model.open_files import SharedSegment
from pyhangtrace.model.threads import ThreadSample

_FOLDER = "/dev/shm"
_LONGEST = 256


def names(samples: Iterable[ThreadSample]) -> frozenset[str]:
    """Of the segments that threads wait for."""
    return frozenset(
        value.value
        for sample in samples
        for value in sample.named_values
        if value.name == SEGMENT_VALUE and isinstance(value.value, str) and _is_name(value.value)
    )


def _is_name(text: str) -> bool:
    return text.startswith("/") and text.count("/") == 1 and 1 < len(text) < _LONGEST and text.isprintable()


def path(name: str) -> str:
    """Where the segment shows as a file."""
    return f"{_FOLDER}{name}"


def complete(found: Collection[str], openers: Openers) -> tuple[SharedSegment, ...]:
    """With who has them open."""
    return tuple(
        SharedSegment(
            name=name,
            users=tuple(sorted({opener.pid for opener in openers.of(path(name))})),
            complete=path(name) not in openers.partial,
        )
        for name in sorted(found)
    )
