"""Registers by further ways than PC and SP, on live programs: complete where those are not enough, and never wrong."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.integration.bad_targets import TARGETS, compile_c
from tests.integration.hostile import ROOT, build, hostile, ready, rung, seen_by, skip_without

EBPF = "ebpf registers"
PERF = "perf samples"
DEADLINE_S = 30.0

# A frame with a variable and an aligned part, called through a pointer, right under a function of the C library:
# neither tables nor the prologue nor a call that names it tell where its frame begins.
BEYOND_REPAIR = ("aligned_alloca", "pointer")

AS_NOBODY = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
#: A program that prints its picture of the process it is given.
CAPTURE = "import json, sys; from pyhangtrace import _native; "
CAPTURE += "print(json.dumps(_native.Engine().capture([int(sys.argv[1])], bpf={})))"


pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["-O0", "-O2", "-O2 -fno-omit-frame-pointer"])
def binary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ladder"), *request.param.split())


@pytest.mark.root
def test_with_bpf_every_stack_is_complete_and_right(binary: Path) -> None:
    with hostile(binary) as target:
        engine = _native.Engine()
        [process] = engine.capture([target.pid])
        skip_without(process, EBPF)
        threads = [thread for thread in process["threads"] if thread["tid"] in target.threads]
        assert len(threads) == len(target.threads)
        for thread in threads:
            noted = target.threads[thread["tid"]]
            assert thread["complete"], (noted, thread["stack_problem"])
            assert target.is_right(thread), (noted, thread["frames"])
            assert not thread["moved"]
            assert thread["stack_from"] in ("pc_sp", "bpf")
            if thread["stack_from"] == "bpf":
                assert {frame[6] for frame in thread["frames"]} <= {"leaf", "cfi", "call_site"}
        beyond = [
            thread
            for thread in threads
            if (target.threads[thread["tid"]].shape, target.threads[thread["tid"]].way) == BEYOND_REPAIR
        ]
        assert any(thread["stack_from"] == "bpf" for thread in beyond)


@pytest.mark.root
def test_without_rights_stacks_are_cut_short_and_never_wrong(binary: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    loads = [*AS_NOBODY, sys.executable, "-c", "from pyhangtrace import _native"]
    if subprocess.run(loads, cwd=ROOT, capture_output=True, timeout=60).returncode != 0:
        pytest.skip("another user may not run this tree")
    command = [*AS_NOBODY, sys.executable, "-c", CAPTURE.format(True)]
    with hostile(binary, *AS_NOBODY) as target:
        done = subprocess.run(
            [*command, str(target.pid)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        [process] = json.loads(done.stdout)
        threads = [thread for thread in process["threads"] if thread["tid"] in target.threads]
        assert len(threads) == len(target.threads)
        wrong = [thread for thread in threads if not target.is_right(thread)]
        assert not wrong
        incomplete = [thread for thread in threads if not thread["complete"]]
        assert incomplete
        assert all(thread["stack_problem"] for thread in incomplete)
        assert not any(thread["stack_from"] == "bpf" for thread in threads)
        state, reason = rung(process, EBPF)
        assert state == "refused"
        assert reason


@pytest.mark.root
@pytest.mark.slow
def test_with_bpf_stacks_are_those_of_gdb(binary: Path) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("needs gdb")
    with hostile(binary) as target:
        [process] = _native.Engine().capture([target.pid])
        skip_without(process, EBPF)
        seen = gdb_stacks(target.pid)
        compared = 0
        for thread in process["threads"]:
            noted = target.threads.get(thread["tid"])
            if noted is None or noted.shape in ("in_signal", "on_other_stack"):
                continue  # gdb shows no address for a signal's trampoline
            assert distinct(frame[5] for frame in thread["frames"]) == seen[thread["tid"]], noted
            compared += 1
        assert compared > 250


def distinct(addresses: Iterable[int]) -> list[int]:
    """Without repetitions: functions that were inlined have the address of the one they are in."""
    return [address for address, _ in itertools.groupby(addresses)]


def gdb_stacks(pid: int) -> dict[int, list[int]]:
    """Distinct return addresses by thread."""
    # Debug information would add frames of functions that were inlined or left by a jump.
    settings = ("debug-file-directory /nonexistent", "print frame-info location-and-address")
    options = [word for setting in settings for word in ("-iex", f"set {setting}")]
    done = subprocess.run(
        ["gdb", "-nx", "-batch", *options, "-p", str(pid), "-ex", "thread apply all bt"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "DEBUGINFOD_URLS": "", "LC_ALL": "C"},
        check=False,
    )
    stacks: dict[int, list[int]] = {}
    frames: list[int] = []
    for line in done.stdout.splitlines():
        if found := re.search(r"\(LWP (\d+)\)", line):
            frames = stacks.setdefault(int(found.group(1)), [])
        elif found := re.match(r"#\d+\s+(0x[0-9a-f]+) in ", line):
            frames.append(int(found.group(1), 16))
    return {tid: distinct(frames) for tid, frames in stacks.items()}


def until_sampled(pid: int, *names: str) -> tuple[Any, dict[str, Any]]:
    """A picture in which all these threads (by comm) were sampled twice at least; the CPUs may be taken for long."""
    engine = _native.Engine()
    end = time.monotonic() + DEADLINE_S
    while True:
        [process] = engine.capture([pid])
        skip_without(process, PERF)
        threads = {thread["comm"]: thread for thread in process["threads"] if thread["comm"] in names}
        taken = [thread["samples"]["count"] if thread["samples"] else 0 for thread in threads.values()]
        if len(taken) == len(names) and min(taken) >= 2:
            return process, threads
        assert time.monotonic() < end, threads


def test_threads_on_the_cpu_have_stacks(tmp_path: Path) -> None:
    binary = compile_c(TARGETS / "spinning.c", tmp_path / "spinning")
    with ready(binary) as pid:
        _, threads = until_sampled(pid, "spin", "yield", "compute")
    for name, functions in (
        ("spin", {"spin_on_word"}),
        ("yield", {"sched_yield", "__sched_yield", "yield_until"}),
        ("compute", {"grow", "shrink", "compute"}),
    ):
        thread = threads[name]
        assert thread["running"]
        assert thread["moved"]
        assert thread["stack_from"] in ("perf", "bpf")
        assert thread["complete"], thread["stack_problem"]
        assert set(thread["samples"]["leaves"]) <= functions
        own = [frame[1] for frame in thread["frames"] if frame[4] == str(binary)]
        assert own[-1] == "run"
        assert set(own[:-1]) <= functions
    assert threads["spin"]["samples"]["same_stack"]


def test_a_python_loop_has_a_native_stack_too() -> None:
    program = "def turn():\n  print('ready', flush=True)\n  while True: pass\nturn()"
    with ready(sys.executable, "-c", program) as pid:
        comm = Path(f"/proc/{pid}/comm").read_text().strip()
        _, threads = until_sampled(pid, comm)
    thread = threads[comm]
    assert thread["complete"]
    shown = [*thread["frames"], *thread["unmerged_python"]]
    assert [frame[1] for frame in shown if frame[0] == "python"] == ["turn", "<module>"]
    assert any(frame[0] == "native" for frame in shown)
    # Merged only if there are as many evaluations as entries, and even so it is another moment.
    assert thread["moved"]


def test_samples_leave_no_descriptor_open(tmp_path: Path) -> None:
    binary = compile_c(TARGETS / "spinning.c", tmp_path / "spinning")
    engine = _native.Engine()
    with ready(binary) as pid:
        [process] = engine.capture([pid])
        skip_without(process, PERF)
        assert not open_events()
        engine.capture([pid])
        assert not open_events()


def open_events() -> list[str]:
    """Perf events that this process has open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    assert links
    return [link for link in links if "perf_event" in link]


def test_more_running_threads_than_files_may_be_open(tmp_path: Path) -> None:
    binary = compile_c(TARGETS / "spinning.c", tmp_path / "spinning")
    with ready(binary) as pid:
        [process] = _native.Engine().capture([pid])
        skip_without(process, PERF)
        # What is free is counted from the lowest free number, and 64 are left for others.
        few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (66, 66)); " + CAPTURE.format(
            False
        )
        process = seen_by(few, pid)
    state, reason = rung(process, PERF)
    assert state in ("limited", "failed")
    assert "of 3 running threads were sampled" in reason
    assert all(thread["stack_problem"] for thread in process["threads"] if not thread["complete"])
