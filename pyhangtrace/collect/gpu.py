"""GPUs through NVIDIA's management library, in a process that can be given up: the driver may be what hangs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import PROC, printable
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.gpu import GpuFacts
from pyhangtrace.model.kinds import SourceState

GPU_TASK = "gpus"
_SOURCE = "nvml"

# Numbers of nvml.h, so that an older pynvml without the names does as well.
_CLOCK_SM = 1
_TEMPERATURE_GPU = 0
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE = 0
_LINK_ACTIVE = 1
_MOST_LINKS = 36
_LINK_ERRORS = (0, 1, 2, 3)  # replay, recovery, CRC of flits, CRC of data
_RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RECOVERY = {
    0: "none",
    1: "gpu reset",
    2: "node reboot",
    3: "drain p2p",
    4: "drain and reset",
    5: "recover imex domain",
    6: "bus reset",
    7: "system reboot",
}
_FABRIC = {1: "not started", 2: "in progress", 3: "completed"}  # 0: there is none
# nvmlClocksEventReasons: those that hold a busy GPU back against its owner's wish.
_THROTTLED = {
    0x0000000000000004: "sw power cap",
    0x0000000000000008: "hw slowdown",
    0x0000000000000020: "sw thermal slowdown",
    0x0000000000000040: "hw thermal slowdown",
    0x0000000000000080: "hw power brake",
}


def gpu_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (GpuFacts of all devices, why there are none), under the one pid 0."""
    progress(0)
    try:
        import pynvml
    except ImportError:
        yield 0, ([], (SourceState.ABSENT, "the Python module pynvml is not installed"))
        return
    try:
        pynvml.nvmlInit()
        found = [_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        yield 0, ([], (SourceState.FAILED, printable(str(error))))
        return
    yield 0, (found, None)


class _Device:
    """One device, asked questions that it, or this release of the library, may not know."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._pynvml = pynvml
        self._handle = handle

    def ask(self, question: str, *arguments: Any) -> Any:
        call: Callable[..., Any] | None = getattr(self._pynvml, question, None)
        if call is None:
            return None
        # The second one is no NVMLError: the library is older than the question.
        older = getattr(self._pynvml, "NVMLLibraryMismatchError", self._pynvml.NVMLError)
        try:
            return call(self._handle, *arguments)
        except (self._pynvml.NVMLError, older):
            return None

    def number(self, question: str, *arguments: Any) -> int | None:
        answer = self.ask(question, *arguments)
        return int(answer) if answer is not None else None

    def text(self, question: str) -> str:
        answer = self.ask(question)
        if isinstance(answer, bytes):  # pynvml before 11.5
            answer = answer.decode(errors="replace")
        return printable(str(answer or ""))


def _device(pynvml: Any, index: int) -> GpuFacts:
    try:
        device = _Device(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:  # lost: the others may be well
        return GpuFacts(index=index, uuid="", name="", problem=printable(str(error)))
    usage = device.ask("nvmlDeviceGetUtilizationRates")
    memory = device.ask("nvmlDeviceGetMemoryInfo")
    power = device.number("nvmlDeviceGetPowerUsage")
    limit = device.number("nvmlDeviceGetEnforcedPowerLimit")
    users = device.ask("nvmlDeviceGetComputeRunningProcesses") or []
    shared = device.ask("nvmlDeviceGetMPSComputeRunningProcesses") or []
    used = {int(user.pid): user.usedGpuMemory for user in (*users, *shared)}
    rows = device.ask("nvmlDeviceGetRemappedRows")
    bus = device.ask("nvmlDeviceGetPciInfo")
    links, down, errors = _links(device)
    return GpuFacts(
        index=index,
        uuid=device.text("nvmlDeviceGetUUID"),
        name=device.text("nvmlDeviceGetName"),
        pids=tuple(sorted(used)),
        utilization=int(usage.gpu) if usage is not None else None,
        memory_utilization=int(usage.memory) if usage is not None else None,
        memory_used=int(memory.used) if memory is not None else None,
        memory_total=int(memory.total) if memory is not None else None,
        memory_of=tuple(sorted((pid, int(size)) for pid, size in used.items() if size is not None)),
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        bus=_bus(bus),
        minor=device.number("nvmlDeviceGetMinorNumber"),
        clock_sm=device.number("nvmlDeviceGetClockInfo", _CLOCK_SM),
        clock_sm_max=device.number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
        performance_state=device.number("nvmlDeviceGetPerformanceState"),
        temperature=device.number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
        throttled=_throttled(device),
        ecc_uncorrected=device.number("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        ecc_corrected=device.number("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
        rows_remapped=int(rows[0]) + int(rows[1]) if rows is not None else None,
        remap_failed=bool(rows[3]) if rows is not None else None,
        pcie_replays=device.number("nvmlDeviceGetPcieReplayCounter"),
        links=links,
        links_down=down,
        link_errors=errors,
        recovery=_recovery(pynvml, device),
        fabric=_fabric(pynvml, device),
    )


def _bus(info: Any) -> str:
    name = getattr(info, "busId", None)
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return printable(name or "").lower()


def _throttled(device: _Device) -> tuple[str, ...]:
    mask = device.number("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:  # before R535
        mask = device.number("nvmlDeviceGetCurrentClocksThrottleReasons")
    return tuple(words for bit, words in _THROTTLED.items() if (mask or 0) & bit)


def _links(device: _Device) -> tuple[int | None, tuple[int, ...], tuple[int, ...]]:
    """(how many NVLinks it has, which are down, which have counted errors)."""
    found, down, errors = 0, [], []
    for link in range(_MOST_LINKS):
        active = device.number("nvmlDeviceGetNvLinkState", link)
        if active is None:
            break
        found += 1
        if active != _LINK_ACTIVE:
            down.append(link)
        elif any(device.number("nvmlDeviceGetNvLinkErrorCounter", link, kind) for kind in _LINK_ERRORS):
            errors.append(link)
    return found or None, tuple(down), tuple(errors)


def _recovery(pynvml: Any, device: _Device) -> str | None:
    answers = device.ask("nvmlDeviceGetFieldValues", [_RECOVERY_FIELD])
    if not answers or int(answers[0].nvmlReturn) != 0:
        return None
    action = int(answers[0].value.uiVal)
    return _RECOVERY.get(action, f"action {action}")


def _fabric(pynvml: Any, device: _Device) -> str | None:
    layout = getattr(pynvml, "c_nvmlGpuFabricInfo_t", None)
    if layout is None:
        return None
    info = layout()
    if device.ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(info)) is None:
        return None
    return _FABRIC.get(int(info.state))


def present(proc_root: str = PROC) -> bool:
    """Whether this machine shows an NVIDIA driver at all; cheap."""
    return os.path.isdir(f"{proc_root}/driver/nvidia") or os.path.exists("/dev/nvidiactl")


def prefetch(reader: GuardedReader) -> None:
    """Has the helper start asking."""
    reader.prefetch(GPU_TASK, [0])


def collect(reader: GuardedReader, *, deadline_s: float) -> tuple[tuple[GpuFacts, ...], SourceStatus]:
    """All GPUs and what became of the source. `reader` is a helper of its own, forked for this."""
    answers = reader.run(GPU_TASK, [0], deadline_s=deadline_s)
    if 0 not in answers.values:
        reason = answers.problems.get(0, "no answer")
        return (), SourceStatus(
            source=_SOURCE,
            state=SourceState.TIMED_OUT,
            reason=f"the driver did not answer within {deadline_s:g} s ({reason})",
            fix="dmesg | grep -e NVRM -e Xid",
        )
    found, trouble = answers.values[0]
    if trouble is not None:
        state, reason = trouble
        return (), SourceStatus(
            source=_SOURCE, state=state, reason=reason, fix="pip install 'pyhangtrace[gpu]'; nvidia-smi"
        )
    return tuple(found), SourceStatus(source=_SOURCE, state=SourceState.USED)


def absent() -> SourceStatus:
    """The status where there is no driver."""
    return SourceStatus(source=_SOURCE, state=SourceState.ABSENT, reason="no NVIDIA driver on this machine")
