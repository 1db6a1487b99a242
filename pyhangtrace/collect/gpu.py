"""GPUs through NVIDIA's management library, in a process that can be given up: the driver may be what hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import PROC, printable
from pyhangtrace.model.evidence import GpuFacts, SourceStatus
from pyhangtrace.model.kinds import SourceState

GPU_TASK = "gpus"
_SOURCE = "nvml"


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
        yield 0, ([], (SourceState.FAILED, str(error)))
        return
    yield 0, (found, None)


def _device(pynvml: Any, index: int) -> GpuFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: str) -> Any:
        try:
            return getattr(pynvml, question)(handle)
        except pynvml.NVMLError:  # not every device answers every question
            return None

    usage = ask("nvmlDeviceGetUtilizationRates")
    memory = ask("nvmlDeviceGetMemoryInfo")
    power = ask("nvmlDeviceGetPowerUsage")
    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    users = ask("nvmlDeviceGetComputeRunningProcesses") or []
    return GpuFacts(
        index=index,
        uuid=printable(str(ask("nvmlDeviceGetUUID") or "")),
        name=printable(str(ask("nvmlDeviceGetName") or "")),
        pids=tuple(sorted(int(user.pid) for user in users)),
        utilization=int(usage.gpu) if usage is not None else None,
        memory_used=int(memory.used) if memory is not None else None,
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
    )


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
