"""Single descriptors of a process, and who else on the host has the same thing open."""

from __future__ import annotations

import os
import re
import select
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.mounts import SERVED, Mount, read_mounts
from pyhangtrace.collect.procfs import PROC, numbers, others_hidden, pids, printable, read_link, read_text
from pyhangtrace.model.kinds import FdKind
from pyhangtrace.model.open_files import Holder

DESCRIBE_TASK = "descriptors"
_ANONYMOUS = {
    "[eventfd]": FdKind.EVENTFD,
    "[eventpoll]": FdKind.EPOLL,
    "[timerfd]": FdKind.TIMERFD,
    "[signalfd]": FdKind.SIGNALFD,
    "inotify": FdKind.INOTIFY,
    "[inotify]": FdKind.INOTIFY,
    "[pidfd]": FdKind.PIDFD,
    "[io_uring]": FdKind.IO_URING,
    "[userfaultfd]": FdKind.USERFAULTFD,
}
_MODES = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_MAX_WATCHES = 1024

# Numbers of fdinfo that say what the object is, and how it stands. Source: the kernel's show_fdinfo functions.
_DECIMAL = frozenset(
    {"eventfd-id", "Pid", "clockid", "pending", "total", "fuse_connection", "ino"}
    | {"SqHead", "SqTail", "CqHead", "CqTail", "CachedSqHead", "CachedCqTail", "SqThread"}
)
_HEXADECIMAL = frozenset({"eventfd-count", "sigmask"})
_TIMES = frozenset({"it_value", "it_interval"})  # (seconds, nanoseconds)

# One of many objects behind one link: the number that tells which.
EVENTFD, USERFAULTFD, FUSE = "anon_inode:[eventfd]", "anon_inode:[userfaultfd]", "/dev/fuse"
_IDENTITY = {EVENTFD: "eventfd-id", FUSE: "fuse_connection", USERFAULTFD: "pending"}

