"""`attach --live` over a job that is well: on a terminal, and as lines."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading

import pytest

from tests.benchmarks.live.measure import crowd, share

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(400)]

SETTLES_S = 30.0  # until the first looks are taken
MEASURED_S = 120.0


def test_live_screen() -> None:
    pytest.importorskip("textual")
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with crowd() as pid:
        live = subprocess.Popen(
            [sys.executable, "-m", "pyhangtrace", "attach", str(pid), "--live"],
            stdin=side,
            stdout=side,
            stderr=side,  # where textual draws
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(side)
        drawn = bytearray()
        threading.Thread(target=_drain, args=(terminal, drawn), daemon=True).start()
        try:
            cost = _cost("screen", live)
        finally:
            live.kill()
            live.wait()
    assert b"blocked on" in drawn
    assert cost <= 0.03


@pytest.mark.parametrize("how", ["--plain", "--json"])
def test_live_lines(how: str) -> None:
    with crowd() as pid:
        live = subprocess.Popen(
            [sys.executable, "-m", "pyhangtrace", "attach", str(pid), "--live", how],
            stdout=subprocess.DEVNULL,
        )
        try:
            cost = _cost(how, live)
        finally:
            live.kill()
            live.wait()
    assert cost <= 0.03


def _cost(how: str, live: subprocess.Popen[bytes]) -> float:
    share(live.pid, SETTLES_S)
    cost = share(live.pid, MEASURED_S)
    print(f"\nlive {how}, 8 x 200 threads {100 * cost:6.2f} % of a core")
    return cost


def _drain(terminal: int, into: bytearray) -> None:
    try:
        while data := os.read(terminal, 1 << 16):
            into += data
    except OSError:
        return  # nobody has the other side any more
