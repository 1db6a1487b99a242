"""Ports of a case are its own while it runs."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.hangs.ports import FIRST, LAST, reserved_ports


def test_nobody_else_gets_a_reserved_port() -> None:
    with reserved_ports(2) as mine, reserved_ports(2) as others:
        assert len({*mine, *others}) == 4


def test_a_port_in_use_is_passed_over() -> None:
    with reserved_ports(1) as (port,):
        pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        with reserved_ports(1) as (chosen,):
            assert chosen != port


def test_the_kernel_does_not_give_them_away() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    with reserved_ports(2) as ports:
        assert (low <= FIRST and high >= LAST) or not any(low <= port <= high for port in ports)
