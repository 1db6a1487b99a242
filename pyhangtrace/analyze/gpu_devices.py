"""The devices behind a wait for the GPU: which are a process' own, what the driver has logged about them, and how they
are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.gpu import CudaProcess, GpuFacts

Bus = tuple[int, int, int]  # domain, bus, device

_XID = re.compile(r"Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,4})(?:, pid='?(\d{1,10}))?")
_BUS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")

# Faults after which the device answers nobody any more, so that waits for it do not end.
# Source: NVIDIA's "Xid Errors" catalogue.
_DEVICE_LOST = {
    48: "an uncorrectable memory error",
    62: "its micro-controller has halted",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "its system processor has failed",
}

# Under this share of its power limit a GPU that is all busy does nothing but poll memory, as kernels do that wait for
# others: one of NCCL was seen at 118 of 400 W.
_POLLING_POWER = 0.45
_POLLING_MEMORY = 5

_TOLD_SETTINGS = ("CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS")


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault that the driver has logged. `pid` is the host's number of the process it was at, if it says so."""

    number: int
    bus: Bus
    pid: int | None

    @property
    def device_lost(self) -> str | None:
        """What has become of the device, None where it goes on."""
        return _DEVICE_LOST.get(self.number)


def bus_of(text: str) -> Bus | None:
    """ "00000000:81:00.0" as numbers."""
    found = _BUS.match(text)
    return (int(found[1], 16), int(found[2], 16), int(found[3], 16)) if found else None


def xids(evidence: Evidence) -> Iterator[Xid]:
    """All faults in the kernel's log since the job began."""
    for line in evidence.host.xids:
        found = _XID.search(line)
        bus = bus_of(found[1]) if found else None
        if found is not None and bus is not None:
            yield Xid(int(found[2]), bus, int(found[3]) if found[3] else None)


def xids_at(evidence: Evidence, bus: Bus | None) -> tuple[int, ...]:
    """Numbers of the faults of one device."""
    return tuple(sorted({xid.number for xid in xids(evidence) if bus is not None and xid.bus == bus}))


def fault_of(scene: Scene, pid: int) -> Xid | None:
    """A fault that has taken a device from this process: the log names the process, or it uses that device alone, or
    the driver lists it there.
    """
    for xid in xids(scene.evidence):
        if xid.device_lost is None:
            continue
        if xid.pid == pid or xid.bus in _buses(scene, pid):
            return xid
    return None


def _buses(scene: Scene, pid: int) -> set[Bus]:
    """Devices that are surely a process' own. CUDA opens all that it may see, so several open ones prove nothing."""
    found = {bus_of(gpu.bus) for gpu in devices_of(scene, pid)}
    process = cuda_of(scene, pid)
    driver = scene.evidence.gpu_driver
    if process is not None and driver is not None and len(process.minors) == 1:
        found.update(bus_of(gpu.bus) for gpu in driver.gpus if gpu.minor == process.minors[0])
    return {bus for bus in found if bus is not None}


def devices_of(scene: Scene, pid: int) -> tuple[GpuFacts, ...]:
    """Devices on which the driver lists this process."""
    return tuple(gpu for gpu in scene.evidence.gpus if pid in gpu.pids)


def cuda_of(scene: Scene, pid: int) -> CudaProcess | None:
    """What is known of a process that uses CUDA."""
    return next((process for process in scene.evidence.cuda if process.pid == pid), None)


def settings_words(scene: Scene, pid: int) -> tuple[str, ...]:
    """Variables that change how its calls wait."""
    process = cuda_of(scene, pid)
    if process is None:
        return ()
    return tuple(f"{name}={value}" for name, value in process.settings if name in _TOLD_SETTINGS)


def device_words(scene: Scene, pid: int, fault: Xid | None) -> tuple[str, ...]:
    """How the devices of a process are, and what has become of one: evidence beside its stack, never a verdict."""
    told = []
    for gpu in devices_of(scene, pid):
        usage = f"{gpu.utilization} % busy" if gpu.utilization is not None else "busy or not, is not known"
        power = ""
        if gpu.power_w is not None and gpu.power_limit_w:
            power = f", {gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W"
        polls = ": a kernel that only polls, as one does that waits for other GPUs" if _polls(gpu) else ""
        told.append(f"GPU {gpu.index} is {usage}{power}{polls}")
    if fault is not None:
        told.append(f"Xid {fault.number}: {fault.device_lost}")
    return tuple(told)


def _polls(gpu: GpuFacts) -> bool:
    if gpu.utilization is None or gpu.power_w is None or not gpu.power_limit_w:
        return False
    light = gpu.power_w < _POLLING_POWER * gpu.power_limit_w
    return gpu.utilization >= 99 and light and (gpu.memory_utilization or 0) <= _POLLING_MEMORY
