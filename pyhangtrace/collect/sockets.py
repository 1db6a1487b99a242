"""Sockets by inode: family, state, queues, and the other end where it is on this host.

UNIX sockets through the kernel's socket diagnostics (only they name the peer), TCP and UDP from the tables in
/proc/PID/net. Layouts: linux/unix_diag.h, linux/netlink.h, net/ipv4/tcp_ipv4.c (`get_tcp4_sock`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.namespaces import Namespace, inside
from pyhangtrace.collect.procfs import printable, read_link, read_text
from pyhangtrace.model.open_files import SocketFacts

SOCKETS_TASK = "sockets"
_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
}
_TYPES = {1: "stream", 2: "dgram", 5: "seqpacket"}
_TABLES = (("tcp", "tcp"), ("tcp6", "tcp6"), ("udp", "udp"), ("udp6", "udp6"))
LARGEST_TABLE = 32 << 20

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_SHOW_NAME, _SHOW_PEER, _SHOW_QUEUES = 1, 4, 16
_NAME, _PEER, _QUEUES = 0, 2, 4
_MESSAGE = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_SOCKET = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_DIAG_TIMEOUT_S = 1.0


def sockets_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: ({inode: SocketFacts} of the inodes asked for and their other ends, {name: inode} of the UNIX sockets asked
    for by name, problem) per process.

    Processes of one network namespace share one reading; the first of them gets all of it.
    """
    groups: dict[str, list[int]] = {}
    for pid in pids:
        groups.setdefault(read_link(f"{state.proc_root}/{pid}/ns/net") or "?", []).append(pid)
    ours = read_link(f"{state.proc_root}/self/ns/net")
    for namespace, members in groups.items():
        progress(members[0])
        wanted = {inode for pid in members for inode in argument[pid] if isinstance(inode, int)}
        names = {name for pid in members for name in argument[pid] if isinstance(name, str)}
        named: dict[str, int] = {}
        # All tables at once: an IPv4 socket may talk to a dual-stack one, which stands in the other table.
        found = select(
            [
                entry
                for family, table in _TABLES
                for entry in parse_inet(
                    read_text(f"{state.proc_root}/{members[0]}/net/{table}", LARGEST_TABLE) or "", family
                )
            ],
            wanted,
        )
        problem = None
        if wanted - found.keys():
            try:
                foreign = namespace not in (ours, "?")
                path = f"{state.proc_root}/{members[0]}/ns/net" if foreign else None
                unix = unix_sockets(path)
                named = {facts.local: inode for inode, facts in unix if facts.local in names}
                found.update(select(unix, wanted))
            except OSError as error:
                problem = f"socket diagnostics: {error.strerror}"
        yield members[0], (found, named, problem)
        for pid in members[1:]:
            yield pid, ({}, {}, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Facts by inode, inodes of UNIX sockets by name, and why some are missing."""

    facts: dict[int, SocketFacts] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    problem: str | None = None


def collect(reader: GuardedReader, wanted: dict[int, set[int | str]], *, deadline_s: float) -> Found:
    """What is known of the sockets each process waits on, by inode, or asks for, by the name they are bound to."""
    if not wanted:
        return Found()
    answers = reader.run(SOCKETS_TASK, list(wanted), wanted, deadline_s=deadline_s)
    facts: dict[int, SocketFacts] = {}
    named: dict[str, int] = {}
    problem = None
    for found, names, trouble in answers.values.values():
        facts.update(found)
        named.update(names)
        problem = problem or trouble
    return Found(facts=facts, named=named, problem=problem or next(iter(answers.problems.values()), None))


def select(sockets: Iterable[tuple[int, SocketFacts]], wanted: set[int]) -> dict[int, SocketFacts]:
    """Those wanted, with `peer_inode`, and the other ends themselves."""
    by_inode = dict(sockets)
    by_ends = {
        (facts.local, facts.remote): inode
        for inode, facts in by_inode.items()
        if facts.family.startswith("tcp") and inode and facts.state != "LISTEN"
    }
    listeners = {
        facts.local: inode
        for inode, facts in by_inode.items()
        if facts.family.startswith("tcp") and facts.state == "LISTEN"
    }
    found: dict[int, SocketFacts] = {}
    for inode in wanted & by_inode.keys():
        facts = by_inode[inode]
        peer = facts.peer_inode
        if peer is None and facts.family.startswith("tcp"):
            peer = by_ends.get((facts.remote, facts.local))
            if facts.state == "SYN_SENT":
                peer = _listener(facts, listeners)
        other = by_inode.get(peer) if peer is not None else None
        found[inode] = replace(
            facts, peer_inode=peer, peer_rx_queue=other.rx_queue if other is not None else None
        )
        if peer is not None and other is not None and other.state != "LISTEN":
            found.setdefault(peer, replace(other, peer_inode=inode, peer_rx_queue=facts.rx_queue))
    return found


def _listener(facts: SocketFacts, listeners: Mapping[str, int]) -> int | None:
    """Who listens where a connection is asked for, if that is on this host: one asks oneself from the same address."""
    here, there = facts.local.rpartition(":")[0], facts.remote.rpartition(":")
    if facts.remote in listeners:
        return listeners[facts.remote]
    if here != there[0]:
        return None
    return listeners.get(f"0.0.0.0:{there[2]}") or listeners.get(f"[::]:{there[2]}")


def parse_inet(text: str, family: str) -> Iterator[tuple[int, SocketFacts]]:
    """(inode, facts) for each line of /proc/PID/net/{tcp,tcp6,udp,udp6}."""
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 10:
            continue
        try:
            transmit, _, receive = words[4].partition(":")
            yield (
                int(words[9]),
                SocketFacts(
                    family=family,
                    state=_STATES.get(int(words[3], 16), words[3]),
                    local=_address(words[1]),
                    remote=_address(words[2]),
                    tx_queue=int(transmit, 16),
                    rx_queue=int(receive, 16),
                    type="stream" if family.startswith("tcp") else "dgram",
                ),
            )
        except ValueError:
            continue


def _address(text: str) -> str:
    """`0100007F:0016` as `127.0.0.1:22`: 32-bit words in the byte order of the machine."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address):
        # A dual-stack listener's connections are IPv4 ones: without this the two ends would not meet.
        if address.ipv4_mapped is not None:
            return f"{address.ipv4_mapped}:{int(port, 16)}"
        return f"[{address}]:{int(port, 16)}"
    return f"{address}:{int(port, 16)}"


def unix_sockets(namespace: str | None) -> list[tuple[int, SocketFacts]]:
    """All UNIX sockets of a network namespace (a path of /proc; `None`: ours). Raises OSError."""
    diagnostics = _diagnostics(namespace)
    with diagnostics:
        diagnostics.settimeout(_DIAG_TIMEOUT_S)
        request = _REQUEST.pack(
            socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_PEER | _SHOW_QUEUES, 0, 0
        )
        size = _MESSAGE.size + len(request)
        diagnostics.send(_MESSAGE.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0) + request)
        found: list[tuple[int, SocketFacts]] = []
        while parse_unix(diagnostics.recv(1 << 18), found):
            pass
        return found


