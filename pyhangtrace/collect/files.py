"""The descriptors that blocked threads wait on, and who could end the wait: other ends, holders, watched sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pyhangtrace.collect import descriptors, sockets
from pyhangtrace.collect.descriptors import Descriptor, Openers
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.model.evidence import FdFacts, Holder, SocketFacts, ThreadSample
from pyhangtrace.model.kinds import FdKind

_MAX_FDS_PER_PROCESS = 512
_LATER_SEARCH_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Descriptors that matter, and the search they came from (for file locks and lock files)."""

    described: dict[tuple[int, int], Descriptor]
    sockets: dict[int, SocketFacts]
    openers: Openers
    problem: str | None


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
    watched: dict[int, set[int]] = {}
    for found in described.values():
        if found.watches:
            watched.setdefault(found.pid, set()).update(found.watches[:_MAX_FDS_PER_PROCESS])
    missing = {pid: fds - wanted.get(pid, set()) for pid, fds in watched.items()}
    described.update(descriptors.collect(reader, missing, deadline_s=deadline_s))

    facts, problem = _sockets(reader, described.values(), deadline_s=deadline_s)
    links = set(paths)
    for found in described.values():
        if found.kind in (FdKind.PIPE, FdKind.SOCKET, FdKind.FILE):
            links.add(found.link)
        if found.kind is FdKind.SOCKET and found.inode in facts and facts[found.inode].peer_inode:
            links.add(f"socket:[{facts[found.inode].peer_inode}]")
    known = before.openers if before is not None else Openers()
    new = links - known.searched
    # A thread that has come to something new since the last look moves: it is not worth searching the host again.
    budget_s = search_s if before is None else min(search_s, _LATER_SEARCH_S)
    openers = known.with_more(descriptors.find_openers(new, members, budget_s=budget_s, proc_root=proc_root))
    return OpenFiles(described, facts, openers, problem)


def _sockets(
    reader: GuardedReader, found: Iterable[Descriptor], *, deadline_s: float
) -> tuple[dict[int, SocketFacts], str | None]:
    wanted: dict[int, set[int]] = {}
    for each in found:
        if each.kind is FdKind.SOCKET and each.inode is not None:
            wanted.setdefault(each.pid, set()).add(each.inode)
    return sockets.collect(reader, wanted, deadline_s=deadline_s)


def facts(files: OpenFiles) -> tuple[FdFacts, ...]:
    """The evidence, ordered by process and descriptor."""
    return tuple(_facts(found, files) for _, found in sorted(files.described.items()))


def _facts(found: Descriptor, files: OpenFiles) -> FdFacts:
    others: tuple[Holder, ...] = ()
    peers: tuple[Holder, ...] = ()
    about = None
    if found.kind in (FdKind.PIPE, FdKind.SOCKET, FdKind.FILE):
        others = tuple(
            holder
            for holder in files.openers.of(found.link)
            if (holder.pid, holder.fd) != (found.pid, found.fd)
        )
    if found.kind is FdKind.SOCKET and found.inode is not None:
        about = files.sockets.get(found.inode)
        if about is not None and about.peer_inode is not None:
            peers = files.openers.of(f"socket:[{about.peer_inode}]")
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
        socket=replace(about) if about is not None else None,
        watches=found.watches,
        fs_type=found.fs_type,
        holders_complete=found.link not in files.openers.partial,
    )
