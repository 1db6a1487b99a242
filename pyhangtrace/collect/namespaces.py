"""Entering a namespace of another process: of the calling thread only, so in a helper."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Namespace(Enum):
    """A kind of namespace: its name in /proc/PID/ns, and its number for setns(2) (linux/sched.h)."""

    NET = ("net", 0x40000000)
    IPC = ("ipc", 0x08000000)


def enter(path: str, kind: Namespace) -> None:
    """Moves the calling thread into the namespace at this path of /proc, for good. Raises OSError."""
    there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(there, kind)
    finally:
        os.close(there)


@contextmanager
def inside(path: str | None, kind: Namespace) -> Iterator[None]:
    """Moves the calling thread there and back again; None: it stays where it is. Raises OSError."""
    if path is None:
        yield
        return
    home = os.open(f"/proc/self/ns/{kind.value[0]}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(path, kind)
        try:
            yield
        finally:
            _set(home, kind)
    finally:
        os.close(home)


def _set(descriptor: int, kind: Namespace) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind.value[1]):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