def _diagnostics(namespace: str | None) -> socket.socket:
    with inside(namespace, Namespace.NET):
        return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)


def parse_unix(data: bytes, found: list[tuple[int, SocketFacts]]) -> bool:
    """Adds the sockets of one datagram of a dump; whether more may follow. Raises OSError if the kernel says no."""
    at = 0
    while at + _MESSAGE.size <= len(data):
        size, kind, _, _, _ = _MESSAGE.unpack_from(data, at)
        if kind == _NLMSG_DONE or size < _MESSAGE.size:
            return False
        if kind == _NLMSG_ERROR:
            (error,) = struct.unpack_from("=i", data, at + _MESSAGE.size)
            raise OSError(-error, os.strerror(-error))
        body = data[at + _MESSAGE.size : at + size]
        if len(body) >= _SOCKET.size:
            found.append(_unix_socket(body))
        at += (size + 3) & ~3
    return bool(data)


def _unix_socket(body: bytes) -> tuple[int, SocketFacts]:
    _, kind_of_socket, state, _, inode, _, _ = _SOCKET.unpack_from(body)
    name, peer, receive, transmit = "", None, None, None
    at = _SOCKET.size
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if size < _ATTRIBUTE.size:
            break
        value = body[at + _ATTRIBUTE.size : at + size]
        if kind == _NAME:
            name = printable(value.decode(errors="replace").rstrip("\0").replace("\0", "@"))
        elif kind == _PEER and len(value) >= 4:
            (peer,) = struct.unpack_from("=I", value)
        elif kind == _QUEUES and len(value) >= 8:
            receive, transmit = struct.unpack_from("=II", value)
        at += (size + 3) & ~3
    listening = state == 10
    return inode, SocketFacts(
        family="unix",
        state=_STATES.get(state, str(state)),
        local=name,
        peer_inode=peer or None,
        # A listener's numbers are connections waiting and the limit, not bytes.
        rx_queue=None if listening else receive,
        tx_queue=None if listening else transmit,
        type=_TYPES.get(kind_of_socket, str(kind_of_socket)),
    )
