"""Real programs inside a driver whose GPU is never done: what they wait for is named, and nobody counts as at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hangs.attach import look
from tests.hangs.processes import stat_fields

SOURCES = Path(__file__).parent / "gpu"
DEADLINE_S = 30.0

pytestmark = pytest.mark.timeout(120)

WAITS = {
    "cudaStreamSynchronize": "all work of one stream",
    "cudaEventSynchronize": "the work before an event",
    "cudaDeviceSynchronize": "all work of the GPU",
    "cudaMemcpy": "a copy, and all work before it in its stream",
    "cudaFree": "all work of the GPU, implicitly",
    "cudaLaunchKernel": "room in the launch queue",
    "cudaGraphLaunch": "room to launch a graph",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror")
    shared = (*flags, "-fPIC", "-shared", "-s")
    for command in (
        (*shared, "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", SOURCES / "driver.c"),
        (
            *(*shared, "-Wl,-soname,libcudart.so.12", "-o", folder / "libcudart.so.12"),
            *(SOURCES / "runtime.c", folder / "libcuda.so.1"),
        ),
        (*flags, "-o", folder / "program", SOURCES / "program.c", "-ldl", "-pthread"),
    ):
        subprocess.run([c_compiler, *command], check=True, timeout=60)
    return folder


def asleep(pid: int) -> bool:
    threads = [stat_fields(pid, int(tid)) for tid in os.listdir(f"/proc/{pid}/task")]
    return all(fields is not None and fields[0] == "S" for fields in threads)


def at_work(pid: int) -> bool:
    """Its CPU time is that of a program that has long been started."""
    fields = stat_fields(pid)
    return fields is not None and int(fields[11]) + int(fields[12]) > 20


@contextmanager
def program(
    folder: Path, *calls: str, way: str = "block", ready: Callable[[int], bool] = asleep, threads: int = 1
) -> Iterator[int]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "WAY": way, "CUDA_LAUNCH_BLOCKING": "1"}
    child = subprocess.Popen(
        [folder / "program", *calls], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        until = time.monotonic() + DEADLINE_S
        while len(os.listdir(f"/proc/{child.pid}/task")) != threads or not ready(child.pid):
            assert time.monotonic() < until, "it does not come to wait"
            assert child.poll() is None
            os.sched_yield()
        yield child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def attach(pid: int) -> dict[str, Any]:
    done = look(pid, "--no-bpf")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def of_main(report: dict[str, Any], pid: int) -> dict[str, Any]:
    (wait,) = [wait for wait in report["waits"] if wait["tid"] == pid]
    assert isinstance(wait, dict)
    return wait


def _innocent(report: dict[str, Any]) -> bool:
    """The host cannot tell whether the GPU will be done: nobody is accused, and nobody is called well."""
    verdict = report["verdict"]
    return verdict["state"] == "unknown" and verdict["culprits"] == []


@pytest.mark.parametrize("call", WAITS)
def test_a_thread_that_sleeps_in_the_driver(folder: Path, call: str) -> None:
    with program(folder, call) as pid:
        report = attach(pid)
    wait = of_main(report, pid)
    assert (wait["kind"], wait["object"]["name"]) == ("gpu", call)
    assert f"sleeps in {call}: waits for {WAITS[call]}" in wait["evidence"]
    assert "CUDA_LAUNCH_BLOCKING=1" in wait["evidence"]
    assert _innocent(report)
    assert f"waits for the GPU, in {call}" in report["verdict"]["summary"]
    assert wait["holder"] is None


@pytest.mark.parametrize("way", ["spin", "yield"])
def test_a_thread_that_spins_in_the_driver_is_not_at_work(folder: Path, way: str) -> None:
    with program(folder, "cudaStreamSynchronize", way=way, ready=at_work) as pid:
        report = attach(pid)
    (thread,) = [thread for thread in report["processes"][0]["threads"] if thread["tid"] == pid]
    (samples,) = (line for line in report["coverage"] if line["source"] == "perf samples")
    if samples["state"] in ("refused", "absent"):
        pytest.skip(f"stacks of running threads cannot be sampled here: {samples['reason']}")
    assert thread["stack"]
    wait = of_main(report, pid)
    assert (wait["kind"], wait["object"]["name"]) == ("gpu", "cudaStreamSynchronize")
    assert "spins in cudaStreamSynchronize: waits for all work of one stream" in wait["evidence"]
    assert _innocent(report)


def test_a_lock_of_the_driver_leads_to_who_waits_for_the_device(folder: Path) -> None:
    with program(folder, "cudaMalloc", "cudaFree", threads=2) as pid:
        report = attach(pid)
    waits = {wait["kind"]: wait for wait in report["waits"]}
    assert set(waits) == {"gpu", "mutex"}
    assert waits["mutex"]["holder"]["tid"] == waits["gpu"]["tid"]
    assert _innocent(report)
