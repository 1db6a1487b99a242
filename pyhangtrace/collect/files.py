"""The descriptors that blocked threads wait on, and who could end the wait: other ends, holders, watched sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pyhangtrace.collect import descriptors, sockets
from pyhangtrace.collect.descriptors import Descriptor, Openers
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.mounts import fuse_connection
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.model.kinds import FdKind
from pyhangtrace.model.open_files import FdFacts, Holder, SocketFacts
from pyhangtrace.model.threads import ThreadSample

_MAX_FDS_PER_PROCESS = 512
_MOST_NESTED = 5  # epoll sets in epoll sets; the kernel allows no more
# Objects that several processes may have open, found by what /proc shows as the target of the descriptor.
_SHARED = frozenset({FdKind.PIPE, FdKind.SOCKET, FdKind.FILE, FdKind.EVENTFD, FdKind.MQUEUE})
_LATER_SEARCH_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Descriptors that matter, and the search they came from (for file locks and lock files)."""

    described: dict[tuple[int, int], Descriptor]
    sockets: dict[int, SocketFacts]
    openers: Openers
    problem: str | None
    named: dict[str, int] = field(default_factory=dict)  # inodes of UNIX sockets that are asked for by name


def collect(
    reader: GuardedReader,
    samples: Iterable[ThreadSample],
    members: Sequence[int],
    *,
    paths: Collection[str] = (),
    before: OpenFiles | None = None,
    deadline_s: float,
    search_s: float,
    proc_root: str = PROC,
) -> OpenFiles:
    """Describes the descriptors in `io_fds` of the samples and in the epoll sets among them, and finds who else has
    them open (and who has `paths` open). What an earlier look found is taken over where nothing new is asked.
    """
    wanted: dict[int, set[int]] = {}
    for sample in samples:
        if sample.io_fds:
            wanted.setdefault(sample.pid, set()).update(sample.io_fds[:_MAX_FDS_PER_PROCESS])
    described = descriptors.collect(reader, wanted, deadline_s=deadline_s)
    new = described
    for _ in range(_MOST_NESTED):
        watched: dict[int, set[int]] = {}
        for found in new.values():
            inner = {fd for fd in found.watches[:_MAX_FDS_PER_PROCESS] if (found.pid, fd) not in described}
            if inner:
                watched.setdefault(found.pid, set()).update(inner)
        if not watched:
            break
        new = descriptors.collect(reader, watched, deadline_s=deadline_s)
        described.update(new)

    samples = list(samples)
    found_sockets = _sockets(reader, described.values(), samples, deadline_s=deadline_s)
    facts = found_sockets.facts
    links = set(paths)
    links.update(f"socket:[{inode}]" for inode in found_sockets.named.values())
    if any("userfault" in (sample.wchan or "") for sample in samples):
        links.add(descriptors.USERFAULTFD)
    if any(sample.fuse_connection is not None for sample in samples):
        links.add(descriptors.FUSE)
    for found in described.values():
        if found.kind in _SHARED:
            links.add(found.link)
        if fuse_connection(found.fs_type, found.device) is not None:
            links.add(descriptors.FUSE)
        if found.kind is FdKind.SOCKET and found.inode in facts and facts[found.inode].peer_inode:
            links.add(f"socket:[{facts[found.inode].peer_inode}]")
    known = before.openers if before is not None else Openers()
    unsearched = links - known.searched
    # A thread that has come to something new since the last look moves: it is not worth searching the host again.
    budget_s = search_s if before is None else min(search_s, _LATER_SEARCH_S)
    openers = known.with_more(
        descriptors.find_openers(unsearched, members, budget_s=budget_s, proc_root=proc_root)
    )
    return OpenFiles(described, facts, openers, found_sockets.problem, found_sockets.named)


