"""GPUs, their driver, and what processes do with it, as seen from the host. All of it plain data of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class Prepared(str, Enum):
    """Something a job was started with that a person can use on it now. Nothing here is ever used by itself."""

    GPU_CORE_DUMP = "gpu core dump"
    TORCH_DUMP = "flight recorder dump"
    NCCL_PROXY_DUMP = "nccl proxy dump"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedExtra:
    """One of them. `path` is the pipe (as the process sees it), `signal` the number that asks for it.
    `ends_process`: it is not known to leave the process alive.
    """

    kind: Prepared
    path: str | None = None
    signal: int | None = None
    ends_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGpu:
    """One GPU in /proc/driver/nvidia/gpus. `bus` is "0000:81:00.0"; `minor` the N of /dev/nvidiaN."""

    bus: str
    minor: int | None = None
    uuid: str = ""
    model: str = ""
    firmware: str = ""
    excluded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The NVIDIA driver of this host. `version` is "550.54.15"."""

    version: str = ""
    open_modules: bool = False
    gpus: tuple[DriverGpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaProcess:
    """What one process has to do with the driver. `minors` are the N of the /dev/nvidiaN it has open, `control` and
    `uvm` whether /dev/nvidiactl and /dev/nvidia-uvm are. `settings` are variables that change how CUDA calls wait
    (CUDA_LAUNCH_BLOCKING, CUDA_MODULE_LOADING, …), as it was started with them.
    """

    pid: int
    minors: tuple[int, ...] = ()
    control: bool = False
    uvm: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    prepared: tuple[PreparedExtra, ...] = ()


_Memory = TypeVar("_Memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Generic[_Memory]):
    """One GPU as the management library describes it. None: the device, or this release, does not say.

    `bus` is "00000000:81:00.0"; `pids` and `memory_of` name processes as the host numbers them. `throttled` says why
    its clocks are held down ("sw thermal slowdown", "hw power brake", …; not idle, and not a limit that the user set).
    `ecc_uncorrected` are errors since the driver was loaded, `pcie_replays` since the last reset. `links_down` and
    `link_errors` are numbers of NVLinks. `recovery` is what the driver asks for: "none", "gpu reset", "node reboot", ….
    Clocks in MHz, temperature in °C. `problem`: why nothing else is known of it ("GPU is lost").
    """

    index: int
    uuid: str
    name: str
    pids: tuple[int, ...] = ()
    utilization: int | None = None
    memory_used: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    xids: tuple[int, ...] = ()
    bus: str = ""
    minor: int | None = None
    memory_total: int | None = None
    memory_utilization: int | None = None
    memory_of: _Memory
    clock_sm: int | None = None
    clock_sm_max: int | None = None
    performance_state: int | None = None
    temperature: int | None = None
    throttled: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    rows_remapped: int | None = None
    remap_failed: bool | None = None
    pcie_replays: int | None = None
    links: int | None = None
    links_down: tuple[int, ...] = ()
    link_errors: tuple[int, ...] = ()
    recovery: str | None = None
    fabric: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts(GpuState[tuple[tuple[int, int], ...]]):
    """What is seen of one GPU; `memory_of` are pairs of process and bytes."""

    memory_of: tuple[tuple[int, int], ...] = ()
