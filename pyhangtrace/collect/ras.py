"""NCCL's RAS service, asked once: which process answers is known before a word is said to it.

All processes of a host listen on one address, jobs of others too, and the kernel picks who gets a connection. So the
client looks up who accepted it, hangs up on strangers and on those that do not accept, and says nothing to either.
It runs in a process of its own, since it may enter the job's network namespace, and since the other side may keep
silent. Source of the protocol: NCCL's documentation ("RAS", client protocol 2) and the answers of its releases.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyhangtrace.collect import namespaces, nccl_version
from pyhangtrace.collect.descriptors import open_fds
from pyhangtrace.collect.guarded import TIMED_OUT, GuardedReader, HelperState, Progress
from pyhangtrace.collect.namespaces import Namespace
from pyhangtrace.collect.processes import environs
from pyhangtrace.collect.procfs import PROC, printable, read_link, read_text
from pyhangtrace.collect.ras_gate import RasMode, Version, all_here, hazards, leave, parse_version
from pyhangtrace.collect.sockets import parse_inet
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.nccl import NcclState
from pyhangtrace.model.open_files import SocketFacts
from pyhangtrace.model.ras import RasAnswer
from pyhangtrace.model.threads import ThreadSample

SOURCE = "ras"
QUERY_TASK = "ras_query"
SETTINGS_TASK = "ras_settings"

DEFAULT_PORT = 28028
ASKED_S = 8.0  # asked for by name; a rank that is stopped costs it five seconds
_ENABLE, _ADDRESS, _FILE = "NCCL_RAS_ENABLE", "NCCL_RAS_ADDR", "NCCL_CONF_FILE"
_VARIABLES = (_ENABLE, _ADDRESS, _FILE, "HOME")
_LARGEST_ANSWER = 16 << 20
_LONGEST_REPLY = 1024
_LONGEST_SETTINGS = 1 << 16
_PATIENCE_S = 1.0  # for each reply to a word of the client
_ACCEPT_S = 0.5
_MOST_CONNECTIONS = 256
_POLL_S = 0.005
_LARGEST_TABLE = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to ask, and whom. `members` are the processes that may answer, `asked` those of them that should: a launcher
    may have started two jobs, and only they are known to be of the one that is meant.
    """

    port: int
    members: tuple[int, ...]
    asked: tuple[int, ...] = ()
    json_only: bool
    leg_timeout_s: int  # what RAS itself gives its peers to answer
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of it: the answer, if there is one, and lines for the coverage (none for a job without NCCL)."""

    found: RasAnswer | None = None
    coverage: tuple[SourceStatus, ...] = ()


def collect(
    reader: GuardedReader,
    members: Sequence[int],
    threads: Sequence[ThreadSample],
    states: Sequence[NcclState] = (),
    *,
    ended: bool = False,
    mode: RasMode,
    asked: Sequence[int] = (),
    deadline_s: float,
    proc_root: str = PROC,
) -> Asked:
    """Asks the RAS service of processes that have NCCL loaded, if the mode and their state allow it.

    `threads` are those of the whole job, `states` what NCCL's memory says of these processes, `ended`: one of them has.
    Takes `deadline_s` at most, or eight seconds where the user asked by name.
    """
    if not members:
        return Asked()
    insists = mode in (RasMode.ASK, RasMode.FORCE)
    versions: set[Version | None] = set()
    if mode is not RasMode.NEVER:
        found = nccl_version.collect(reader, members, deadline_s=min(0.5, deadline_s))
        versions = {parse_version(text) for text in found.values()}
    known = hazards(threads, members, states, ended=ended)
    permits = [
        leave(mode, version, known, pid=next(iter(asked), members[0]))
        for version in sorted(versions, key=str) or (None,)
    ]
    refused = next((permit for permit in permits if not permit.granted), None)
    if refused is not None:
        status = SourceStatus(
            source=SOURCE, state=SourceState.SKIPPED, reason=refused.reason, fix=refused.fix
        )
        return Asked(coverage=(status,))
    if not insists and all_here(states):
        reason = "not needed: all ranks are on this host, and NCCL's memory was read"
        return Asked(coverage=(SourceStatus(source=SOURCE, state=SourceState.SKIPPED, reason=reason),))
    port, off = _port(reader, members)
    if off is not None:
        return Asked(coverage=(SourceStatus(source=SOURCE, state=SourceState.ABSENT, reason=off),))
    limit_s = ASKED_S if insists else deadline_s
    question = Question(
        port=port,
        members=tuple(members),
        asked=tuple(pid for pid in asked if pid in members),
        json_only=any(permit.json_only for permit in permits),
        leg_timeout_s=max(1, int(limit_s / 3)),
        deadline_s=limit_s,
    )
    answer, status = query(question, proc_root=proc_root)
    return Asked(found=answer, coverage=(status,))


def query(question: Question, *, proc_root: str = PROC) -> tuple[RasAnswer | None, SourceStatus]:
    """Asks, in a process that is given up when its time is over."""
    first = question.members[0]
    with GuardedReader({QUERY_TASK: query_task}, proc_root=proc_root) as asker:
        answers = asker.run(QUERY_TASK, [first], question, deadline_s=question.deadline_s + 0.5)
    if first not in answers.values:
        problem = answers.problems.get(first, "")
        if problem and problem != TIMED_OUT:
            return None, _failed(SourceState.FAILED, problem)
        return None, _failed(SourceState.TIMED_OUT, f"no answer within {question.deadline_s:g} s")
    return interpret(answers.values[first], port=question.port)


def _failed(state: SourceState, reason: str) -> SourceStatus:
    fix = "run with sudo" if state is SourceState.REFUSED else ""
    return SourceStatus(source=SOURCE, state=state, reason=reason, fix=fix)


def interpret(heard: Mapping[str, Any], *, port: int) -> tuple[RasAnswer | None, SourceStatus]:
    """What the query's result (see `query_task`) means."""
    problem = heard.get("problem")
    if problem is not None:
        state, reason = problem
        return None, _failed(state, reason)
    # Few jobs are asked: the others need not pay for the readers of answers.
    from pyhangtrace.collect import ras_json, ras_text

    text = printable_lines(heard["text"])
    found = ras_json.parse(text) if heard["json"] else ras_text.parse(text, closed=heard["closed"])
    if found is None or not (found.nccl_version or found.communicators or found.table or found.problems):
        return None, _failed(SourceState.FAILED, f"what answers on port {port} gives no report of RAS")
    answer = replace(
        found,
        answered_by=heard["pid"],
        address=heard["address"],
        complete=found.complete and heard["closed"],
        took_s=round(heard["took_s"], 2),
    )
    silent = heard["silent"]
    notes = []
    if not answer.complete:
        notes.append("the answer ended too early")
    if silent:
        notes.append(f"{silent} connection{'s were' if silent > 1 else ' was'} not accepted")
    state = SourceState.USED if answer.complete else SourceState.FAILED
    return answer, SourceStatus(source=SOURCE, state=state, reason="; ".join(notes))


