"""Everything about GPUs: the devices, their driver's own files, and what the job's processes have open of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyhangtrace.collect import gpu, gpu_driver
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.gpu import CudaProcess, DriverFacts, GpuFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What was found, and lines of coverage."""

    devices: tuple[GpuFacts, ...] = ()
    driver: DriverFacts | None = None
    processes: tuple[CudaProcess, ...] = ()
    coverage: tuple[SourceStatus, ...] = ()


def collect(
    reader: GuardedReader,
    helper: GuardedReader | None,
    frameworks: Mapping[int, Iterable[str]],
    *,
    deadline_s: float,
) -> Gpus:
    """`helper` is the one that was sent ahead to the driver (`gpu.prefetch`), None where there is none; `frameworks`
    say who has the driver's library loaded.
    """
    pids = [pid for pid, names in sorted(frameworks.items()) if "cuda" in names]
    if helper is None:
        return Gpus(
            processes=gpu_driver.processes(reader, reader, pids, deadline_s=deadline_s),
            coverage=(gpu.absent(),),
        )
    devices, status = gpu.collect(helper, deadline_s=deadline_s)
    driver, problems = gpu_driver.collect(helper, deadline_s=deadline_s / 2)
    return Gpus(
        devices=devices,
        driver=driver,
        processes=gpu_driver.processes(reader, helper, pids, deadline_s=deadline_s),
        coverage=(status, *problems),
    )
