"""`--allow-stop`: it gives what nothing else does, says for how long, and harms nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.hangs.attach import tool
from tests.hangs.processes import in_sessions
from tests.integration.bad_targets import (
    TARGETS,
    await_that,
    compile_c,
    look,
    started,
    status,
    thread_states,
)
from tests.integration.hostile import build, hostile, ready, rung, seen_by, skip_without

PERF = "perf samples"
STOP = "thread stop"
DEADLINE_S = 30.0

VFORK = """
#include <stdio.h>
#include <unistd.h>
int main(void) {
  char byte;
  puts("ready");
  fflush(stdout);
  if (vfork() == 0) _exit(read(0, &byte, 1) < 0);
  return 0;
}
"""

DEEP = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static int down(volatile int n) {
  if (n == 0) {
    puts("ready");
    fflush(stdout);
    return pause();
  }
  return down(n - 1) + n;
}
int main(void) { return down(20000); }
"""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stop"), "-O2", "-fno-omit-frame-pointer")


#: System calls (x86-64) that could return an error if they were interrupted: epoll_wait, recvfrom, accept.
NOT_STOPPED = (232, 45, 43)


def test_a_stop_gives_what_nothing_else_does_and_harms_nobody(binary: Path) -> None:
    with hostile(binary) as target:
        engine = _native.Engine()
        [before] = engine.capture([target.pid], bpf=False)
        assert before["stopped_us"] == 0
        incomplete = {thread["tid"] for thread in before["threads"] if not thread["complete"]}
        assert incomplete
        [process] = engine.capture([target.pid], bpf=False, stop=[target.pid])
        skip_without(process, STOP)
        assert process["stopped_us"] > 0
        counters = {thread["tid"]: (thread["run_ns"], thread["slices"]) for thread in before["threads"]}
        stopped = []
        for thread in process["threads"]:
            noted = target.threads.get(thread["tid"])
            if noted is None or thread["tid"] not in incomplete:
                assert thread["stack_from"] != "stop"
                continue
            if noted.syscall in NOT_STOPPED:
                assert thread["stack_from"] != "stop"
                assert "could return an error" in thread["stack_problem"]
            elif thread["stack_from"] == "stop":
                stopped.append(thread)
                assert thread["complete"]
                assert target.is_right(thread), (noted, thread["frames"])
                # Its counters are those before the stop, by which it slept through.
                assert counters[thread["tid"]] == (thread["run_ns"], thread["slices"])
            else:
                assert thread["stack_problem"] in (
                    "it did not stop in time, and was left alone",
                    "not stopped: others were, for as long as is allowed",
                )
        assert stopped
        assert not any(thread["moved"] for thread in stopped)
        await_that("all go on waiting", target.all_blocked)
        assert status(target.pid, "TracerPid") == "0"
        # Whoever returned from its call would have gone on to another one, or ended.
        [after] = engine.capture([target.pid], bpf=False)
        assert {thread["tid"] for thread in after["threads"]} == {
            thread["tid"] for thread in process["threads"]
        }
        slept = {thread["tid"]: thread["slices"] for thread in after["threads"]}
        untouched = [tid for tid in target.threads if tid not in incomplete]
        assert all(slept[tid] == counters[tid][1] for tid in untouched)


def test_a_running_thread_is_stopped_where_it_cannot_be_sampled(tmp_path: Path) -> None:
    binary = compile_c(TARGETS / "spinning.c", tmp_path / "spinning")
    # Without room for a single descriptor there are no samples.
    program = (
        "import json, resource, sys; from pyhangtrace import _native; engine = _native.Engine();"
        "engine.capture([int(sys.argv[1])]); resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "print(json.dumps(engine.capture([int(sys.argv[1])], bpf=False, stop=[int(sys.argv[1])])))"
    )
    with ready(binary) as pid:
        end = time.monotonic() + DEADLINE_S
        stopped: set[str] = set()
        while stopped != {"spin", "compute"}:  # who yields all the time may not get on a CPU in time to stop
            assert time.monotonic() < end, stopped
            process = seen_by(program, pid)
            skip_without(process, STOP)
            assert rung(process, PERF)[0] != "used"
            for thread in process["threads"]:
                if thread["stack_from"] == "stop":
                    assert thread["complete"], thread["stack_problem"]
                    assert thread["moved"]
                    stopped.add(thread["comm"])
            stopped.discard("yield")
        assert set(thread_states(pid).values()) <= {"R", "S"}
        assert status(pid, "TracerPid") == "0"


