"""The demos hang for real and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyhangtrace import demo
from tests.hangs.processes import await_gone, is_alive

NAMES = [kind.name for kind in demo.kinds()]


def _rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"pid {pid} has no VmRSS")


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_starts_and_leaves_nothing(name: str) -> None:
    with demo.start(name) as running:
        assert running.attach_pid in running.pids or name in ("mutex-cycle", "gil", "idle")
        assert all(is_alive(pid) for pid in running.pids)
    await_gone(running.pids)


def test_ranks_of_the_default_seem_to_use_more_than_the_memory() -> None:
    with demo.start() as running:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert sum(_rss(pid) for pid in running.pids) > total
        locks = Path("/proc/locks").read_text()
        late, holder = running.members["rank3"], running.members["lock holder"]
        assert any("->" in line and f" {late.pid} " in line for line in locks.splitlines())
        assert any("->" not in line and f" {holder.pid} " in line for line in locks.splitlines())


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError), demo.start("no such kind"):
        pass


def test_a_killed_caller_takes_the_demo_with_it(tmp_path: Path) -> None:
    program = (
        "import signal, sys; from pyhangtrace import demo\n"
        "with demo.start('stopped') as running:\n"
        "    print(*running.pids, flush=True); signal.pause()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    caller = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert caller.stdout is not None
    pids = [int(word) for word in caller.stdout.readline().split()]
    assert pids
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    await_gone(pids)
