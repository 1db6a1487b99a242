"""The kernel's table of file locks: who holds, who waits, which file.

Source of the layout: fs/locks.c (`lock_get_status`), the same lines in /proc/locks and, for the descriptor that carries
the lock, in /proc/PID/fdinfo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyhangtrace.collect.descriptors import Descriptor, FdInfo, Openers, open_fds, parse_fdinfo
from pyhangtrace.collect.procfs import PROC, printable, read_link, read_text
from pyhangtrace.model.kinds import FdKind
from pyhangtrace.model.open_files import FileLock, Holder, LockRequest
from pyhangtrace.model.threads import ThreadSample

_LINE = re.compile(
    r"^(?P<id>\d+):\s+(?P<blocked>->\s+)?(?P<kind>[A-Z]+)\s+(?P<mandatory>\S+)\s+(?P<access>\S+)\s+"
    r"(?P<pid>-?\d+)\s+(?:(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>\d+)|<none>:0)\s+(?P<start>\d+)\s+(?P<end>\d+|EOF)$"
)
_KINDS = {"FLOCK": "flock", "POSIX": "posix", "OFDLCK": "ofd", "LEASE": "lease", "DELEG": "lease"}
_OF_OPEN_FILES = frozenset({"flock", "ofd"})
_MAX_LINES = 20_000
_MAX_FDS = 4096


@dataclass(frozen=True, slots=True)
class LockLine:
    """One line; `blocked` queues behind the lock of the same `id`."""

    id: int
    blocked: bool
    lock: FileLock


def parse(text: str) -> list[LockLine]:
    """All lines of /proc/locks that describe a lock."""
    found = []
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        match = _LINE.match(line)
        if match is None or match["kind"] not in _KINDS:
            continue
        lock = FileLock(
            kind=_KINDS[match["kind"]],
            access=match["access"].lower(),
            pid=int(match["pid"]),
            # Who asks for a lease to be given back is queued without a file.
            device=os.makedev(int(match["major"] or "0", 16), int(match["minor"] or "0", 16)),
            inode=int(match["inode"] or 0),
            start=int(match["start"]),
            end=None if match["end"] == "EOF" else int(match["end"]),
        )
        found.append(LockLine(int(match["id"]), match["blocked"] is not None, lock))
    return found


def held(lines: Iterable[LockLine]) -> list[FileLock]:
    """The locks that are held, each with the processes that queue behind it."""
    locks: dict[int, FileLock] = {}
    asked: dict[int, list[LockRequest]] = {}
    for line in lines:
        if line.blocked:
            lock = line.lock
            request = LockRequest(access=lock.access, start=lock.start, end=lock.end, pid=lock.pid)
            asked.setdefault(line.id, []).append(request)
        else:
            locks[line.id] = line.lock
    return [
        replace(
            lock,
            waiters=tuple(sorted({request.pid for request in asked.get(number, ())})),
            requests=tuple(asked.get(number, ())),
        )
        for number, lock in locks.items()
    ]


def read(proc_root: str = PROC) -> list[FileLock] | None:
    """All file locks of the host; `None` if the table is not there."""
    text = read_text(f"{proc_root}/locks")
    return None if text is None else held(parse(text))


def concerning(locks: Sequence[FileLock], members: Sequence[int], inodes: Iterable[int]) -> list[FileLock]:
    """Those that a member holds or waits for, or that are on a file a member waits for."""
    ours, files = set(members), set(inodes)
    return [
        lock
        for lock in locks
        if lock.pid in ours or lock.inode in files or any(waiter in ours for waiter in lock.waiters)
    ]


def inherited(locks: Sequence[FileLock], members: Sequence[int], *, proc_root: str = PROC) -> list[FileLock]:
    """Those that others queue for and that a member has by an open file, whoever locked that.

    `flock FILE COMMAND` takes a lock in its own name, and COMMAND keeps it.
    """
    ours = set(members)
    wanted = {
        _key(lock): lock
        for lock in locks
        if lock.kind in _OF_OPEN_FILES
        and lock.waiters
        and lock.pid not in ours
        and ours.isdisjoint(lock.waiters)
    }
    found: dict[LockKey, FileLock] = {}
    for pid in members if wanted else ():
        for fd in open_fds(pid, proc_root)[:_MAX_FDS]:
            for _, _, each in carried(parse_fdinfo(read_text(f"{proc_root}/{pid}/fdinfo/{fd}") or "")):
                if (key := _key(each)) in wanted:
                    found[key] = wanted[key]
    return list(found.values())


def awaited_files(
    samples: Iterable[ThreadSample], described: Mapping[tuple[int, int], Descriptor]
) -> dict[int, str]:
    """Path by inode of the files whose descriptors threads wait on: those they may want a lock of."""
    found: dict[int, str] = {}
    for sample in samples:
        for fd in sample.io_fds:
            facts = described.get((sample.pid, fd))
            if facts is not None and facts.kind is FdKind.FILE and facts.inode is not None:
                found.setdefault(facts.inode, facts.link)
    return found


def paths(locks: Sequence[FileLock], *, proc_root: str = PROC) -> dict[tuple[int, int], str]:
    """Path by (device, inode), from the descriptors of holders and waiters.

    Only the number of the inode is asked of a descriptor (fdinfo, since Linux 5.14), which needs no file server; older
    kernels leave the path unknown here.
    """
    wanted: dict[int, set[tuple[int, int]]] = {}
    for lock in locks:
        for pid in (lock.pid, *lock.waiters):
            if pid > 0:
                wanted.setdefault(pid, set()).add((lock.device, lock.inode))
    found: dict[tuple[int, int], str] = {}
    for pid, files in wanted.items():
        missing = {inode: (device, inode) for device, inode in files if (device, inode) not in found}
        for fd in open_fds(pid, proc_root)[:_MAX_FDS] if missing else ():
            text = read_text(f"{proc_root}/{pid}/fdinfo/{fd}") or ""
            for _, inode, locked in carried(parse_fdinfo(text)):
                missing.setdefault(inode, (locked.device, inode))
            inode_here = _inode(text)
            if inode_here in missing:
                link = read_link(f"{proc_root}/{pid}/fd/{fd}")
                if link is not None and link.startswith("/"):
                    found.setdefault(missing[inode_here], printable(link))
    return found


def carried(info: FdInfo) -> list[tuple[int, int, FileLock]]:
    """(id, inode, lock) for the locks whose descriptor this is."""
    return [(line.id, line.lock.inode, line.lock) for line in parse("\n".join(info.lock_lines))]


def _inode(text: str) -> int | None:
    start = text.find("\nino:")
    word = text[start + 5 :].split(None, 1)[:1] if start >= 0 else []
    return int(word[0]) if word and word[0].isdecimal() else None


#: What a line says of a lock itself: device, inode, kind, pid, access, first and last byte (-1: the end of the file).
LockKey: TypeAlias = tuple[int, int, str, int, str, int, int]


def _key(lock: FileLock) -> LockKey:
    end = -1 if lock.end is None else lock.end
    return (lock.device, lock.inode, lock.kind, lock.pid, lock.access, lock.start, end)


def alike(locks: Iterable[FileLock]) -> dict[LockKey, list[FileLock]]:
    """Locks that the kernel's lines do not tell apart: several open files have them to read the same bytes."""
    found: dict[LockKey, list[FileLock]] = {}
    for lock in locks:
        found.setdefault(_key(lock), []).append(lock)
    return found


