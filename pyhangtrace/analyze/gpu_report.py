"""The `gpus` of the report, and what a person can do where somebody waits for one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from pyhangtrace.analyze.finding import Case, Finding
from pyhangtrace.analyze.gpu_devices import bus_of, cuda_of, fault_of, xids_at
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.gpu import DriverGpu, GpuFacts, GpuState, Prepared, PreparedExtra
from pyhangtrace.model.kinds import Kind, State, WaitKind
from pyhangtrace.model.report import Gpu

_MOST_STEPS = 3


def gpus_of(evidence: Evidence) -> tuple[Gpu, ...]:
    """By index. Without the management library, what the driver's own files say."""
    if evidence.gpus:
        return tuple(_device(evidence, gpu) for gpu in sorted(evidence.gpus, key=lambda gpu: gpu.index))
    driver = evidence.gpu_driver
    found = driver.gpus if driver is not None else ()
    return tuple(_listed(evidence, index, gpu) for index, gpu in enumerate(found))


def _device(evidence: Evidence, gpu: GpuFacts) -> Gpu:
    told: dict[str, Any] = {each.name: getattr(gpu, each.name) for each in fields(GpuState)}
    told["xids"] = tuple(sorted({*gpu.xids, *xids_at(evidence, bus_of(gpu.bus))}))
    told["memory_of"] = {str(pid): size for pid, size in gpu.memory_of}
    return Gpu(**told)


def _listed(evidence: Evidence, index: int, gpu: DriverGpu) -> Gpu:
    return Gpu(
        index=index,
        uuid=gpu.uuid,
        name=gpu.model,
        bus=gpu.bus,
        minor=gpu.minor,
        xids=xids_at(evidence, bus_of(gpu.bus)),
        problem="excluded by the driver" if gpu.excluded else None,
    )


def gpu_steps(case: Case, finding: Finding) -> list[str]:
    """What shows the GPU's side: what the job was started with for this, each with what it does to the job."""
    waiting = sorted(
        {
            key[0]
            for key, wait in case.waits.items()
            if wait.kind is WaitKind.GPU and wait.service is None and case.scene.who.by_pid.get(key[0])
        }
    )
    if finding.cause is Kind.GPU_FAULT:
        named = [who.key[0] for who in finding.named if who.key is not None]
        faults = {pid: fault for pid in named if (fault := fault_of(case.scene, pid)) is not None}
        return [
            f"nvidia-smi -q -i {bus}; take this host out of the job, and reset the GPU (Xid {number})"
            for bus, number in sorted(
                {("{:08x}:{:02x}:{:02x}.0".format(*fault.bus), fault.number) for fault in faults.values()}
            )
        ]
    if finding.state not in (State.UNKNOWN, State.HUNG):
        return []
    return [step for pid in waiting for step in _offers(case, pid)][:_MOST_STEPS]


def _offers(case: Case, pid: int) -> Iterator[str]:
    process = cuda_of(case.scene, pid)
    for extra in process.prepared if process is not None else ():
        yield _offer(pid, extra)


def _offer(pid: int, extra: PreparedExtra) -> str:
    pipe = shlex.quote(f"/proc/{pid}/root{extra.path}")
    if extra.kind is Prepared.GPU_CORE_DUMP:
        ends = ", and ends it (no skip_abort)" if extra.ends_process else ""
        return f"echo 1 > {pipe}: writes a core dump of the GPU of pid {pid}{ends}; cuda-gdb shows its kernel"
    if extra.kind is Prepared.TORCH_DUMP:
        return f"echo 1 > {pipe}: PyTorch writes the flight recorder of pid {pid}"
    return f"kill -{extra.signal} {pid}: NCCL writes what its proxy waits for to its log (NCCL_PROXY_DUMP_SIGNAL)"
