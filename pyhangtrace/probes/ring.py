"""The kernel's ring buffer (Linux 5.8), read by mapping it: nobody is woken for an event, so nobody has to wait.

Layout (Documentation/bpf/ringbuf.rst): a page with the consumer's position, a page with the producer's, the data, and
the data once more, so that a record never wraps. A record begins with its length, whose highest bits say that it is not
whole yet, or dropped, and is padded to eight bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import struct

_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEADER = struct.Struct("=II")
PAGE = 4096  # what bcc counts the size of a buffer in, whatever the machine's own pages are


class Ring:
    """A mapped ring buffer. Raises: OSError."""

    def __init__(self, map_fd: int, pages: int) -> None:
        self._size = pages * PAGE
        self._own = mmap.mmap(map_fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._theirs = mmap.mmap(
            map_fd,
            mmap.PAGESIZE + 2 * self._size,
            mmap.MAP_SHARED,
            mmap.PROT_READ,
            offset=mmap.PAGESIZE,
        )
        # One aligned word is stored as a whole.
        self._position = ctypes.c_uint64.from_buffer(self._own)

    def take(self) -> bytes:
        """The contents of all whole records, one behind the other; their room is free afterwards."""
        taken = bytearray()
        position = self._position.value
        (end,) = struct.unpack_from("=Q", self._theirs, 0)
        while position < end:
            place = mmap.PAGESIZE + position % self._size
            length, _ = _HEADER.unpack_from(self._theirs, place)
            if length & _BUSY:
                break
            size = length & ~_DISCARDED
            if not length & _DISCARDED:
                taken += self._theirs[place + _HEADER.size : place + _HEADER.size + size]
            position += (_HEADER.size + size + 7) & ~7
            self._position.value = position
        return bytes(taken)
