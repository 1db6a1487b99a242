"""What the processes of a demo are made of: announcing themselves, mapped weights, a group, C mutexes."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BrokenBarrierError
from typing import Protocol

#: prctl option of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1

#: <asm-generic/mman.h>: fault all pages in at once, so that they count as resident.
_MAP_POPULATE = 0x8000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]


class Blocked(str, Enum):
    """In what a process or thread of a demo has to be before the demo counts as started."""

    LOCK = "lock"
    FILE_LOCK = "file_lock"
    READ = "read"
    SLEEP = "sleep"
    POLL = "poll"
    STOPPED = "stopped"
    RUNNING = "running"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class Member:
    """One thread that announces itself: who it is and what it is about to block in."""

    role: str
    pid: int
    tid: int
    blocked: Blocked


class Barrier(Protocol):
    """The part of a multiprocessing barrier that a demo uses."""

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """A sparse file that every rank maps: nothing on the disk, one set of pages in the page cache."""

    path: Path
    size: int
    mappings: int

    def map(self) -> None:
        """Map the file and touch it all, ``mappings`` times; each time counts fully in our RSS.

        Raises OSError when the kernel refuses a mapping.
        """
        fd = os.open(self.path, os.O_RDONLY)
        try:
            for _ in range(self.mappings):
                address = _libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_POPULATE, fd, 0)
                if address == ctypes.c_void_p(-1).value:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), str(self.path))
        finally:
            os.close(fd)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:
        # It ended before we could ask.
        raise SystemExit(1)


def announce(to: Connection, role: str, *, blocked: Blocked) -> None:
    """Tell the launcher that this thread is about to block."""
    to.send(Member(role, os.getpid(), threading.get_native_id(), blocked))


def all_reduce(barrier: Barrier) -> None:
    """Stand in for a collective: everybody has to come."""
    try:
        barrier.wait()
    except BrokenBarrierError:
        # A rank was killed: the demo is over.
        raise SystemExit(1) from None


class Mutex:
    """A pthread mutex that Python threads share, as a C extension would hold one."""

    def __init__(self) -> None:
        # sizeof(pthread_mutex_t) is 40 on x86-64 and 48 on aarch64; all zero is PTHREAD_MUTEX_INITIALIZER.
        self._storage = ctypes.create_string_buffer(64)
        self._with_gil = ctypes.PyDLL(None)

    def lock(self) -> None:
        """Lock it with the GIL released, as a well-behaved extension does."""
        _libc.pthread_mutex_lock(self._storage)

    def lock_keeping_gil(self) -> None:
        """Lock it without letting go of the GIL: the mistake that the ``gil`` demo shows."""
        self._with_gil.pthread_mutex_lock(self._storage)
