"""Objects of C++ behind Python objects, as PyTorch's process groups and stores are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.targets import until, waits_in_read


@pytest.mark.torch
def test_what_a_pybind11_object_wraps() -> None:
    target = Path(__file__).with_name("pybind_target.py")
    names = ["store", "prefix", "mixed", "plain"]
    with subprocess.Popen(
        [sys.executable, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            truth = json.loads(program.stdout.readline())
            process = until(waits_in_read, program.pid, named_locals={"holds": names})
        finally:
            program.kill()
    found = {name: value for thread in process["threads"] for _, name, value in thread["named_values"]}
    assert found.keys() == set(names)
    assert found["store"]["held"] == truth["store"]
    assert found["prefix"]["held"] == truth["prefix"]
    assert found["mixed"]["held"] == truth["mixed"]
    assert found["plain"]["held"] is None
    assert found["store"]["type"].endswith("HashStore")