def printable_lines(text: str) -> str:
    """Text from a target, made safe to store, its lines kept."""
    return "\n".join(printable(line.rstrip("\r").replace("\t", " ")) for line in text.split("\n"))


# -- settings ------------------------------------------------------------------------------------------------


def _port(reader: GuardedReader, members: Sequence[int]) -> tuple[int, str | None]:
    """The port the job's RAS listens on, and why there is none. Environment goes before NCCL's files."""
    given = environs(reader, members[:1], _VARIABLES, deadline_s=0.5).get(members[0], {})
    answers = reader.run(SETTINGS_TASK, members[:1], (given.get(_FILE), given.get("HOME")), deadline_s=0.5)
    settings = {**(answers.values.get(members[0]) or {}), **given}
    if settings.get(_ENABLE, "").strip() == "0":
        return DEFAULT_PORT, "NCCL_RAS_ENABLE=0: the job runs without it"
    return port_of(settings.get(_ADDRESS, "")), None


def port_of(address: str) -> int:
    """The port of NCCL_RAS_ADDR ("host:port", "[address]:port"); NCCL's own where it names none."""
    port = address.strip().rpartition(":")[2]
    valid = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    return int(port) if valid else DEFAULT_PORT


def settings_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: variables that NCCL's files set, as the process sees those files. Guarded, as a path may not answer."""
    named, home = argument
    for pid in pids:
        progress(pid)
        own = named or (f"{home}/.nccl.conf" if home else None)
        found: dict[str, str] = {}
        for path in (own, "/etc/nccl.conf"):
            text = None
            if path is not None and path.startswith("/"):
                text = read_text(f"{state.proc_root}/{pid}/root{path}", _LONGEST_SETTINGS)
            for line in (text or "").split("\n"):
                name, equals, value = line.partition("=")
                if equals and name.strip() in _VARIABLES:
                    found.setdefault(name.strip(), printable(value.strip()))
        yield pid, found


