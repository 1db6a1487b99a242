"""GPUs, with a management library that is made up."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from pyhangtrace.collect import gpu
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.model.kinds import SourceState


class NVMLError(Exception):
    pass


def library(**functions: object) -> ModuleType:
    def refuses(*_: object) -> None:
        raise NVMLError("Not Supported")

    made = ModuleType("pynvml")
    defaults = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=1 << 30),
        "nvmlDeviceGetPowerUsage": lambda _: 118_500,
        "nvmlDeviceGetEnforcedPowerLimit": refuses,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=9), SimpleNamespace(pid=7)],
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlDeviceGetName": lambda _: "H200",
    }
    for name, function in {**defaults, **functions}.items():
        setattr(made, name, function)
    return made


def ask(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> tuple[tuple[gpu.GpuFacts, ...], gpu.SourceStatus]:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with GuardedReader({gpu.GPU_TASK: gpu.gpu_task}) as reader:
        return gpu.collect(reader, deadline_s=1.0)


def test_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found, status = ask(monkeypatch, library())
    assert status.state is SourceState.USED
    (device,) = found
    assert (device.utilization, device.memory_used, device.pids) == (97, 1 << 30, (7, 9))
    assert (device.power_w, device.power_limit_w) == (118.5, None)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    found, status = ask(monkeypatch, None)
    assert (found, status.state) == ((), SourceState.ABSENT)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NVMLError("Driver Not Loaded")

    found, status = ask(monkeypatch, library(nvmlInit=fails))
    assert (found, status.state, status.reason) == ((), SourceState.FAILED, "Driver Not Loaded")


def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found, status = ask(monkeypatch, library(nvmlInit=lambda: threading.Event().wait()))
    assert (found, status.state) == ((), SourceState.TIMED_OUT)
