"""TCP ports that nobody else takes while a case runs."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Above those that services commonly have.
FIRST, LAST = 10_000, 65_535


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Ports that are free, that the kernel gives to nobody by itself, and that no other caller gets meanwhile.

    Nothing is bound to them, since the programs of a case do that, some later than others.
    """
    candidates = _not_ephemeral()
    # Each process begins elsewhere, so that ports used a moment ago, which may linger, are not tried first.
    begin = os.getpid() * 97 % len(candidates)
    with ExitStack() as stack:
        ports: list[int] = []
        for port in candidates[begin:] + candidates[:begin]:
            if len(ports) == count:
                break
            if _reserve(port, stack) and _is_free(port):
                ports.append(port)
        assert len(ports) == count, "no port is free"
        yield ports


def _not_ephemeral() -> list[int]:
    """What bind(0) and connect() do not choose from; everything, where they choose from everything."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    everything = range(FIRST, LAST + 1)
    return [port for port in everything if not low <= port <= high] or list(everything)


def _reserve(port: int, stack: ExitStack) -> bool:
    """An abstract socket is known in one network namespace, as ports are, and ends with its owner."""
    reservation = stack.enter_context(socket.socket(socket.AF_UNIX))
    try:
        reservation.bind(f"\0pyhangtrace-test-port-{port}")
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as problem:
            if family == socket.AF_INET or problem.errno == errno.EADDRINUSE:
                return False
    return True
