"""Recursions deeper than what is shown, under each Python on this machine: never cut without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.targets import until
from tests.versions.interpreters import VERSIONS, interpreter
from tests.versions.test_tasks import running

TARGET = Path(__file__).with_name("deep_target.py")


@pytest.mark.parametrize("version", VERSIONS)
def test_both_ends_of_a_deep_recursion_are_shown_or_the_cut_is_told(version: str) -> None:
    with running(interpreter(version), "-c", TARGET.read_text()) as truth:
        process = until(
            lambda process: all(
                thread["syscall"] == 202 and thread["state"] == "S" and not thread["moved"]
                for thread in process["threads"]
            ),
            truth["pid"],
        )
    [deep] = [thread for thread in process["threads"] if thread["python_name"] == "deep"]
    [main] = [thread for thread in process["threads"] if thread["tid"] == process["pid"]]
    assert main["python_problem"] is None
    frames = [frame for frame in (*deep["frames"], *deep["unmerged_python"]) if frame[0] == "python"]
    names = [function.rpartition(".")[2] for _, function, *_ in frames]
    assert names[:3] == ["wait", "wait", "down"]
    problem = deep["python_problem"]
    assert problem is not None
    if "left out" not in problem:
        # Each frame lies somewhere else on the heap up to 3.10.
        assert (problem, version in ("3.8", "3.9", "3.10")) == ("too many frames", True)
        assert set(names[2:]) == {"down"}
        return
    assert names[-4:] == ["start", "run", "_bootstrap_inner", "_bootstrap"]
    left_out = int(problem.split()[0])
    assert names.count("down") + left_out == truth["depth"] + 1
