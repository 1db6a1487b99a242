"""Whether a process has an alarm set, which only the kernel knows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyhangtrace.collect import alarms
from pyhangtrace.collect.guarded import Answers, GuardedReader, HelperState
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.processes import ProcessFacts

TASKS = {alarms.ALARMS_TASK: alarms.alarms_task}
PROGRAM = """
import signal, sys
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize("seconds", [0, 500])
def test_an_alarm_is_seen_with_what_is_left_of_it(seconds: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(seconds)]
    with (
        GuardedReader(TASKS) as reader,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        facts = {process.pid: ProcessFacts(pid=process.pid)}
        found, status = alarms.collect(reader, facts, [process.pid], deadline_s=10.0)
        process.communicate(timeout=10)
    assert status.state is SourceState.USED, status.reason
    left = [one.alarm_s for one in found.values()]
    if seconds:
        assert left[0] is not None
        assert 400.0 < left[0] <= 500.0
    else:
        assert left == []


def test_who_may_not_ask_says_so() -> None:
    class Reader:
        def read(self, pids: list[int]) -> dict[str, object]:
            return {"left_s": {}, "status": ("refused", "loading a program: EPERM")}

    state = HelperState(proc_root="/proc", kept={alarms.ALARMS_TASK: Reader()})

    class Guarded:
        def run(self, task: str, pids: list[int], *, deadline_s: float) -> Answers:
            values = dict(alarms.alarms_task(state, pids, None, lambda _: None))
            return Answers(values=values, problems={})

    found, status = alarms.collect(Guarded(), {}, [7, 8], deadline_s=1.0)  # type: ignore[arg-type]
    assert (found, status.state) == ({}, SourceState.REFUSED)
    assert status.fix
