"""TCP connections of whole processes: which of them talk with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyhangtrace.collect.descriptors import kind_of, named_inode
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import numbers, read_link, read_text
from pyhangtrace.collect.sockets import LARGEST_TABLE, parse_inet
from pyhangtrace.model.kinds import FdKind

CONNECTIONS_TASK = "connections"
_TABLES = ("tcp", "tcp6")
_LOOPBACK = ("127.", "[::1]")

#: Both ends of a connection, the own one first.
Ends = tuple[str, str]


def connections_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the ends of the established connections of each process."""
    tables: dict[str, dict[int, Ends]] = {}
    for pid in pids:
        progress(pid)
        namespace = read_link(f"{state.proc_root}/{pid}/ns/net") or str(pid)
        if namespace not in tables:
            tables[namespace] = _established(pid, namespace, state.proc_root)
        known = tables[namespace]
        yield pid, [known[inode] for inode in _sockets(pid, state.proc_root) if inode in known]


def collect(
    reader: GuardedReader, pids: Sequence[int], *, deadline_s: float
) -> Mapping[int, frozenset[Ends]]:
    """Ends of connections by pid; two processes are connected where one has them the other way round."""
    answers = reader.run(CONNECTIONS_TASK, pids, deadline_s=deadline_s)
    return {pid: frozenset(found) for pid, found in answers.values.items()}


def _sockets(pid: int, proc_root: str) -> Iterator[int]:
    folder = f"{proc_root}/{pid}/fd"
    for fd in numbers(folder):
        link = read_link(f"{folder}/{fd}")
        if link is not None and kind_of(link) is FdKind.SOCKET and (inode := named_inode(link)) is not None:
            yield inode


def _established(pid: int, namespace: str, proc_root: str) -> dict[int, Ends]:
    found: dict[int, Ends] = {}
    for table in _TABLES:
        for inode, facts in parse_inet(
            read_text(f"{proc_root}/{pid}/net/{table}", LARGEST_TABLE) or "", table
        ):
            if facts.state == "ESTABLISHED" and inode and facts.local and facts.remote:
                found[inode] = (_of(facts.local, namespace), _of(facts.remote, namespace))
    return found


def _of(address: str, namespace: str) -> str:
    """Every network namespace has a loopback of its own."""
    return f"{namespace} {address}" if address.startswith(_LOOPBACK) else address