_MQUEUE_SIZE = 80  # of each inode of that file system (FILENT_SIZE)
_MQUEUE_TEXT = re.compile(r"QSIZE:(\d+)\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """One open descriptor; `lock_lines` are the kernel's words on file locks that it carries."""

    pid: int
    fd: int
    link: str  # as /proc shows it: also the key under which other holders are found
    kind: FdKind
    inode: int | None = None
    device: int | None = None
    mode: str = ""
    nonblocking: bool = False
    watches: tuple[int, ...] = ()
    watches_out: tuple[int, ...] = ()
    watches_room: tuple[int, ...] = ()
    fs_type: str | None = None
    mount: str | None = None
    info: tuple[tuple[str, int], ...] = ()
    queued: int | None = None
    lock_lines: tuple[str, ...] = ()


def describe_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the descriptors of each pid that `argument` asks for. Guarded, as stat(2) may ask a dead file server."""
    mounts: dict[str, dict[int, Mount]] = {}
    for pid in pids:
        progress(pid)
        described = (describe(pid, fd, state.proc_root, mounts) for fd in argument[pid])
        yield pid, [found for found in described if found is not None]


def collect(
    reader: GuardedReader, wanted: Mapping[int, Collection[int]], *, deadline_s: float
) -> dict[tuple[int, int], Descriptor]:
    """The wanted descriptors by (pid, fd). Of a process where that may block, what needs no stat."""
    asked = {pid: sorted(fds) for pid, fds in wanted.items() if fds}
    answers = reader.run(DESCRIBE_TASK, list(asked), asked, deadline_s=deadline_s)
    return {(found.pid, found.fd): found for each in answers.values.values() for found in each}


def describe(pid: int, fd: int, proc_root: str, mounts: dict[str, dict[int, Mount]]) -> Descriptor | None:
    """One descriptor, `None` if it is closed. `mounts` keeps file system types between calls."""
    path = f"{proc_root}/{pid}/fd/{fd}"
    link = read_link(path)
    if link is None:
        return None
    info = parse_fdinfo(read_text(f"{proc_root}/{pid}/fdinfo/{fd}") or "")
    kind = kind_of(link)
    inode, device, queued = named_inode(link), None, None
    mount = None
    if kind is None and info.mount is not None:
        mount = _mounts(pid, proc_root, mounts).get(info.mount)
    if kind is None and mount is not None and mount.fs_type.startswith(SERVED):
        kind, inode, device = FdKind.FILE, dict(info.numbers).get("ino"), mount.device
    elif kind is None or kind in (FdKind.MEMFD, FdKind.PIPE):
        try:
            status = os.stat(path)
        except OSError:
            kind = kind or FdKind.FILE
        else:
            kind = kind or kind_of_mode(status.st_mode, link)
            inode = status.st_ino
            device = status.st_dev if kind is not FdKind.DEVICE and kind is not FdKind.TTY else status.st_rdev
            if kind is FdKind.FILE and mount is None and status.st_size == _MQUEUE_SIZE:
                queued = _queued(path)
                kind = FdKind.MQUEUE if queued is not None else kind
    if kind not in (FdKind.FILE, FdKind.DIRECTORY, FdKind.PIPE):
        mount = None
    return Descriptor(
        pid=pid,
        fd=fd,
        link=printable(link),
        kind=kind,
        inode=inode,
        device=device,
        mode=info.mode,
        nonblocking=info.nonblocking,
        watches=info.watches,
        watches_out=info.watches_out,
        watches_room=info.watches_room,
        fs_type=mount.fs_type if mount is not None else None,
        mount=printable(mount.place) if mount is not None else None,
        info=tuple((key, value) for key, value in info.numbers if key != "ino"),
        queued=queued,
        lock_lines=info.lock_lines,
    )


def _queued(path: str) -> int | None:
    """Bytes in a POSIX message queue, `None` if it is none. That another one has it open changes nothing."""
    match = _MQUEUE_TEXT.match(read_text(path, _MQUEUE_SIZE) or "")
    return int(match[1]) if match is not None else None


@dataclass(frozen=True, slots=True)
class FdInfo:
    """/proc/PID/fdinfo/FD."""

    mode: str = ""
    nonblocking: bool = False
    mount: int | None = None
    watches: tuple[int, ...] = ()
    watches_out: tuple[int, ...] = ()
    watches_room: tuple[int, ...] = ()
    lock_lines: tuple[str, ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()


def parse_fdinfo(text: str) -> FdInfo:
    """What an fdinfo file says; keys that are not there leave the defaults."""
    mode, nonblocking, mount = "", False, None
    watches: list[int] = []
    watches_out: list[int] = []
    watches_room: list[int] = []
    locks: list[str] = []
    found: list[tuple[str, int]] = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        value = value.strip()
        try:
            if key == "flags":
                flags = int(value, 8)
                mode, nonblocking = _MODES.get(flags & os.O_ACCMODE, ""), bool(flags & os.O_NONBLOCK)
            elif key == "mnt_id":
                mount = int(value)
            elif key == "tfd" and len(watches) < _MAX_WATCHES:
                words = value.split()
                watches.append(int(words[0]))
                events = int(words[2], 16) if words[1:2] == ["events:"] else 0
                if events & select.EPOLLOUT:
                    watches_out.append(watches[-1])
                    if not events & select.EPOLLIN:
                        watches_room.append(watches[-1])
            elif key == "lock":
                locks.append(value)
            elif key in _DECIMAL:
                found.append((key, int(value)))
            elif key in _HEXADECIMAL:
                found.append((key, int(value, 16)))
            elif key in _TIMES:
                seconds, _, nanoseconds = value.strip("()").partition(",")
                found.append((f"{key}_ns", int(seconds) * 1_000_000_000 + int(nanoseconds)))
        except (ValueError, IndexError):
            continue
    return FdInfo(
        mode=mode,
        nonblocking=nonblocking,
        mount=mount,
        watches=tuple(watches),
        watches_out=tuple(watches_out),
        watches_room=tuple(watches_room),
        lock_lines=tuple(locks),
        numbers=tuple(found),
    )


def link_of_one(link: str, numbers: Collection[tuple[str, int]]) -> str:
    """The link, with the number that tells which one of the objects behind it is meant."""
    number = dict(numbers).get(_IDENTITY.get(link, ""))
    return link if number is None else f"{link}#{number}"


def fuse_link(connection: int) -> str:
    """The link of the descriptors of a FUSE connection's server."""
    return link_of_one(FUSE, [(_IDENTITY[FUSE], connection)])


def kind_of(link: str) -> FdKind | None:
    """The kind that a link of /proc/PID/fd tells by itself, `None` where the file has to be asked."""
    if link.startswith("pipe:"):
        return FdKind.PIPE
    if link.startswith("socket:"):
        return FdKind.SOCKET
    if link.startswith("anon_inode:"):
        return _ANONYMOUS.get(link.removeprefix("anon_inode:"), FdKind.OTHER)
    if link.startswith("/memfd:"):
        return FdKind.MEMFD
    if link.startswith(("/dev/pts/", "/dev/tty")):
        return FdKind.TTY
    return None


def kind_of_mode(mode: int, link: str) -> FdKind:
    """The kind that stat(2) tells."""
    if stat.S_ISREG(mode):
        return FdKind.FILE
    if stat.S_ISDIR(mode):
        return FdKind.DIRECTORY
    if stat.S_ISFIFO(mode):
        return FdKind.PIPE
    if stat.S_ISSOCK(mode):
        return FdKind.SOCKET
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return FdKind.TTY if link == "/dev/console" else FdKind.DEVICE
    return FdKind.OTHER


def named_inode(link: str) -> int | None:
    """The inode in `pipe:[123]`."""
    number = link.partition("[")[2].rstrip("]")
    return int(number) if number.isdecimal() else None


def _mounts(pid: int, proc_root: str, kept: dict[str, dict[int, Mount]]) -> dict[int, Mount]:
    namespace = read_link(f"{proc_root}/{pid}/ns/mnt") or str(pid)
    if namespace not in kept:
        kept[namespace] = {mount.id: mount for mount in read_mounts(pid, proc_root)}
    return kept[namespace]


@dataclass(frozen=True, slots=True)
class Openers:
    """Who has what open: holders by link. `partial` are the links for which not everybody could be searched;
    `closed` the processes that may not be looked into, 0 for all those outside this PID namespace.
    """

    by_link: dict[str, list[Holder]] = field(default_factory=dict)
    searched: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()
    closed: frozenset[int] = frozenset()

    @property
    def complete(self) -> bool:
        """Every process of the host was searched for every link."""
        return not self.partial

    def of(self, link: str) -> tuple[Holder, ...]:
        """All holders of what this link names."""
        return tuple(self.by_link.get(link, ()))

    def with_more(self, other: Openers) -> Openers:
        """Both searches as one; where both looked for a link, the other one's answer."""
        return Openers(
            by_link={**self.by_link, **other.by_link},
            searched=self.searched | other.searched,
            partial=(self.partial - other.searched) | other.partial,
            closed=self.closed | other.closed,
        )


_INIT = 1


def find_openers(
    links: Collection[str],
    first: Sequence[int],
    *,
    budget_s: float,
    proc_root: str = PROC,
) -> Openers:
    """Searches the descriptors of `first`, then of everybody else, for these links until the time is up.

    A link is enough: pipes and sockets carry their inode in it, files their path (in the holder's own view). Event
    counters are told apart by number (`link_of_one`), and only searched for in `first`.
    """
    wanted = frozenset(links)
    if not wanted:
        return Openers()
    by_link: dict[str, list[Holder]] = {}
    in_time = True
    closed = set()
    until = time.monotonic() + budget_s
    members = list(dict.fromkeys(first))
    known = set(members)
    others = [pid for pid in pids(proc_root) if pid not in known]
    for position, pid in enumerate((*members, *others)):
        if position == len(members):
            wanted = wanted - {EVENTFD}
            if not wanted:
                break
        if position >= len(members) and time.monotonic() > until:
            in_time = False
            break
        if not _search(pid, wanted, by_link, proc_root):
            closed.add(pid)
    wanted = frozenset(links)
    partial = wanted
    if others_hidden(proc_root):
        closed.add(0)
    if in_time and closed <= {0, _INIT}:
        # Init and what started a container may hold an end of what a job inherits; they lock no files of it.
        partial = frozenset(link for link in wanted if closed and not link.startswith("/"))
    return Openers(by_link, wanted, partial, frozenset(closed))


def _search(pid: int, wanted: frozenset[str], by_link: dict[str, list[Holder]], proc_root: str) -> bool:
    """Adds what one process has open; False if it may not be looked into."""
    folder = f"{proc_root}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except PermissionError:
        return False
    except OSError:  # gone
        return True
    for name in names:
        try:
            link = os.readlink(f"{folder}/{name}")
        except PermissionError:  # a folder that can be listed is not one that can be followed
            return False
        except OSError:  # closed
            continue
        if link in wanted and name.isdecimal():
            info = parse_fdinfo(read_text(f"{proc_root}/{pid}/fdinfo/{name}") or "")
            one = link_of_one(link, info.numbers)
            by_link.setdefault(one, []).append(Holder(pid=pid, fd=int(name), mode=info.mode))
    return True


def open_fds(pid: int, proc_root: str = PROC) -> list[int]:
    """Numbers of a process' open descriptors; [] if they may not be seen."""
    return numbers(f"{proc_root}/{pid}/fd")
