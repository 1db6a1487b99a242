"""Waits for sockets. usage: sockets.py SCENE [PATH]"""

import errno
import socket
import time

from parts import LONG_S, child, main, wait_in


def pair(kind, *, writes):
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    child("other", lambda: ours.close() or time.sleep(LONG_S))
    theirs.close()

    def work():
        while True:
            if writes:
                ours.send(b"x" * 1000)
            else:
                ours.recv(1)

    wait_in("waiter", work)


def tcp(*, writes):
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    listener.close()
    child("other", lambda: ours.close() or time.sleep(LONG_S))
    theirs.close()
    wait_in("waiter", lambda: ours.sendall(b"x" * (64 << 20)) if writes else ours.recv(1))


def full_backlog(family, address):
    """A listener that takes nobody, and one client more than it has room for."""
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen(0)
    address = listener.getsockname()
    child("other", lambda: time.sleep(LONG_S))
    listener.close()
    kept = []
    while True:
        client = socket.socket(family)
        client.settimeout(0.2)
        try:
            client.connect(address)
        except OSError as error:
            if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
                break
            raise
        kept.append(client)
    last = socket.socket(family)
    wait_in("waiter", lambda: last.connect(address))


def accept():
    listener = socket.create_server(("127.0.0.1", 0))
    wait_in("waiter", listener.accept)


main(
    {
        "stream-read": lambda: pair(socket.SOCK_STREAM, writes=False),
        "stream-write": lambda: pair(socket.SOCK_STREAM, writes=True),
        "seqpacket-read": lambda: pair(socket.SOCK_SEQPACKET, writes=False),
        "dgram-read": lambda: pair(socket.SOCK_DGRAM, writes=False),
        "dgram-write": lambda: pair(socket.SOCK_DGRAM, writes=True),
        "unix-backlog": lambda path: full_backlog(socket.AF_UNIX, path),
        "tcp-read": lambda: tcp(writes=False),
        "tcp-write": lambda: tcp(writes=True),
        "tcp-backlog": lambda: full_backlog(socket.AF_INET, ("127.0.0.1", 0)),
        "tcp-accept": accept,
    }
)
