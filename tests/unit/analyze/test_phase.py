"""What a job is doing, by where its ranks are and by what its log says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.analyze.phase import MARKS, STARTING, of_frames
from pyhangtrace.model.logs import LogMark
from pyhangtrace.model.report import Phase
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

VLLM, SGLANG = "/venv/vllm/v1/worker/gpu_worker.py", "/venv/sglang/srt/model_executor/model_runner.py"
DISTRIBUTED = "/venv/torch/distributed/distributed_c10d.py"


def inside(pid: int, *frames: Frame) -> ThreadSample:
    """A rank in a collective that these frames call, innermost first."""
    call = b.in_collective(pid)
    return b.replace(call, frames=(*call.frames, *frames))


def phase(threads: Mapping[int, Sequence[Frame]], *marks: LogMark) -> Phase | None:
    samples = [inside(100 + rank, *frames) for rank, frames in threads.items()]
    made = b.evidence(b.ranks(len(threads)), b.twice(*samples), log_marks=marks)
    return analyze(made).workload.phase


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("rendezvous", [("_new_process_group_helper", DISTRIBUTED), ("init_process_group", DISTRIBUTED)]),
        ("weight_loading", [("Loader.load_weights", "/job/own.py"), ("GPUModelRunner.load_model", VLLM)]),
        (
            "draft_loading",
            [("EagleProposer.load_model", "/venv/vllm/v1/spec_decode/eagle.py"), ("load_model", VLLM)],
        ),
        (
            "barrier_after_load",
            [("ModelRunner.dist_barrier_after_load", SGLANG), ("ModelRunner.load_model", SGLANG)],
        ),
        ("memory_setup", [("ModelRunner.init_memory_pool", SGLANG)]),
        ("warm_up", [("GPUModelRunner.profile_run", VLLM), ("Worker.determine_available_memory", VLLM)]),
        (
            "graph_capture",
            [("forward", "/job/model.py"), ("capture_model", VLLM), ("compile_or_warm_up_model", VLLM)],
        ),
        ("graph_capture", [("ModelRunner.init_device_graphs", SGLANG)]),
        (
            "compile",
            [("_compile", "/venv/torch/_dynamo/convert_frame.py"), ("GPUModelRunner.profile_run", VLLM)],
        ),
        ("serving", [("GPUModelRunner.execute_model", VLLM), ("WorkerProc.worker_busy_loop", VLLM)]),
        ("serving", [("Scheduler.event_loop_overlap", SGLANG)]),
        ("backward", [("_engine_run_backward", "/venv/torch/autograd/graph.py")]),
    ],
)
def test_the_innermost_frame_that_tells_a_phase_does(name: str, frames: list[tuple[str, str]]) -> None:
    stack = [b.py(function, file) for function, file in frames]
    assert of_frames(stack) == name
    found = phase({0: stack, 1: stack})
    assert found is not None
    assert (found.name, found.detail, found.source) == (name, None, "stack")


def test_a_function_of_the_program_that_is_called_alike_tells_nothing() -> None:
    for function in ("load_model", "capture_model", "new_group", "compile", "save", "execute_model"):
        assert of_frames([b.py(function, "/job/train.py")]) is None
    assert phase({0: [b.py("main")], 1: [b.py("main")]}) is None


def test_while_one_rank_is_behind_the_job_is() -> None:
    waiting = [b.py("ModelRunner.dist_barrier_after_load", SGLANG), b.py("ModelRunner.load_model", SGLANG)]
    loading = [b.py("ModelRunner.load_model", SGLANG)]
    found = phase({0: waiting, 1: loading, 2: waiting, 3: waiting})
    assert found is not None
    assert found.words == "weight loading (rank 1, ranks 0,2-3 in barrier after load)"


def test_one_rank_that_compiles_while_the_others_serve_does_not_name_the_job() -> None:
    serving = [b.py("Scheduler.event_loop_normal", SGLANG)]
    compiling = [b.py("compile_fx", "/venv/torch/_inductor/compile_fx.py"), *serving]
    found = phase({0: serving, 1: compiling, 2: serving})
    assert found is not None
    assert found.words == "serving (ranks 0,2, rank 1 in compile)"


def test_a_log_tells_how_far_it_is_and_what_stacks_do_not_tell() -> None:
    loading = [b.py("load_model", VLLM)]
    log = LogMark(pids=(100, 101), phase="weight_loading", detail="2 of 4 shards")
    told = phase({0: loading, 1: loading}, log)
    assert told == Phase(name="weight_loading", detail="2 of 4 shards", source="stack")
    assert phase({0: [], 1: []}, log) == Phase(name="weight_loading", detail="2 of 4 shards", source="log")
    over = LogMark(pids=(100,), phase="weight_loading", ended=True)
    done = phase({0: [], 1: []}, over)
    assert done is not None
    assert (done.words, done.source) == ("weight loading done", "log")
    # Of two logs the one that is behind.
    assert phase({0: [], 1: []}, LogMark(pids=(101,), phase="serving"), over) == done
    # A stack is of now, a log of some time ago.
    serving = [b.py("worker_busy_loop", VLLM)]
    assert phase({0: serving, 1: serving}, log) == Phase(name="serving")


def test_a_server_that_ends_is_told_by_its_log_whatever_its_parts_do() -> None:
    serving = [b.py("worker_busy_loop", VLLM)]
    ends = LogMark(pids=(100,), phase="shutdown", detail="worker 1 has died, exit code -9")
    told = phase({0: serving}, LogMark(pids=(101,), phase="serving"), ends)
    assert told is not None
    assert told.words == "shutdown (worker 1 has died, exit code -9)"


def test_the_verdict_says_it() -> None:
    capture = b.py("GPUModelRunner.capture_model", VLLM)
    late = b.asleep(103, seconds=3600)
    report = analyze(b.missing_rank(b.replace(late, frames=(*late.frames, capture))))
    assert "Phase: graph capture." in report.verdict.summary


def test_phases_of_a_start_are_told_by_something() -> None:
    assert set(STARTING) <= {"draft_loading", *(mark.phase for mark in MARKS)}
