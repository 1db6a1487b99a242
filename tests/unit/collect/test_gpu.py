"""GPUs, through the real Python binding over a management library that is compiled here."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.collect import gpu
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.gpu import GpuFacts
from pyhangtrace.model.kinds import SourceState

SOURCE = Path(__file__).parent / "nvidia" / "nvml.c"
ANSWERS_S = 20.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> Path:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    subprocess.run(
        [c_compiler, *flags, "-Wl,-soname,libnvidia-ml.so.1", "-o", path, SOURCE], check=True, timeout=60
    )
    return path


def ask(
    library: Path, environment: Mapping[str, str] | None = None, *, deadline_s: float = ANSWERS_S
) -> tuple[tuple[GpuFacts, ...], SourceStatus]:
    def task(
        state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        # In the helper only. The binding asks for the library by its name, and finds the one that is loaded.
        os.environ.update(environment or {})
        ctypes.CDLL(str(library))
        yield from gpu.gpu_task(state, pids, argument, progress)

    with GuardedReader({gpu.GPU_TASK: task}) as reader:
        return gpu.collect(reader, deadline_s=deadline_s)


def test_a_device_that_is_well(library: Path) -> None:
    found, status = ask(library)
    assert (status.state, status.reason, len(found)) == (SourceState.USED, "", 3)
    assert found[0] == GpuFacts(
        index=0,
        uuid="GPU-0",
        name="H200",
        pids=(7, 9),
        utilization=100,
        memory_utilization=0,
        memory_used=1 << 30,
        memory_total=4 << 30,
        memory_of=((9, 2 << 20),),  # of the other one it does not say
        power_w=118.5,
        power_limit_w=700.0,
        bus="00000000:81:00.0",
        minor=4,
        clock_sm=1980,
        clock_sm_max=1980,
        performance_state=0,
        temperature=41,
        ecc_uncorrected=0,
        ecc_corrected=0,
        rows_remapped=3,
        remap_failed=False,
        pcie_replays=0,
        links=4,
        recovery="none",
        fabric="completed",
    )


def test_a_device_with_every_trouble(library: Path) -> None:
    device = ask(library)[0][1]
    assert (device.throttled, device.clock_sm) == (("hw thermal slowdown", "hw power brake"), 345)
    assert (device.ecc_uncorrected, device.ecc_corrected, device.remap_failed) == (3, 12, True)
    assert (device.links, device.links_down, device.link_errors) == (4, (2,), (3,))
    assert (device.pcie_replays, device.recovery, device.fabric) == (17, "gpu reset", "in progress")
    assert (device.pids, device.memory_of) == ((), ())


def test_a_lost_device_does_not_hide_the_others(library: Path) -> None:
    assert ask(library)[0][2] == GpuFacts(index=2, uuid="", name="", problem="GPU is lost")


ONE_BY_ONE = {
    "nvmlDeviceGetUtilizationRates": ("utilization", None),
    "nvmlDeviceGetMemoryInfo": ("memory_used", None),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("pids", ()),
    "nvmlDeviceGetPciInfo_v3": ("bus", ""),
    "nvmlDeviceGetNvLinkState": ("links", None),
    "nvmlDeviceGetFieldValues": ("recovery", None),
    "nvmlDeviceGetGpuFabricInfo": ("fabric", None),
    "nvmlDeviceGetRemappedRows": ("remap_failed", None),
    "nvmlDeviceGetName": ("name", ""),
}


@pytest.mark.parametrize("function", ONE_BY_ONE)
def test_what_a_device_does_not_say_is_left_open(library: Path, function: str) -> None:
    found, status = ask(library, {"LACKS": function})
    name, value = ONE_BY_ONE[function]
    assert status.state is SourceState.USED
    assert getattr(found[0], name) == value
    assert found[0].uuid == "GPU-0"


def test_reasons_of_older_releases(library: Path) -> None:
    found, _ = ask(library, {"LACKS": "nvmlDeviceGetCurrentClocksEventReasons"})
    assert [device.throttled for device in found[:2]] == [(), ("sw thermal slowdown",)]


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage"])
def test_a_call_that_never_returns(library: Path, function: str) -> None:
    found, status = ask(library, {"STUCK": function}, deadline_s=0.5)
    assert (found, status.state) == ((), SourceState.TIMED_OUT)
    assert status.fix == "dmesg | grep -e NVRM -e Xid"


def test_no_driver(library: Path) -> None:
    found, status = ask(library, {"NO_DRIVER": "1"})
    assert (found, status.state, status.reason) == ((), SourceState.FAILED, "Driver Not Loaded")


def test_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GuardedReader({gpu.GPU_TASK: gpu.gpu_task}) as reader:
        found, status = gpu.collect(reader, deadline_s=ANSWERS_S)
    assert (found, status.state) == ((), SourceState.ABSENT)
