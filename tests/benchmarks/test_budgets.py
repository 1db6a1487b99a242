"""What hangtrace allows itself: time, CPU and memory of whole runs, as a person pays for them.

`make bench` prints the figures. Each is the best of several runs, since a busy machine only ever adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pyhangtrace import demo

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

RUNS = 5

# Given, so that a demo that fell asleep only just now is not watched for longer.
WINDOW = ("-d", "0.1")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run and its children: seconds of wall and CPU time, peak memory of the largest process in bytes."""

    wall_s: float
    cpu_s: float
    memory: int


def run(*arguments: str) -> Cost:
    """Runs `hangtrace` with these arguments, which must succeed."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pyhangtrace", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started
    process.stderr.close()
    assert process.returncode == 0, said.decode()
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def measure(what: str, *arguments: str) -> Cost:
    """Best of each figure over some runs; printed."""
    costs = [run(*arguments) for _ in range(RUNS)]
    best = Cost(min(c.wall_s for c in costs), min(c.cpu_s for c in costs), min(c.memory for c in costs))
    print(f"\n{what:40} {best.wall_s:6.3f} s wall {best.cpu_s:6.3f} s cpu {best.memory / 1e6:5.0f} MB")
    return best


@pytest.fixture(scope="module")
def eight_ranks() -> Iterator[int]:
    """A member of a job of eight ranks that hangs."""
    with demo.start(demo.DEFAULT_KIND) as job:
        yield job.attach_pid


def test_help() -> None:
    assert measure("hangtrace --help", "--help").wall_s < 0.2


def test_attach_without_probes(eight_ranks: int) -> None:
    cost = measure("attach, 8 ranks, no eBPF", "attach", *WINDOW, "--no-bpf", str(eight_ranks))
    assert cost.wall_s < 1.0
    assert cost.cpu_s < 0.5
    assert cost.memory < 100e6


def test_attach_with_probes(eight_ranks: int) -> None:
    # Loading bcc is outside the budget of CPU and memory, its wall time is not.
    assert measure("attach, 8 ranks, eBPF", "attach", *WINDOW, str(eight_ranks)).wall_s < 1.0
