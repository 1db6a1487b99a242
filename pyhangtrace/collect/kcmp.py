"""kcmp(2): whether two processes share something in the kernel (Linux 3.5, with CONFIG_KCMP).

It may wait for a process that is just in execve: only in a guarded task.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable

# arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h, include/uapi/linux/kcmp.h
_NUMBERS = {"x86_64": 312, "aarch64": 272}
FILE, MEMORY = 0, 1


def comparer() -> Callable[[int, int, int, int, int], bool | None]:
    """A function of two pids, FILE or MEMORY, and two descriptors (0 of memory); `None` if nobody may know."""
    number = _NUMBERS.get(platform.machine())
    call = ctypes.CDLL(None, use_errno=True).syscall

    def same(one: int, other: int, what: int, first: int, second: int) -> bool | None:
        if number is None:
            return None
        found = int(call(*map(ctypes.c_long, (number, one, other, what, first, second))))
        return None if found < 0 else found == 0

    return same
