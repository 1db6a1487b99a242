"""What the page cache holds of a file, without reading a byte of it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import time

_SYS_CACHESTAT = 451
_STEP = 256 << 20
_FAILED = ctypes.c_void_p(-1).value
_LOWEST_BIT = bytes(value & 1 for value in range(256))


def cached_bytes(descriptor: int, size: int, until: float) -> int | None:
    """Of an open file, by cachestat(2) (since Linux 6.5), else by mincore(2); `None` if not known in time.

    Asked for in steps, as the calls take time for every cached folio, or page.
    """
    pages = 0
    for start in range(0, max(size, 1), _STEP):
        if time.monotonic() > until:
            return None
        length = min(_STEP, size - start)
        found = _by_cachestat(descriptor, start, length)
        if found is None:
            return None
        if found < 0:
            found = _by_mincore(descriptor, start, length)
            if found is None:
                return None
        pages += found
    return pages * mmap.PAGESIZE


def _by_cachestat(descriptor: int, start: int, length: int) -> int | None:
    """Pages; -1 where there is no such call, or none for us."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return -1
    libc = ctypes.CDLL(None, use_errno=True)
    span = (ctypes.c_uint64 * 2)(start, length)
    counts = (ctypes.c_uint64 * 5)()
    if libc.syscall(_SYS_CACHESTAT, descriptor, ctypes.byref(span), ctypes.byref(counts), 0):
        return -1 if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM) else None
    return int(counts[0])


def _by_mincore(descriptor: int, start: int, length: int) -> int | None:
    """Pages, through a mapping that is never touched."""
    if length <= 0:
        return 0
    if not _is_told_the_truth(descriptor):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address == _FAILED:
        return None
    try:
        there = ctypes.create_string_buffer((length + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), there):
            return None
        return there.raw.translate(_LOWEST_BIT).count(1)
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))


def _is_told_the_truth(descriptor: int) -> bool:
    """Whoever neither owns a file nor may write to it hears that all of it is there (mm/mincore.c, since Linux 5.2)."""
    return os.fstat(descriptor).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
