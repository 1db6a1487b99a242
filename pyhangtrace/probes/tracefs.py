"""The kernel's tracing file system: identifiers and layouts of tracepoints, whether or not somebody mounted it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from dataclasses import dataclass

MOUNT_POINTS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
MOUNT_COMMAND = "mount -t tracefs nodev /sys/kernel/tracing"

# The mount API of Linux 5.2 has the same numbers on every architecture.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 1, 1
_FSCONFIG_CMD_CREATE = 6
_READ_ONLY_NO_EXEC = 0x1 | 0x2 | 0x4 | 0x8  # MOUNT_ATTR_RDONLY, NOSUID, NODEV, NOEXEC

_FIELD = re.compile(
    r"^\tfield:(?P<declaration>[^;]+);\toffset:(?P<offset>\d+);\tsize:(?P<size>\d+);", re.MULTILINE
)

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """The system call's result; integers are passed as 64-bit values.

    Raises: OSError with the kernel's errno.
    """
    converted = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    result = int(_libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracepoint:
    """One tracepoint: its id for perf_event_open, and the byte offset of each of its fields."""

    category: str
    name: str
    id: int
    offsets: dict[str, int]


class Tracefs:
    """An open tracing file system; `mounted_at` is None if it was mounted for this object alone.

    Raises: OSError if it can be neither found nor mounted (no rights, or a kernel without tracing).
    """

    def __init__(self) -> None:
        self.mounted_at: str | None = None
        self._directory = self._open()

    def _open(self) -> int:
        refused: OSError | None = None
        for path in MOUNT_POINTS:
            try:
                os.stat(f"{path}/events/syscalls")
                directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError as error:
                refused = error
            except OSError:  # not mounted there
                continue
            else:
                self.mounted_at = path
                return directory
        try:
            return detached_mount()
        except OSError as error:
            raise refused or error from None

    def tracepoint(self, category: str, name: str) -> Tracepoint | None:
        """The tracepoint, None if this kernel has none of that name."""
        try:
            number = self._read(f"events/{category}/{name}/id")
        except FileNotFoundError:
            return None
        offsets = parse_format(self._read(f"events/{category}/{name}/format"))
        return Tracepoint(category=category, name=name, id=int(number), offsets=offsets)

    def _read(self, path: str) -> str:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        with open(descriptor, encoding="ascii", errors="replace") as file:
            return file.read()

    def close(self) -> None:
        """Gives the directory back, and with it the mount if it was ours."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def __enter__(self) -> Tracefs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_format(text: str) -> dict[str, int]:
    """Offsets in bytes by field name, from a tracepoint's `format` file."""
    offsets = {}
    for field in _FIELD.finditer(text):
        name = field["declaration"].split()[-1].lstrip("*").split("[")[0]
        offsets[name] = int(field["offset"])
    return offsets


def detached_mount() -> int:
    """A directory of a tracefs that is mounted nowhere: nobody else sees it and it ends with the descriptor.

    Raises: OSError (EPERM without CAP_SYS_ADMIN, ENODEV without tracing, ENOSYS before Linux 5.2).
    """
    context = syscall(_FSOPEN, b"tracefs", _FSOPEN_CLOEXEC)
    try:
        syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        directory = syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, _READ_ONLY_NO_EXEC)
    finally:
        os.close(context)
    try:
        os.stat("events/syscalls", dir_fd=directory)
    except OSError as error:
        os.close(directory)
        # Mounted, yet empty: locked down, or built without tracing of system calls.
        raise OSError(error.errno or errno.ENOENT, "tracefs has no events/syscalls") from None
    return directory
