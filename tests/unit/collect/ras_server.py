"""A stand-in for NCCL's RAS service: one thread that answers in one of several ways and notes what it was told."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Gets the connection and the line, and says whether the conversation goes on.
Answer = Callable[[socket.socket, str], bool]


@dataclass(slots=True)
class Server:
    """`said`: the lines of each connection, in order; one that said nothing is an empty list."""

    port: int
    said: list[list[str]] = field(default_factory=list)


def speaks(report: str, *, json: str | None = None) -> Answer:
    """A release that gives this report in text, and, if it knows that, this one in JSON."""
    chosen = {}

    def answer(connection: socket.socket, line: str) -> bool:
        reply = "OK"
        if line == "CLIENT PROTOCOL 2":
            reply = "SERVER PROTOCOL 2"
        elif line.startswith("SET FORMAT") and json is not None:
            chosen[connection.fileno()] = json
        elif line in ("STATUS", "VERBOSE STATUS"):
            connection.sendall(chosen.get(connection.fileno(), report).encode())
            return False
        elif not line.startswith("TIMEOUT "):
            reply = f"ERROR: Unknown command {line}"
        connection.sendall(f"{reply}\n".encode())
        return True

    return answer


@contextmanager
def serving(answer: Answer, *, accepts: bool = True, host: str = "127.0.0.1") -> Iterator[Server]:
    """Listens on a free port of this machine, with one connection at a time."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    stop, stopped = socket.socketpair()
    with socket.create_server((host, 0), family=family) as listener, stop, stopped:
        server = Server(listener.getsockname()[1])
        thread = threading.Thread(target=_serve, args=(listener, stopped, answer, server.said))
        if accepts:
            thread.start()
        try:
            yield server
        finally:
            stop.sendall(b"x")
            if accepts:
                thread.join(10.0)
                assert not thread.is_alive(), "the server does not end"


def _serve(listener: socket.socket, stopped: socket.socket, answer: Answer, said: list[list[str]]) -> None:
    while stopped not in select.select([listener, stopped], [], [])[0]:
        connection = listener.accept()[0]
        with connection:
            lines: list[str] = []
            said.append(lines)
            if not _converse(connection, stopped, answer, lines):
                return


def _converse(connection: socket.socket, stopped: socket.socket, answer: Answer, lines: list[str]) -> bool:
    """False when the test is over."""
    held = b""
    while True:
        if stopped in select.select([connection, stopped], [], [])[0]:
            return False
        try:
            part = connection.recv(4096)
            if not part:
                return True
            held += part
            while b"\n" in held:
                line, _, held = held.partition(b"\n")
                lines.append(line.decode())
                if not answer(connection, lines[-1]):
                    return True
        except OSError:  # the client has hung up
            return True
