"""Locals that are asked for by name, under each Python on this machine, against what the program says they are."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.versions.interpreters import VERSIONS, interpreter

TARGET = Path(__file__).with_name("value_target.py")
DEADLINE_S = 30.0


def values_of(process: Any) -> dict[str, Any]:
    return {name: value for thread in process["threads"] for _, name, value in thread["named_values"]}


def alike(found: Any, said: Any) -> bool:
    """Equal, but that C types are called with their module."""
    if isinstance(found, dict) and isinstance(said, dict):
        if "items" in said:
            pairs = zip(found["items"], said["items"], strict=True)
            if not all(alike(one, other) for one, other in pairs):
                return False
        rest = {name: value for name, value in said.items() if name not in ("type", "items")}
        type_name = found["type"].rpartition(".")[2]
        return type_name == said["type"] and rest == {name: found[name] for name in rest}
    return type(found) is type(said) and found == said


@pytest.mark.parametrize("version", VERSIONS)
def test_values_are_what_the_program_says(version: str) -> None:
    with subprocess.Popen(
        [interpreter(version), "-c", TARGET.read_text()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            truth = json.loads(program.stdout.readline())
            names = [*truth["values"], *truth["each"], "row"]
            # Before 3.11 a code object knows only its plain name.
            wanted = {"stands": names, "make.<locals>.stands": names}
            engine = _native.Engine()
            end = time.monotonic() + DEADLINE_S
            # It prints first, then it goes to sleep.
            while True:
                [process] = engine.capture([program.pid], named_locals=wanted)
                [thread] = (one for one in process["threads"] if one["tid"] == program.pid)
                if not thread["moved"] and thread["syscall"] is not None:
                    break
                assert time.monotonic() < end, process
            kept, absent = engine.python_globals(
                program.pid, "__main__", ["GLOBAL.kept", "GLOBAL.absent"], most_items=64, most_values=64
            )
        finally:
            program.kill()
    found = values_of(process)
    assert set(found) == set(names)
    wrong = {
        name: (found[name], said) for name, said in truth["values"].items() if not alike(found[name], said)
    }
    assert not wrong
    assert {name: sorted(found[name]["items"]) for name in truth["each"]} == {
        name: sorted(said) for name, said in truth["each"].items()
    }
    assert (found["row"]["type"], found["row"]["length"]) == ("collections.deque", truth["row"])
    assert isinstance(kept, dict)
    assert (kept["type"], kept["length"], kept["items"][0]) == ("dict", 1, "a")
    assert kept["items"][1]["type"] == "Below"  # type: ignore[index,call-overload]
    assert absent is None
