"""`watch` over a job that is well, at its default rate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.live.measure import crowd, share

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(400)]

MEASURED_S = 60.0


def test_watch(tmp_path: Path) -> None:
    with crowd() as pid:
        command = [sys.executable, "-m", "pyhangtrace", "watch", str(pid), "-o", str(tmp_path)]
        command += ["--metrics-file", str(tmp_path / "m.prom")]
        watch = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert watch.stderr is not None
            assert watch.stderr.readline().startswith("watching 9 processes")
            cost = share(watch.pid, MEASURED_S)
        finally:
            watch.kill()
            watch.communicate()
    print(f"\nwatch, 8 x 200 threads, default rate      {100 * cost:6.3f} % of a core")
    assert cost <= 0.001
