"""Reading /proc. Only files that take no lock of the target's memory are read here; a process that is gone, or not
ours to see, is `None`, never an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pyhangtrace.model.process_table import ProcessStat, ProcessTable, parse_stat

PROC = "/proc"

# PROC_PID_INIT_INO of <linux/proc_ns.h>: the first PID namespace of every kernel has this number.
_FIRST_PID_NAMESPACE = f"pid:[{0xEFFFFFFC}]"
_CHUNK = 1 << 16
_ASLEEP = frozenset("SDTt")


def read_bytes(path: str, limit: int = 1 << 24) -> bytes | None:
    """Content of a file of /proc or /sys, at most `limit` bytes; `None` if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        size = 0
        while size < limit:
            part = os.read(descriptor, min(_CHUNK, limit - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_text(path: str, limit: int = 1 << 24) -> str | None:
    """The same as text; bytes that are no UTF-8 survive as surrogates."""
    content = read_bytes(path, limit)
    return None if content is None else content.decode(errors="surrogateescape")


def wait_channel(folder: str) -> str | None:
    """The kernel function that a thread sleeps in, by its folder; `None` if it does not, or if that cannot be seen.

    Since Linux 5.16 ("x86: Fix get_wchan() to support the ORC unwinder") x86-64 names it. Before, it is what the stack
    begins with, which leaves out the scheduler's functions as well; only root may read that.
    """
    told = (read_text(f"{folder}/wchan") or "").strip()
    if told not in ("", "0"):
        return told
    state = _state(folder)
    if state not in _ASLEEP:
        return None
    first = (read_text(f"{folder}/stack") or "").partition("\n")[0]
    name = first.partition("] ")[2].partition("+")[0].partition(" ")[0]
    # One that has gone on meanwhile was met on its way.
    return name if name and not name.startswith("0x") and _state(folder) == state else None


def _state(folder: str) -> str:
    return (read_text(f"{folder}/stat") or "").rpartition(") ")[2][:1]


def read_link(path: str) -> str | None:
    """Where a link of /proc points to, `None` if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def printable(text: str) -> str:
    """Text from a target, made safe to store: no surrogates, no control characters."""
    if text.isprintable():
        return text
    clean = text.encode(errors="surrogateescape").decode(errors="replace")
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in clean
    )


def read_stat(pid: int, proc_root: str = PROC) -> ProcessStat | None:
    """The process' line of `stat`."""
    folder = f"{proc_root}/{pid}"
    text = read_text(f"{folder}/stat")
    if text is None:
        return None
    try:
        uid: int | None = os.stat(folder).st_uid
    except OSError:
        uid = None
    return parse_stat(text, uid=uid)


def pids(proc_root: str = PROC) -> list[int]:
    """All processes visible from here."""
    return numbers(proc_root)


def numbers(folder: str) -> list[int]:
    """Names in a folder that are numbers, sorted (pids, thread ids, descriptors)."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    except OSError:
        return []


def process_of(tid: int, proc_root: str = PROC) -> int | None:
    """The process that a thread is one of; `None` if there is none."""
    found = dict(fields(read_text(f"{proc_root}/{tid}/status") or "")).get("Tgid", "")
    return int(found) if found.isdecimal() else None


def waits_for_children(pid: int, proc_root: str = PROC) -> bool:
    """Whether its main thread is blocked in wait4(2) or its kin, by the function of the kernel that it sleeps in."""
    return wait_channel(f"{proc_root}/{pid}") == "do_wait"


def read_table(proc_root: str = PROC) -> ProcessTable:
    """All processes of the host, kernel threads included."""
    return ProcessTable.of(row for row in (read_stat(pid, proc_root) for pid in pids(proc_root)) if row)


def fields(text: str, separator: str = ":") -> Iterator[tuple[str, str]]:
    """`key: value` lines, stripped."""
    # Not splitlines: a name may hold characters that end a line for Python and not for the kernel.
    for line in text.split("\n"):
        key, found, value = line.partition(separator)
        if found:
            yield key.strip(), value.strip()


def kilobytes(value: str) -> int | None:
    """ "123 kB" in bytes."""
    number = value.partition(" ")[0]
    return int(number) * 1024 if number.isdecimal() else None


def signal_numbers(mask: str | None) -> tuple[int, ...] | None:
    """The signals in a mask of `status` (hexadecimal, signal 1 is the lowest bit), None if it is none."""
    try:
        bits = int(mask or "", 16)
    except ValueError:
        return None
    return tuple(number + 1 for number in range(64) if bits >> number & 1)


def split_arguments(raw: bytes) -> tuple[str, ...]:
    """A cmdline's arguments. A process that set its title has the whole of it as the first one."""
    text = raw.decode(errors="surrogateescape").rstrip("\0")
    return tuple(text.split("\0")) if text else ()


def others_hidden(proc_root: str = PROC) -> bool:
    """Whether this host has processes that cannot be seen from here, since we are in a PID namespace of our own."""
    ours = read_link(f"{proc_root}/self/ns/pid")
    return ours is not None and ours != _FIRST_PID_NAMESPACE
