"""Suspended greenlets under each Python on this machine that has the package, against what it says of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyhangtrace import _native
from tests.versions.interpreters import VERSIONS, interpreter

TARGET = Path(__file__).with_name("greenlet_target.py")
DEADLINE_S = 30.0


@pytest.mark.parametrize("version", [*VERSIONS, "this"])
def test_greenlets_are_what_the_program_says(version: str) -> None:
    python = sys.executable if version == "this" else interpreter(version)
    if subprocess.run([python, "-c", "import greenlet"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{python} has no greenlet")
    with subprocess.Popen(
        [python, "-c", TARGET.read_text()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            truth = json.loads(program.stdout.readline())
            engine = _native.Engine()
            end = time.monotonic() + DEADLINE_S
            while True:
                [process] = engine.capture([truth["pid"]])
                if process["tasks"] and not any(task["moved"] for task in process["tasks"]):
                    break
                assert time.monotonic() < end, process
            [again] = engine.capture([truth["pid"]])
        finally:
            program.kill()
    assert process["notes"] == []
    for shown in (process, again):
        found = {task["address"]: task for task in shown["tasks"]}
        assert sorted(found) == sorted(map(int, truth["greenlets"]))
        for address, task in found.items():
            places = [[function, file, line] for _, function, file, line, *_ in task["frames"]]
            assert places == truth["greenlets"][str(address)]
            assert (task["kind"], task["tid"], task["problem"]) == ("greenlet", truth["tid"], None)
            assert not task["done"]
            assert not task["current"]
    names = sorted(task["name"] for task in process["tasks"])
    assert names == ["Worker", "greenlet", "greenlet", "greenlet", "main greenlet"]
