"""The parent's side of the probe process, against children that answer in every way a child can."""

from __future__ import annotations

import json
import os
import sys

import pytest

from pyhangtrace.collect import probes
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes import events, launch

PATIENT_S = 30.0
COUNTED = {
    "window_s": 0.25,
    "attached_s": 0.3,
    "cpu_s": 0.2,
    "closed_ns": 1,
    "tables": {"threads": "", "pairs": ""},
    "lost": [0] * len(events.Lost._fields),
}


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> object:
    """Replaces the probe process by a Python program, given as text."""

    def replace(program: str) -> None:
        monkeypatch.setattr(launch.Request, "command", lambda _: [sys.executable, "-I", "-S", "-c", program])

    return replace


def says(*messages: object) -> str:
    return "".join(f"print({json.dumps(json.dumps(message))}, flush=True)\n" for message in messages)


READY = {"ready": True, "at_s": 0.0, "cpu_s": 0.1}


def test_counts_arrive(child) -> None:
    child(says(READY) + "import sys; sys.stdin.read(1)\n" + says({"result": COUNTED}, {"detached_s": 0.4}))
    with probes.start([1, 2, 1]) as run:
        window = run.finish(deadline_s=PATIENT_S)
        assert run.finish(deadline_s=0) is window
        assert run.close() == 0.4
    assert window.status.state is SourceState.USED
    assert [process.pid for process in window.processes] == [1, 2]
    assert (window.window_s, window.attached_s, window.cpu_s) == (0.25, 0.3, 0.2)


def test_a_window_that_ended_by_itself(child) -> None:
    child(says(READY, {"result": COUNTED}, {"detached_s": 0.4}))
    with probes.start([1]) as run:
        pid = run.child_pid
        assert pid is not None
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # All it had to say is there, so no time is needed.
        assert run.finish(deadline_s=0).status.state is SourceState.USED
        assert run.close() == 0.4


@pytest.mark.parametrize(("permission", "state"), [(True, SourceState.REFUSED), (False, SourceState.ABSENT)])
def test_what_is_missing_is_said(child, permission: bool, state: SourceState) -> None:
    child(says({"unavailable": {"reason": "no such thing", "fix": "get one", "permission": permission}}))
    with probes.start([1]) as run:
        assert not run.wait_until_open(deadline_s=PATIENT_S)
        status = run.finish(deadline_s=PATIENT_S).status
    assert status == SourceStatus(source="ebpf", state=state, reason="no such thing", fix="get one")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('first line\\nModule cannot be compiled')", "Module cannot be compiled"),
        ("import os; os._exit(3)", "it ended with status 3"),
        (says(READY), "it ended with status 0"),
        ("print('not json')", "it ended with status"),
        ("print('[1]')", "it ended with status"),
        (says(READY, {"result": {**COUNTED, "tables": {"threads": "!", "pairs": ""}}}), "cannot be decoded"),
        (
            says(READY, {"result": {**COUNTED, "tables": {"threads": "", "pairs": "AAAA"}}}),
            "cannot be decoded",
        ),
        (says(READY, {"result": {**COUNTED, "lost": [0] * 7}}), "cannot be decoded"),
        (says(READY, {"result": {}}), "cannot be decoded"),
    ],
)
def test_a_failure_is_said(child, program: str, reason: str) -> None:
    child(program)
    with probes.start([1]) as run:
        status = run.finish(deadline_s=PATIENT_S).status
    assert (status.source, status.state) == ("ebpf", SourceState.FAILED)
    assert reason in status.reason


@pytest.mark.parametrize("messages", [(), (READY,)])
def test_a_late_child_is_timed_out_and_ended(child, messages: tuple[object, ...]) -> None:
    child(says(*messages) + "import signal; signal.pause()")
    with probes.start([1]) as run:
        if messages:
            assert run.wait_until_open(deadline_s=PATIENT_S)
        pid = run.child_pid
        status = run.finish(deadline_s=0.0).status
    assert status.state is SourceState.TIMED_OUT
    assert pid is not None
    assert not os.path.exists(f"/proc/{pid}/task")  # reaped, no zombie either


def test_nothing_to_probe() -> None:
    with probes.start([]) as run:
        assert run.finish(deadline_s=0).status.state is SourceState.SKIPPED
        assert run.child_pid is None


def test_a_program_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.Request, "command", lambda _: ["/nonexistent/python"])
    with probes.start([1]) as run:
        status = run.finish(deadline_s=0).status
    assert status.state is SourceState.FAILED
    assert "No such file" in status.reason


def test_an_abandoned_window_ends() -> None:
    with probes.start([os.getpid()]) as run:
        pid = run.child_pid
    assert pid is not None
    assert not os.path.exists(f"/proc/{pid}/task")
    assert run.finish(deadline_s=0).status.state is SourceState.SKIPPED


def test_a_request_survives_the_command_line() -> None:
    request = launch.request([3, 4], window_s=0.5, max_threads=9, calls=("futex", "futex_waitv"))
    assert request.parent == os.getpid()
    assert launch.parse(request.command()[-1]) == request