# Of descriptors those that are of one open file together; `None` if that cannot be told.
Apart = Callable[[Sequence[Holder]], list[tuple[Holder, ...]] | None]


def complete(
    locks: Sequence[FileLock],
    known: Mapping[tuple[int, int], str],
    openers: Openers,
    *,
    apart: Apart = lambda _: None,
    proc_root: str = PROC,
) -> tuple[FileLock, ...]:
    """The locks with path, openers, and the descriptors that carry them. Of several that are alike each is that of one
    open file; which descriptors those are of has to be known then.
    """
    done = []
    for key, same in sorted(alike(locks).items(), key=lambda item: item[0]):
        lock = same[0]
        path = known.get((lock.device, lock.inode))
        openers_of = openers.of(path) if path is not None else ()
        holders = []
        for opener in openers_of:
            info = parse_fdinfo(read_text(f"{proc_root}/{opener.pid}/fdinfo/{opener.fd}") or "")
            if any(_key(each) == key for _, _, each in carried(info)):
                holders.append(Holder(pid=opener.pid, fd=opener.fd, mode=opener.mode))
        opened_by = tuple(sorted({opener.pid for opener in openers_of}))
        for lock, carriers in zip(same, _each(len(same), holders, apart), strict=True):
            done.append(replace(lock, path=path, openers=opened_by, holders=carriers))
    return tuple(done)


def _each(count: int, carriers: Sequence[Holder], apart: Apart) -> list[tuple[Holder, ...]]:
    """Who carries each of so many locks that are alike; () of those whose carriers were not found."""
    if count == 1:
        return [tuple(carriers)]
    found = (apart(carriers) if len(carriers) > 1 else [tuple(carriers)]) if carriers else []
    if found is None or len(found) > count:
        found = []
    return found + [()] * (count - len(found))
