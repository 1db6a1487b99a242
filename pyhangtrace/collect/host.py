"""What does not belong to one look: the machine, its GPUs, and what the job has mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.collect import gpus, kernel, maps
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.host import CgroupFacts, HostFacts, MappedFile
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.processes import ProcessFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What was found, and lines of coverage. `frameworks` are those that each process has loaded."""

    facts: HostFacts
    cgroup: CgroupFacts | None
    gpus: gpus.Gpus
    mapped: tuple[MappedFile, ...]
    frameworks: Mapping[int, tuple[str, ...]]
    mappings: Mapping[int, Sequence[maps.FileMapping]]  # big files, by process
    maps: Mapping[int, maps.ProcessMaps]
    coverage: tuple[SourceStatus, ...]


def collect(
    reader: GuardedReader,
    drivers: GuardedReader | None,
    members: Sequence[ProcessFacts],
    *,
    left: Callable[[float], float],
    proc_root: str = PROC,
) -> Host:
    """`drivers` is the helper that was sent ahead to the GPUs' driver, if there is one. `left` gives a step its
    deadline: what it wants, within what is left of the run.
    """
    ages = [facts.started_s_ago for facts in members if facts.started_s_ago is not None]
    machine, problem = kernel.collect(since_s_ago=max(ages, default=None), proc_root=proc_root)
    log = SourceStatus(
        source="kernel log",
        state=SourceState.USED if problem is None else SourceState.REFUSED,
        reason=problem or "",
        fix="" if problem is None else "run as root, or: sysctl -w kernel.dmesg_restrict=0",
    )
    living = [facts.pid for facts in members if facts.problem is None]
    mapped = maps.collect(reader, living, deadline_s=left(1.0))
    shared = maps.shared_files(reader, mapped, deadline_s=left(0.3))
    frameworks = maps.loaded(mapped)
    devices = gpus.collect(reader, drivers, frameworks, deadline_s=left(0.5))
    return Host(
        facts=machine,
        cgroup=kernel.cgroup_of(members),
        gpus=devices,
        mapped=shared,
        frameworks=frameworks,
        mappings={pid: maps_of_one.files for pid, maps_of_one in mapped.items()},
        maps=mapped,
        coverage=(log, *devices.coverage),
    )
