"""Who runs hangtrace is no part of the job that it looks at, unless he started its ranks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("pyhangtrace._native") is None:
    pytest.skip("needs the compiled extension (make setup)", allow_module_level=True)

TOOL = str(Path(sys.executable).parent / "hangtrace")
DEADLINE_S = 90

# Starts a program that reads from it, and runs hangtrace on that.
DRIVER = """
import json, socket, subprocess, sys
tool, how = sys.argv[1:]
reads = [sys.executable, "-c", "import os; os.write(1, b'x'); os.read(0, 1)"]
ours, theirs = socket.socketpair()
with subprocess.Popen(
    reads, stdin=theirs if how == "socket" else subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
) as target:
    target.stdout.read(1)
    command = [tool, "attach", str(target.pid), "--json"]
    if how == "shell":
        command = ["sh", "-c", " ".join(command) + "; exit $?"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60)
    target.kill()
print(json.dumps({"target": target.pid, "report": json.loads(done.stdout)}))
"""

# Starts ranks that wait for it, and runs hangtrace on one of them.
LAUNCHER = """
import json, multiprocessing, os, subprocess, sys

def rank(number, ready, orders):
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    ready.send(number)
    orders.recv()

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    ranks, ends = [], []
    for number in range(2):
        ready, told = multiprocessing.Pipe(duplex=False)
        hears, orders = multiprocessing.Pipe(duplex=False)
        one = multiprocessing.Process(target=rank, args=(number, told, hears), daemon=True)
        one.start()
        ready.recv()
        ranks.append(one)
        ends.append(orders)
    command = [sys.argv[1], "attach", str(ranks[0].pid), "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60)
    said = {"target": [one.pid for one in ranks], "launcher": os.getpid()}
    print(json.dumps({**said, "report": json.loads(done.stdout)}))
    for orders in ends:
        orders.send(None)
"""


def run(script: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script, TOOL, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["pipe", "socket", "shell"])
def test_a_driver_that_holds_the_input_of_what_it_looks_at(how: str) -> None:
    said = run(DRIVER, how)
    report = said["report"]
    assert report["verdict"]["state"] == "idle"
    assert [process["pid"] for process in report["processes"]] == [said["target"]]
    assert {wait["pid"] for wait in report["waits"]} == {said["target"]}


def test_a_launcher_that_looks_at_its_own_ranks() -> None:
    said = run(LAUNCHER)
    report = said["report"]
    assert {process["pid"] for process in report["processes"]} >= set(said["target"])
    (launcher,) = (process for process in report["processes"] if process["pid"] == said["launcher"])
    assert (launcher["role"], launcher["rank"]) == ("launcher", None)
    assert said["launcher"] not in {one["pid"] for one in report["verdict"]["culprits"]}
    assert report["verdict"]["state"] != "hung"
