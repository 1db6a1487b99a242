"""What will soon end a hang by itself, and how much time is left."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.groups import PendingOperation, ProcessGroupFacts
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.report import Deadline
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.text.page import render_text
from tests.unit.analyze import builders as b

SCHEDULER = "/venv/sglang/srt/managers/scheduler.py"
WORKER = "/venv/vllm/v1/worker/gpu_worker.py"
RECV = b.native("gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>)")


def deadline(
    *, frames: tuple[Frame, ...] = (), late: Any = None, extra: Any = (), **changes: Any
) -> Deadline | None:
    """Rank 0 waits in an all_reduce to which rank 1 does not come; `extra` are further processes."""
    call = b.in_collective(100)
    waits = b.replace(call, frames=(*call.frames, *frames))
    sleeps = b.asleep(101, seconds=3600)
    evidence = b.evidence([*b.ranks(2), *extra], b.twice(waits, late or sleeps), **changes)
    return analyze(evidence).verdict.deadline


def server(arguments: str, *limits: tuple[str, int]) -> list[Any]:
    return [b.process(50, ppid=1, role=Role.LAUNCHER, title=arguments, limits=limits)]


SERVES = (b.py("Scheduler.run_batch", SCHEDULER), b.py("Scheduler.event_loop_normal", SCHEDULER))


def test_nothing_is_said_where_nothing_is_known_to_end_it() -> None:
    assert deadline() is None


@pytest.mark.parametrize(
    ("arguments", "limits", "left"),
    [
        ("python -m sglang.launch_server --tp 2", (), 290.0),
        ("python -m sglang.launch_server --watchdog-timeout 60", (("--watchdog-timeout", 60),), 50.0),
    ],
)
def test_the_watchdog_of_sglang_counts_while_a_batch_is_at_work(
    arguments: str, limits: tuple[tuple[str, int], ...], left: float
) -> None:
    found = deadline(frames=SERVES, extra=server(arguments, *limits))
    assert found is not None
    assert (found.in_s, "--watchdog-timeout" in found.what) == (left, True)


def test_it_does_not_while_there_is_none_or_it_is_off_or_over() -> None:
    command = "python -m sglang.launch_server"
    loads = (b.py("ModelRunner.load_model", "/venv/sglang/srt/model_executor/model_runner.py"),)
    assert deadline(frames=loads, extra=server(command)) is None
    assert deadline(frames=SERVES, extra=server(command, ("--watchdog-timeout", 0))) is None
    assert deadline(frames=SERVES, extra=server(command, ("--watchdog-timeout", 5))) is None
    # By which value it was started does not show.
    assert deadline(frames=SERVES, extra=server("python my_service.py")) is None
    # A function of the program that is called alike.
    assert deadline(frames=(b.py("run_batch", "/job/own.py"),), extra=server(command)) is None


def test_the_engine_of_vllm_waits_for_a_step_only_for_so_long() -> None:
    step = (b.py("Worker.execute_model", WORKER),)
    found = deadline(frames=step)
    assert found is not None
    assert found.in_s == 290.0
    told = deadline(frames=step, extra=server("vllm serve m", ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 40)))
    assert told is not None
    assert told.in_s == 30.0


def test_gloo_gives_up_when_its_own_wait_does() -> None:
    loop = b.sleeper(
        100, 110, comm="pt_gloo_runloop", name=None, frames=(RECV,), remaining_s=120.26, timeout_s=None
    )
    call = b.in_collective(100)
    evidence = b.evidence(b.ranks(2), b.twice(call, loop, b.asleep(101, seconds=3600)))
    report = analyze(evidence)
    assert report.verdict.deadline == Deadline(what="gloo gives up the operation of rank 0", in_s=120.3)
    assert "soon: gloo gives up the operation of rank 0 in 2 min" in render_text(report, color=False)


def test_a_wait_for_work_that_was_begun_before_may_have_a_limit_of_its_own() -> None:
    loop = b.sleeper(100, 110, comm="pt_gloo_runloop", name=None, frames=(RECV,), remaining_s=1790.0)
    call = b.in_collective(100)
    wait = b.native("c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)")
    waits = b.replace(call, frames=(wait, *call.frames), remaining_s=18.0)
    looks = b.twice(waits, loop, b.asleep(101, seconds=3600))
    found = analyze(b.evidence(b.ranks(2), looks)).verdict.deadline
    assert found is not None
    assert found.in_s == 18.0


def test_what_ends_it_in_a_year_is_not_told() -> None:
    loop = b.sleeper(100, 110, comm="pt_gloo_runloop", name=None, frames=(RECV,), remaining_s=31535995.5)
    looks = b.twice(b.in_collective(100), loop, b.asleep(101, seconds=3600))
    assert analyze(b.evidence(b.ranks(2), looks)).verdict.deadline is None


def test_a_nap_between_two_tries_is_no_limit() -> None:
    loop = b.asleep(100, 110, seconds=50, comm="pt_gloo_runloop", name=None)
    loop = b.replace(loop, frames=(RECV, *loop.frames))
    call = b.in_collective(100)
    evidence = b.evidence(b.ranks(2), b.twice(call, loop, b.asleep(101, seconds=3600)))
    assert analyze(evidence).verdict.deadline is None


@pytest.mark.parametrize(
    ("backend", "left", "said"), [("nccl", 300.0, 300.0), ("gloo", 300.0, None), ("nccl", -3.0, None)]
)
def test_the_watchdog_of_nccl_goes_by_the_operation(backend: str, left: float, said: float | None) -> None:
    pending = PendingOperation(op="all_reduce", backend=backend, sequence=3, left_s=left)
    group = ProcessGroupFacts(
        pid=100, name="0", ranks=(0, 1), rank=0, is_default=True, recorded=True, begun=3, pending=(pending,)
    )
    found = deadline(groups=(group,))
    assert (found.in_s if found is not None else None) == said


def test_of_several_the_first_is_told() -> None:
    loop = b.sleeper(100, 110, comm="pt_gloo_runloop", name=None, frames=(RECV,), remaining_s=20.0)
    call = b.in_collective(100)
    waits = b.replace(call, frames=(*call.frames, *SERVES))
    processes = [*b.ranks(2), *server("python -m sglang.launch_server")]
    report = analyze(b.evidence(processes, b.twice(waits, loop, b.asleep(101, seconds=3600))))
    assert report.verdict.deadline is not None
    assert report.verdict.deadline.in_s == 20.0