def _sockets(
    reader: GuardedReader,
    found: Iterable[Descriptor],
    samples: Iterable[ThreadSample],
    *,
    deadline_s: float,
) -> sockets.Found:
    wanted: dict[int, set[int | str]] = {}
    for each in found:
        if each.kind is FdKind.SOCKET and each.inode is not None:
            wanted.setdefault(each.pid, set()).add(each.inode)
    for sample in samples:
        if sample.pid in wanted and sample.path is not None and sample.path.startswith(("/", "@")):
            wanted[sample.pid].add(sample.path)
    return sockets.collect(reader, wanted, deadline_s=deadline_s)


def servers(files: OpenFiles, samples: Iterable[ThreadSample]) -> tuple[FdFacts, ...]:
    """Who could answer threads that wait for a page or a file by name: the userfaultfds in which a fault waits, and the
    connections of the FUSE servers that are asked."""
    samples = list(samples)
    found: dict[str, tuple[FdKind, str]] = {}
    if any("userfault" in (sample.wchan or "") for sample in samples):
        prefix = f"{descriptors.USERFAULTFD}#"
        found.update(
            (link, (FdKind.USERFAULTFD, descriptors.USERFAULTFD))
            for link in files.openers.by_link
            if link.startswith(prefix) and link != f"{prefix}0"
        )
    for sample in samples:
        if sample.fuse_connection is not None:
            link = descriptors.fuse_link(sample.fuse_connection)
            found[link] = (FdKind.DEVICE, descriptors.FUSE)
    return tuple(
        FdFacts(
            pid=holder.pid,
            fd=holder.fd or 0,
            kind=kind,
            target=target,
            mode=holder.mode,
            info=(_connection_of(link),) if target == descriptors.FUSE else (),
            holders_complete=target not in files.openers.partial,
        )
        for link, (kind, target) in sorted(found.items())
        for holder in files.openers.by_link.get(link, ())
    )


def _connection_of(link: str) -> tuple[str, int]:
    return "fuse_connection", int(link.rpartition("#")[2])


def facts(files: OpenFiles, samples: Iterable[ThreadSample] = ()) -> tuple[FdFacts, ...]:
    """The evidence, ordered by process and descriptor. `samples` say which sockets are asked for by name."""
    named = {
        (sample.pid, sample.io_fds[0]): files.named[sample.path]
        for sample in samples
        if sample.path in files.named and len(sample.io_fds) == 1
    }
    return tuple(_facts(found, files, named.get(key)) for key, found in sorted(files.described.items()))


def _facts(found: Descriptor, files: OpenFiles, asked: int | None) -> FdFacts:
    others: tuple[Holder, ...] = ()
    peers: tuple[Holder, ...] = ()
    about = None
    queued = found.queued
    if found.kind in _SHARED:
        others = tuple(
            holder
            for holder in files.openers.of(descriptors.link_of_one(found.link, found.info))
            if (holder.pid, holder.fd) != (found.pid, found.fd)
        )
    if found.kind is FdKind.SOCKET and found.inode is not None:
        about = files.sockets.get(found.inode)
        if about is not None and about.peer_inode is None and asked is not None:
            about = replace(about, peer_inode=asked)
        if about is not None and about.peer_inode is not None:
            peers = files.openers.of(f"socket:[{about.peer_inode}]")
        queued = about.rx_queue if about is not None else None
    connection = fuse_connection(found.fs_type, found.device)
    if connection is not None:
        peers = files.openers.of(descriptors.fuse_link(connection))
    return FdFacts(
        pid=found.pid,
        fd=found.fd,
        kind=found.kind,
        target=found.link,
        inode=found.inode,
        device=found.device,
        mode=found.mode,
        nonblocking=found.nonblocking,
        others=others,
        peers=peers,
        socket=about,
        watches=found.watches,
        watches_out=found.watches_out,
        watches_room=found.watches_room,
        queued=queued,
        fs_type=found.fs_type,
        mount=found.mount,
        info=found.info,
        holders_complete=found.link not in files.openers.partial,
    )
