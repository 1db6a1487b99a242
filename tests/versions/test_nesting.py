"""Python code under C code under Python code, under each Python on this machine: one stack of both, in order."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.versions.interpreters import EVERY, interpreter

TARGET = Path(__file__).with_name("nesting_target.py")
DEADLINE_S = 30.0
LOOP = ("_PyEval_EvalFrameDefault", "_TAIL_CALL_")


@pytest.fixture(params=EVERY)
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


def at_rest(process: Any, tids: set[int]) -> bool:
    threads = [thread for thread in process["threads"] if thread["tid"] in tids]
    return len(threads) == len(tids) and not any(
        thread["moved"] or thread["syscall"] is None for thread in threads
    )


def look(command: list[str]) -> tuple[dict[int, Any], Any]:
    """What the program says of its threads, and a look at it once they have come to rest."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            said = {int(tid): thread for tid, thread in json.loads(program.stdout.readline()).items()}
            engine = _native.Engine()
            end = time.monotonic() + DEADLINE_S
            while True:
                [process] = engine.capture([program.pid])
                if at_rest(process, set(said)):
                    return said, process
                assert time.monotonic() < end, process
        finally:
            program.kill()
            Path(f"/tmp/perf-{program.pid}.map").unlink(missing_ok=True)


def options(python: str, how: str) -> list[str]:
    """Command line for the program, run plainly, under trace functions or with code for perf; may skip."""
    if how != "perf":
        return [python, str(TARGET), how]
    ask = "import sys; sys.activate_stack_trampoline('perf')"  # since 3.12, if it was built in
    if (
        subprocess.run([python, "-c", ask], capture_output=True, timeout=DEADLINE_S, check=False).returncode
        != 0
    ):
        pytest.skip("this Python has no trampolines for perf")
    return [python, "-X", "perf", str(TARGET)]


@pytest.mark.parametrize("how", ["plain", "traced", "perf"])
def test_native_and_python_frames_are_one_stack(python: str, how: str) -> None:
    said, process = look(options(python, how))
    threads = {thread["tid"]: thread for thread in process["threads"]}
    assert len(said) >= 20
    for tid, (role, frames) in said.items():
        seen = threads[tid]["frames"]
        assert threads[tid]["unmerged_python"] == [], role
        assert [list(frame[1:4]) for frame in seen if frame[0] == "python"] == frames, role
        names = [frame[1] for frame in seen if frame[0] == "native"]
        assert not any(name.startswith(LOOP) for name in names), role
        assert seen[0][0] == seen[-1][0] == "native", role


def python_over_native(frames: list[Any], inner: str, outer: str) -> bool:
    """Whether native frames, and nothing else, stand between two Python functions."""
    names = [frame[1].rpartition(".")[2] if frame[0] == "python" else None for frame in frames]
    start, end = names.index(inner), names.index(outer)
    between = frames[start + 1 : end]
    return len(between) > 0 and all(frame[0] == "native" for frame in between)


def test_c_code_stands_between_the_functions_it_connects(python: str) -> None:
    said, process = look([python, str(TARGET)])
    by_role = {
        role: thread["frames"]
        for thread in process["threads"]
        for tid, (role, _) in said.items()
        if tid == thread["tid"]
    }
    for role in ("by_sorted_key", "by_map"):
        assert python_over_native(by_role[role], "python_key", role), role
    assert python_over_native(by_role["by_comparison"], "__lt__", "by_comparison")
    assert python_over_native(by_role["by_ctypes"], "<lambda>", "by_ctypes")
    names = [frame[1].rpartition(".")[2] for frame in by_role["by_ctypes"]]
    between = by_role["by_ctypes"][names.index("<lambda>") : names.index("by_ctypes")]
    assert any("/libc" in (frame[4] or "") for frame in between)  # qsort() has many names inside
    assert python_over_native(by_role["by_generator_in_c"], "generator", "by_generator_in_c")
    assert python_over_native(by_role["by_finalizer"], "__del__", "by_finalizer")
    assert python_over_native(by_role["by_class_body"], "Body", "by_class_body")
    assert python_over_native(by_role["by_regular_expression"], "<lambda>", "sub")