def test_nobody_is_stopped_where_registers_are_not_what_is_missing(tmp_path: Path) -> None:
    source = tmp_path / "deep.c"
    source.write_text(DEEP)
    binary = compile_c(source, tmp_path / "deep")
    with ready(binary) as pid:
        await_that("asleep", lambda: thread_states(pid).get(pid) == "S")
        for bpf in (False, True):
            [process] = _native.Engine().capture([pid], bpf=bpf, stop=[pid])
            [thread] = process["threads"]
            assert len(thread["frames"]) > 1000
            assert not thread["complete"]
            assert process["stopped_us"] == 0
            assert rung(process, STOP)[0] == ""


def test_the_tool_says_for_how_long_it_stopped_whom(binary: Path) -> None:
    with hostile(binary) as target:
        plain = look(str(target.pid), "--json", "--no-bpf")
        assert plain.code == 0
        assert not any(plain.report["cost"]["stopped_us"].values())
        assert "stop" not in stacks_from(plain.report)
        assert "pc_sp" in stacks_from(plain.report)
        seen = look(str(target.pid), "--json", "--no-bpf", "--allow-stop")
        assert seen.code == 0
        (line,) = (line for line in seen.report["coverage"] if line["source"] == STOP)
        if line["state"] == "refused":
            pytest.skip(f"no ptrace here: {line['reason']}")
        assert "stop" in stacks_from(seen.report)
        assert seen.report["cost"]["stopped_us"][str(target.pid)] > 0
        assert all(
            microseconds == 0
            for pid, microseconds in seen.report["cost"]["stopped_us"].items()
            if pid != str(target.pid)
        )
        assert target.all_blocked()


def stacks_from(report: dict[str, Any]) -> set[str]:
    return {thread["stack_from"] for process in report["processes"] for thread in process["threads"]}


def test_nobody_is_touched_who_would_notice(tmp_path: Path) -> None:
    """In an uninterruptible wait, or stopped: `--allow-stop` ends in time and changes nothing."""
    source = tmp_path / "vfork.c"
    source.write_text(VFORK)
    binary = compile_c(source, tmp_path / "vfork")
    with started(binary, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        await_that("in an uninterruptible wait", lambda: thread_states(process.pid).get(process.pid) == "D")
        [captured] = _native.Engine().capture([process.pid], bpf=False, stop=[process.pid])
        assert captured["stopped_us"] == 0
        seen = look(str(process.pid), "--json", "--allow-stop")
        assert not any(seen.report["cost"]["stopped_us"].values())
        assert thread_states(process.pid)[process.pid] == "D"
        assert status(process.pid, "TracerPid") == "0"
    with started("sleep", "1000") as process:
        await_that("asleep", lambda: thread_states(process.pid).get(process.pid) == "S")
        process.send_signal(signal.SIGSTOP)
        await_that("stopped", lambda: thread_states(process.pid).get(process.pid) == "T")
        seen = look(str(process.pid), "--json", "--allow-stop")
        assert not any(seen.report["cost"]["stopped_us"].values())
        assert thread_states(process.pid)[process.pid] == "T"


@pytest.mark.parametrize("moment", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_a_killed_tool_leaves_nobody_stopped(binary: Path, moment: float) -> None:
    with hostile(binary) as target:
        command = [*tool(), "attach", str(target.pid), "--no-bpf", "--allow-stop"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as looking:
            with contextlib.suppress(subprocess.TimeoutExpired):
                looking.wait(timeout=moment)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(looking.pid, signal.SIGKILL)
        await_that("no process of ours is left", lambda: not in_sessions({looking.pid}))
        await_that("all go on waiting", target.all_blocked)
        assert set(thread_states(target.pid).values()) == {"S"}
        assert status(target.pid, "TracerPid") == "0"


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.5])
def test_a_target_that_ends_while_its_threads_are_stopped(binary: Path, moment: float) -> None:
    with hostile(binary) as target:
        command = [*tool(), "attach", str(target.pid), "--json", "--no-bpf", "--allow-stop"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as looking:
            with contextlib.suppress(subprocess.TimeoutExpired):
                looking.wait(timeout=moment)
            os.kill(target.pid, signal.SIGKILL)
            out, err = looking.communicate(timeout=30)
        assert looking.returncode in (0, 3, 5), err
        assert "Traceback" not in err
        assert looking.returncode == 5 or json.loads(out)["verdict"]["state"]
