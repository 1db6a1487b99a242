"""The tasks of an event loop under each Python on this machine, against what the program itself says of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.targets import until
from tests.versions.interpreters import VERSIONS, interpreter

TARGET = Path(__file__).with_name("task_target.py")


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[dict[str, Any]]:
    """A program and what it says of itself on its first line; killed at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def at_rest(process: Any) -> bool:
    return bool(process["tasks"]) and not any(task["moved"] for task in process["tasks"])


def places(task: Any) -> list[list[Any]]:
    return [[function, file, line] for _, function, file, line, *_ in task["frames"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_tasks_are_what_the_program_says(version: str) -> None:
    with running(interpreter(version), "-c", TARGET.read_text()) as truth:
        process = until(at_rest, truth["pid"], named_locals={"holding": ["lock._locked", "event"]})
    found = {task["name"]: task for task in process["tasks"]}
    said = truth["tasks"]
    pending = {name for name, task in said.items() if not task["done"]}
    assert len(pending) >= 45
    assert {name for name, task in found.items() if not task["done"]} == pending
    for name in pending:
        task = found[name]
        assert places(task) == said[name]["stack"], name
        assert task["problem"] is None
        assert task["kind"] == "asyncio"
        assert task["tid"] == truth["pid"]
        assert not task["current"]
        if said[name]["awaits"] != "?":
            assert task["awaits"] == said[name]["awaits"], name
    assert 4000 < found["sleep"]["wakes_in_s"] <= 5000
    assert 4000 < found["timed"]["wakes_in_s"] <= 5000
    if "timeout" in found:
        assert 5000 < found["timeout"]["wakes_in_s"] <= 6000
    assert found["holder"]["wakes_in_s"] is None
    assert found["other"]["address"] == found["task"]["awaits_address"]
    needs = {name: (len(task["needs"]), task["needs_known"]) for name, task in found.items()}
    assert found["task"]["needs"] == [found["other"]["address"]]
    assert needs["gather"] == (2, True)
    for name in ("task", "wait", "shield", "executor", *(["group"] if "group" in found else [])):
        assert needs[name] == (1, True), name
    for name in ("queue-0", "deep-9", "future", "stream", "semaphore", "condition", "manager"):
        assert needs[name] == (0, False), name
    assert found["locked"]["lock"] is not None
    holding = {name: task["holds"] for name, task in found.items() if task["holds"]}
    assert holding.pop("holder") == [found["locked"]["lock"]]
    # Who gave a lock up for the body of its block has none, nor who waits for a condition.
    assert holding.pop("permit-0") == holding.pop("permit-1") == [truth["permits"]]
    assert list(holding) == ["taker"]
    objects = {name: task["object"] for name, task in found.items()}
    for name, known in truth["objects"].items():
        assert [objects[name][key] for key in ("kind", "method", "address", "count", "limit")] == known, name
    for name in ("sleep", "future", "gather", "executor", "stream", "shield"):
        assert objects[name] is None, name
    assert [name for name, task in found.items() if task["computes"]] == ["for-a-thread"]
    # Tasks that have ended are known to the interpreter until 3.13 as long as somebody keeps them.
    if "failed" in found:
        assert (found["failed"]["done"], found["failed"]["exception"]) == (True, "KeyError")
    # Locals of coroutines can be asked for as those of threads.
    ((_, name, locked), (_, _, event)) = found["holder"]["named_values"]
    assert (name, locked, event["type"]) == ("lock._locked", True, "Event")
    assert found["locked"]["named_values"] == []
    assert process["notes"] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_that_blocks_its_thread(version: str) -> None:
    with running(interpreter(version), "-c", TARGET.read_text(), "block") as truth:
        process = until(at_rest, truth["pid"])
    (task,) = (task for task in process["tasks"] if task["name"] == "blocked")
    assert task["current"]
    assert task["awaits"] is None
    functions = [function.rpartition(".")[2] for _, function, *_ in task["frames"]]
    assert functions == ["blocks", "nested", "nested", "nested"]
    (other,) = (task for task in process["tasks"] if task["name"] == "waits")
    assert (other["current"], other["awaits"]) == (False, "ready")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_program_that_changes_under_us(version: str) -> None:
    """Whatever is claimed of a task must be something that can be: a torn chain would mix functions."""
    engine = _native.Engine()
    looks = 0
    with running(interpreter(version), "-c", TARGET.read_text(), "churn") as truth:
        end = time.monotonic() + 3
        while looks < 10 or (looks < 150 and time.monotonic() < end):
            [process] = engine.capture([truth["pid"]])
            assert process["error"] is None
            looks += 1
            for task in process["tasks"]:
                functions = [function.rpartition(".")[2] for _, function, *_ in task["frames"]]
                if task["moved"] or "middle" not in functions:
                    continue
                assert set(functions) <= {"middle", "sleep", "__sleep0"}
                assert functions.count("middle") <= 7
