"""What a system call names in the target's memory: a path, the address of a socket, semaphores of a set, a lock.

Layouts: open(2) and its kin, connect(2), sendto(2), semop(2), fcntl(2) on leases and locks;
linux/un.h, linux/in.h, linux/in6.h.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence

from pyhangtrace.collect.mounts import fuse_connection, mount_of, read_mounts
from pyhangtrace.collect.procfs import PROC, fields, printable, read_link, read_text
from pyhangtrace.model.open_files import LockRequest
from pyhangtrace.model.threads import ThreadSample

Piece = tuple[int, int]  # address, bytes

_PAGE = 4096
_LONGEST_ADDRESS = 128
_SEMBUF = struct.Struct("=Hhh")
_MOST_OPERATIONS = 64
_AT_FDCWD = -100
_FAMILY = struct.Struct("=H")

# Where the path stands among the arguments, and where the folder that a relative one begins in.
_PATHS: dict[str, tuple[int, int | None]] = {
    "open": (0, None),
    "creat": (0, None),
    "openat": (1, 0),
    "openat2": (1, 0),
    "stat": (0, None),
    "lstat": (0, None),
    "newfstatat": (1, 0),
    "statx": (1, 0),
    "statfs": (0, None),
    "truncate": (0, None),
    "unlink": (0, None),
    "unlinkat": (1, 0),
    "rename": (0, None),
    "renameat": (1, 0),
    "renameat2": (1, 0),
    "execve": (0, None),
    "execveat": (1, 0),
    "mount": (1, None),
    "umount2": (0, None),
}
# Where the address of a socket stands, and its length.
_ADDRESSES = {"connect": (1, 2), "sendto": (4, 5)}
# Of FUSE: asks its server, and can be interrupted at first.
_ASKS = "request_wait_answer"
_SEMAPHORE_CALLS = ("semop", "semtimedop")

# struct flock of 64-bit programs: type, whence, start, length, pid.
_FLOCK = struct.Struct("=hh4xqqi4x")
# F_SETLKW and F_OFD_SETLKW, the two that wait.
FCNTL_WAITS = (7, 38)
_FCNTL_ACCESS = {0: "read", 1: "write"}
_LAST_BYTE = (1 << 63) - 1


def pieces(arguments: Sequence[int], call: str) -> list[Piece]:
    """What of the target's memory has to be read."""
    if call in _PATHS:
        address = arguments[_PATHS[call][0]]
        # A string ends somewhere: what lies on its first page can be read, the next one may not be there.
        first = _PAGE - address % _PAGE
        return [(address, first), (address + first, _PAGE)] if address else []
    if call in _ADDRESSES:
        address, size = (arguments[index] for index in _ADDRESSES[call])
        return [(address, min(size, _LONGEST_ADDRESS))] if address and size else []
    if call in _SEMAPHORE_CALLS and arguments[1]:
        return [(arguments[1], min(arguments[2], _MOST_OPERATIONS) * _SEMBUF.size)]
    if call == "fcntl" and arguments[1] in FCNTL_WAITS and arguments[2]:
        return [(arguments[2], _FLOCK.size)]
    return []


def path(sample: ThreadSample, call: str, memory: Mapping[Piece, bytes], proc_root: str = PROC) -> str | None:
    """The file or address that the call names; a relative path from the folder it begins in."""
    found = b"".join(memory.get(piece, b"") for piece in pieces(sample.args, call))
    if call in _ADDRESSES:
        return _address(found)
    if call not in _PATHS or b"\0" not in found:
        return None
    name = os.fsdecode(found.partition(b"\0")[0])
    if not name.startswith("/"):
        folder = _folder(sample, _PATHS[call][1], proc_root)
        name = os.path.normpath(f"{folder}/{name}") if folder is not None and name else name
    return printable(name) or None