# -- the query -----------------------------------------------------------------------------------------------


class _Problem(Exception):
    """Why there is no answer, as (state, reason)."""

    def __init__(self, state: SourceState, reason: str) -> None:
        super().__init__(state, reason)


def query_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: what was heard, of the network namespace of the one process in `pids`: its raw text, whether that is JSON,
    whether the server ended it, who said it and where, connections that nobody accepted; or the problem.
    """
    for pid in pids:
        progress(pid)
        try:
            _enter(f"{state.proc_root}/{pid}/ns/net", f"{state.proc_root}/self/ns/net")
            yield pid, _Client(argument, pid, state.proc_root).ask()
        except _Problem as problem:
            yield pid, {"problem": problem.args}


def _enter(namespace: str, ours: str) -> None:
    """Moves this process into a network namespace, for the rest of its life."""
    there = read_link(namespace)
    if there is None or there == read_link(ours):
        return
    try:
        namespaces.enter(namespace, Namespace.NET)
    except OSError as error:
        raise _Problem(SourceState.REFUSED, f"its network namespace: {error.strerror}") from error


class _Client:
    """One query. Every wait is bounded, by its own patience and by the whole query's deadline."""

    def __init__(self, question: Question, pid: int, proc_root: str) -> None:
        self._question = question
        self._tables = tuple(f"{proc_root}/{pid}/net/{family}" for family in ("tcp", "tcp6"))
        self._proc_root = proc_root
        self._until = time.monotonic() + question.deadline_s
        self._silent = 0
        self._wanted = set(question.asked)

    def ask(self) -> dict[str, Any]:
        listeners = self._listeners()
        connection, pid, address = self._connect(listeners)
        began = time.monotonic()
        with connection:
            text, json, closed = self._talk(connection)
        return {
            "pid": pid,
            "address": address,
            "text": text,
            "json": json,
            "closed": closed,
            "silent": self._silent,
            "took_s": time.monotonic() - began,
        }

    def _sockets(self) -> Iterator[tuple[int, SocketFacts]]:
        for path in self._tables:
            yield from parse_inet(read_text(path, _LARGEST_TABLE) or "", "tcp")

    def _listeners(self) -> list[str]:
        """Addresses on which members of the job listen."""
        found = {
            inode: facts.local
            for inode, facts in self._sockets()
            if facts.state == "LISTEN" and facts.local.endswith(f":{self._question.port}")
        }
        own = self._owners(found)
        if not own:
            reason = f"no process of the job listens on port {self._question.port}"
            more = ", another one does" if found else ": RAS has not started, or NCCL_RAS_ADDR was set later"
            raise _Problem(SourceState.ABSENT, reason + more)
        if not set(own.values()) & set(self._question.asked):
            self._wanted = set(self._question.members)
        return sorted({found[inode] for inode in own})

    def _owners(self, inodes: Iterable[int]) -> dict[int, int]:
        """The members that have these sockets open."""
        wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
        owners: dict[int, int] = {}
        for pid in self._question.members:
            for fd in open_fds(pid, self._proc_root):
                inode = wanted.get(read_link(f"{self._proc_root}/{pid}/fd/{fd}") or "")
                if inode is not None:
                    owners.setdefault(inode, pid)
        return owners

    def _connect(self, listeners: list[str]) -> tuple[socket.socket, int, str]:
        """A connection that the right process has accepted, who that is, and where. The kernel deals them out to those
        who listen: in the second half of the time any member of the job will do.
        """
        began = time.monotonic()
        half_s = (self._until - began) / 2
        strangers = tried = 0
        while tried < _MOST_CONNECTIONS and time.monotonic() - began < 1.5 * half_s:
            address = listeners[tried % len(listeners)]
            tried += 1
            host, _, port = address.rpartition(":")
            connection = self._dial(host.strip("[]"), int(port))
            if connection is None:
                select.select([], [], [], _POLL_S)
                continue
            inode = self._accepted(connection)
            owner = self._owners([inode]).get(inode) if inode else None
            late = time.monotonic() - began > half_s or tried > _MOST_CONNECTIONS // 2
            if owner is not None and (late or owner in self._wanted):
                return connection, owner, address
            connection.close()
            self._silent += not inode
            strangers += bool(inode) and owner is None
        if strangers:
            raise _Problem(SourceState.FAILED, "only processes of another job answered")
        raise _Problem(
            SourceState.TIMED_OUT, f"none of {tried} connections was accepted: who listens is stopped"
        )

    def _dial(self, host: str, port: int) -> socket.socket | None:
        wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        self._left()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(min(_PATIENCE_S, self._left()))
        try:
            connection.connect((wildcard.get(host, host), port))
        except OSError:
            connection.close()
            return None
        return connection

    def _accepted(self, connection: socket.socket) -> int:
        """The inode of the server's end; 0 while the connection only stands in the listener's queue."""
        here, there = _name(connection.getsockname()), _name(connection.getpeername())
        until = time.monotonic() + min(_ACCEPT_S, self._left())
        while True:
            for inode, facts in self._sockets():
                if inode and facts.local == there and facts.remote == here:
                    return inode
            if time.monotonic() >= until:
                return 0
            select.select([connection], [], [], _POLL_S)

    def _talk(self, connection: socket.socket) -> tuple[str, bool, bool]:
        """(the report, whether it is JSON, whether the server ended it)."""
        if not self._say(connection, "CLIENT PROTOCOL 2").startswith("SERVER PROTOCOL "):
            raise _Problem(SourceState.FAILED, "what listens there is not RAS")
        # A release that knows no other format says so, and goes on.
        reply = self._say(connection, "SET FORMAT json")
        if reply != "OK" and not reply.startswith("ERROR"):
            raise _Problem(SourceState.FAILED, "what listens there is not RAS")
        json = reply == "OK"
        if self._question.json_only and not json:
            raise _Problem(SourceState.SKIPPED, "not asked: it gives no JSON, and text can crash it")
        self._say(connection, f"TIMEOUT {self._question.leg_timeout_s}")
        connection.settimeout(self._left())
        try:
            connection.sendall(b"STATUS\n" if json else b"VERBOSE STATUS\n")
        except OSError as error:
            raise _Problem(SourceState.FAILED, f"it hung up: {error.strerror or error}") from error
        content, closed = self._rest(connection)
        return content.decode(errors="replace"), json, closed

    def _say(self, connection: socket.socket, word: str) -> str:
        """Sends one line and returns the reply's."""
        line = b""
        until = time.monotonic() + min(_PATIENCE_S, self._left())
        try:
            connection.settimeout(_PATIENCE_S)
            connection.sendall(f"{word}\n".encode())
            while not line.endswith(b"\n"):
                connection.settimeout(max(0.001, until - time.monotonic()))
                part = connection.recv(1)
                if not part or len(line) >= _LONGEST_REPLY:
                    raise _Problem(SourceState.FAILED, "what listens there is not RAS, or hung up")
                line += part
        except TimeoutError:
            reason = f"the process that accepted said nothing to {word!r} within {_PATIENCE_S:g} s"
            raise _Problem(SourceState.TIMED_OUT, reason) from None
        except OSError as error:
            raise _Problem(SourceState.FAILED, f"it hung up: {error.strerror or error}") from error
        return line.decode(errors="replace").strip()

    def _rest(self, connection: socket.socket) -> tuple[bytes, bool]:
        content = bytearray()
        while len(content) < _LARGEST_ANSWER:
            left = self._until - time.monotonic()
            if left <= 0:
                return bytes(content), False
            connection.settimeout(left)
            try:
                part = connection.recv(1 << 16)
            except OSError:
                return bytes(content), False
            if not part:
                return bytes(content), True
            content += part
        return bytes(content), False

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            reason = f"no answer within {self._question.deadline_s:g} s"
            raise _Problem(SourceState.TIMED_OUT, reason)
        return left


def _name(address: tuple[Any, ...]) -> str:
    """An address as the kernel's tables show it here (see `sockets.parse_inet`)."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
