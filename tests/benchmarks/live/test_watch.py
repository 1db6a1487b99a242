"""What it costs to watch a job of 8 ranks x 200 threads that is well, in CPU time of everything the tool starts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(400)]

CROWD = Path(__file__).with_name("crowd.py")
MEASURED_S = 60.0


@contextmanager
def crowd() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, str(CROWD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split()[1])
    finally:
        process.communicate(timeout=60)


def cpu_s(pid: int) -> float:
    """Of the process with all its threads, and of the children it has waited for."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    own = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return own + (int(fields[13]) + int(fields[14])) / 100


def share(pid: int, seconds: float = MEASURED_S) -> float:
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def test_watch(tmp_path: Path) -> None:
    with crowd() as pid:
        command = [sys.executable, "-m", "pyhangtrace", "watch", str(pid), "-o", str(tmp_path)]
        command += ["--metrics-file", str(tmp_path / "m.prom")]
        watch = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert watch.stderr is not None
            assert watch.stderr.readline().startswith("watching 9 processes")
            cost = share(watch.pid)
        finally:
            watch.kill()
            watch.communicate()
    print(f"\nwatch, 8 x 200 threads, default rate      {100 * cost:6.3f} % of a core")
    assert cost <= 0.001
