"""Which processes a job has started while it was watched."""

from __future__ import annotations

import subprocess
import sys

from pyhangtrace.collect.newborn import newborn, status
from pyhangtrace.collect.procfs import PROC, read_table
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.process_table import ProcessTable

PARENT = """
import subprocess, sys
for line in sys.stdin:
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
child.kill()
"""


def test_children_of_the_meantime_are_named_and_not_the_watcher() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None

        def child() -> int:
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write("x\n")
            parent.stdin.flush()
            return int(parent.stdout.readline())

        first = child()
        try:
            before = read_table(PROC)
            assert status(before, before, [parent.pid], 1 << 30).state is SourceState.USED
            second = child()
            after = read_table(PROC)
            assert newborn(before, after, [parent.pid, first], own=1 << 30) == (second,)
            said = status(before, after, [parent.pid], 1 << 30)
            assert said.state is SourceState.ABSENT
            assert "1 was started by the job in the meantime, not counted" in said.reason
            assert said.reason.endswith(f"pid {second}")
            # Whoever watches may have been started by the job, too.
            assert newborn(before, after, [parent.pid], own=second) == ()
            # A number that is somebody else's by now says nothing of the job.
            others = ProcessTable.of(row for row in before.by_pid.values() if row.pid != parent.pid)
            assert newborn(others, after, [parent.pid], own=1 << 30) == ()
        finally:
            subprocess.run(["kill", str(first)], check=True, timeout=20)
            parent.stdin.close()