def mount_words(
    sample: ThreadSample, path: str | None, proc_root: str = PROC
) -> tuple[str | None, int | None]:
    """The file system that a path lies on, of a thread that sleeps in the kernel on its account, and its connection."""
    if path is None or not path.startswith("/") or not (sample.state == "D" or _ASKS in (sample.wchan or "")):
        return None, None
    mount = mount_of(path, read_mounts(sample.pid, proc_root))
    if mount is None:
        return None, None
    return mount.words, fuse_connection(mount.fs_type, mount.device)


def _folder(sample: ThreadSample, index: int | None, proc_root: str) -> str | None:
    fd = _AT_FDCWD if index is None else sample.args[index] & 0xFFFFFFFF
    if fd in (_AT_FDCWD, _AT_FDCWD & 0xFFFFFFFF):
        return read_link(f"{proc_root}/{sample.pid}/cwd")
    return read_link(f"{proc_root}/{sample.pid}/fd/{fd}")


def _address(raw: bytes) -> str | None:
    if len(raw) <= _FAMILY.size:
        return None
    (family,) = _FAMILY.unpack_from(raw)
    if family == socket.AF_UNIX:
        name = os.fsdecode(raw[2:])
        # One without a name in the file system begins with a zero, and may hold more of them.
        name = "@" + name[1:].rstrip("\0") if name.startswith("\0") else name.partition("\0")[0]
        return printable(name.replace("\0", "@"))
    if family == socket.AF_INET and len(raw) >= 8:
        return f"{ipaddress.IPv4Address(raw[4:8])}:{int.from_bytes(raw[2:4], 'big')}"
    if family == socket.AF_INET6 and len(raw) >= 24:
        return f"[{ipaddress.IPv6Address(raw[8:24])}]:{int.from_bytes(raw[2:4], 'big')}"
    return None


def semaphores(
    arguments: Sequence[int], call: str, memory: Mapping[Piece, bytes]
) -> tuple[tuple[int, int], ...]:
    """(number in the set, change) for each operation of a semop."""
    if call not in _SEMAPHORE_CALLS:
        return ()
    found = b"".join(memory.get(piece, b"") for piece in pieces(arguments, call))
    return tuple((number, change) for number, change, _ in _SEMBUF.iter_unpack(found))


def lock_request(
    sample: ThreadSample, call: str, memory: Mapping[Piece, bytes], proc_root: str = PROC
) -> LockRequest | None:
    """The bytes of a file that the call waits to lock; None if it waits for none, or the bytes cannot be told."""
    if call != "fcntl" or sample.args[1] not in FCNTL_WAITS:
        return None
    found = b"".join(memory.get(piece, b"") for piece in pieces(sample.args, call))
    if len(found) != _FLOCK.size:
        return None
    kind, whence, start, length, _ = _FLOCK.unpack(found)
    access = _FCNTL_ACCESS.get(kind)
    begins = 0 if whence == os.SEEK_SET else None
    if whence == os.SEEK_CUR:
        begins = _position(sample, proc_root)
    if access is None or begins is None:
        return None
    first, after = begins + start, begins + start + length
    if length < 0:
        first, after = after, first
    last = None if length == 0 or after > _LAST_BYTE else after - 1
    pid = sample.pid if sample.args[1] == FCNTL_WAITS[0] else -1
    return LockRequest(access=access, start=first, end=last, pid=pid) if first >= 0 else None


def _position(sample: ThreadSample, proc_root: str) -> int | None:
    """Where the next read of the call's descriptor begins."""
    fd = sample.args[0] & 0xFFFFFFFF
    position = dict(fields(read_text(f"{proc_root}/{sample.pid}/fdinfo/{fd}") or "")).get("pos", "")
    return int(position) if position.isdecimal() else None


def breaks_lease(sample: ThreadSample, call: str) -> bool:
    """Whether an open or truncate waits for somebody to give back a lease on the file."""
    return call in ("open", "openat", "openat2", "creat", "truncate") and "break_lease" in (
        sample.wchan or ""
    )


def lease_timeout_s() -> float | None:
    """How long the kernel waits for a lease to be given back before it takes it; 0 for ever."""
    text = read_text("/proc/sys/fs/lease-break-time")
    return float(text) if text and text.strip().isdecimal() else None
