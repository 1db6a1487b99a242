"""Whether memory has anything to do with it: the bracket, without walking a page table.

RSS of processes that map the same pages adds up to many times what is there. What the group really holds lies
between its anonymous pages plus the largest single file part, and its anonymous pages plus what the page cache
holds of the distinct files mapped. `Mapped` of /proc/meminfo counts each page once, so a sum above it is
arithmetic, not an opinion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyhangtrace.analyze.holders import forked_without_exec
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.host import MappedFile
from pyhangtrace.model.kinds import MemoryMode, MemoryVerdict, Role
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import MemoryReport

# A sum this many times above what can be there misleads whoever reads it.
_ILLUSION = 2.0
_LOW_SHARE = 0.05
_FULL_STALL_PERCENT = 10.0

# Above this a process reads its pages in again and again.
THRASH_FAULTS_PER_S = 1000.0

_GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Sums:
    rss: int
    anon: int
    anon_low: int
    shared: int
    shared_max: int
    processes: int
    mappers: int  # processes that map about as much as the one that maps most
    mappers_rss: int


def weigh(scene: Scene, *, dead_of_oom: bool = False) -> MemoryReport:
    """The verdict on memory with its numbers; sums that cannot be made are None."""
    evidence = scene.evidence
    host, cgroup = evidence.host, evidence.cgroup
    members = [
        process for process in evidence.processes if process.role is not Role.OUTSIDER and not process.gone
    ]
    sums = _sum(scene, members)
    low = high = None
    mode = MemoryMode.BRACKET
    if sums is not None:
        # A process that maps a page twice counts it twice in its own RSS; `Mapped` of the machine does not.
        mapped_once = (
            sums.shared_max if host.memory_mapped is None else min(sums.shared_max, host.memory_mapped)
        )
        low = sums.anon_low + mapped_once
        resident = _resident(evidence.mapped_files)
        cap = sums.shared if resident is None else min(sums.shared, max(resident, sums.shared_max))
        if host.memory_mapped is not None and sums.shared_max <= host.memory_mapped:
            cap = min(cap, host.memory_mapped)
        high = sums.anon + cap
        low = min(low, high)
        pss = [process.memory.pss for process in members]
        if pss and all(value is not None for value in pss):
            exact = sum(value for value in pss if value is not None)
            low, high, mode = max(low, exact), max(high, exact), MemoryMode.ROLLUP
    factor = sums.rss / high if sums is not None and high else None
    kills = cgroup.oom_kills if cgroup is not None and cgroup.oom_kills is not None else host.oom_kills
    verdict = _verdict(scene, sums, high, factor, dead_of_oom=dead_of_oom)
    return MemoryReport(
        verdict=verdict,
        rss_sum=sums.rss if sums is not None else None,
        group_low=low,
        group_high=high,
        mode=mode,
        illusion_factor=round(factor, 2) if factor is not None else None,
        host_total=host.memory_total,
        host_available=host.memory_available,
        host_mapped=host.memory_mapped,
        cgroup_limit=cgroup.limit if cgroup is not None else None,
        cgroup_current=cgroup.usage if cgroup is not None else None,
        oom_kills=kills,
        summary=_summary(scene, verdict, sums, high),
    )


def _sum(scene: Scene, members: Iterable[ProcessFacts]) -> _Sums | None:
    rss = anon = shared = shared_max = copied = count = 0
    anon_low = 0
    maps: list[tuple[int, int]] = []
    for process in members:
        memory = process.memory
        if memory.rss is None:
            continue
        count += 1
        rss += memory.rss
        own_anon = memory.anon if memory.anon is not None else 0
        own_shared = (memory.file or 0) + (memory.shmem or 0) if memory.anon is not None else memory.rss
        anon += own_anon
        shared += own_shared
        shared_max = max(shared_max, own_shared)
        maps.append((own_shared, memory.rss))
        if forked_without_exec(scene, process.pid) is not None:
            # Pages not written since the fork are the parent's, counted again.
            copied = max(copied, own_anon)
        else:
            anon_low += own_anon
    if not count:
        return None
    alike = [own_rss for own_shared, own_rss in maps if own_shared * 2 >= shared_max]
    return _Sums(rss, anon, max(anon_low, copied), shared, shared_max, count, len(alike), sum(alike))


def _resident(files: tuple[MappedFile, ...]) -> int | None:
    distinct = {(file.device, file.inode): file.resident for file in files}
    if not distinct or any(value is None for value in distinct.values()):
        return None
    return sum(value for value in distinct.values() if value is not None)


def _verdict(
    scene: Scene, sums: _Sums | None, high: int | None, factor: float | None, *, dead_of_oom: bool
) -> MemoryVerdict:
    host, cgroup = scene.evidence.host, scene.evidence.cgroup
    if dead_of_oom:
        return MemoryVerdict.OOM_KILLED
    if host.shm_size and host.shm_free is not None and host.shm_free < host.shm_size * 0.01:
        return MemoryVerdict.SHM_FULL
    pressure = host.pressure
    stalled = pressure is not None and (pressure.memory_full or 0.0) > _FULL_STALL_PERCENT
    scarce = (
        host.memory_total is not None
        and host.memory_available is not None
        and host.memory_available < host.memory_total * _LOW_SHARE
    )
    full = (
        cgroup is not None
        and cgroup.limit is not None
        and cgroup.usage is not None
        and cgroup.cache is not None
        and cgroup.usage - cgroup.cache > cgroup.limit * (1 - _LOW_SHARE)
    )
    if (
        stalled
        and max(major_faults_per_s(scene, pid) or 0.0 for pid in scene.processes) > THRASH_FAULTS_PER_S
    ):
        return MemoryVerdict.THRASH
    if stalled or scarce or full:
        return MemoryVerdict.PRESSURE
    if sums is None or factor is None or high is None or sums.processes < 2:
        return MemoryVerdict.NORMAL
    beyond_machine = host.memory_total is not None and sums.rss > host.memory_total
    beyond_mapped = host.memory_mapped is not None and sums.shared > _ILLUSION * host.memory_mapped
    large = host.memory_total is not None and sums.rss > 0.5 * host.memory_total
    if factor >= _ILLUSION and (beyond_machine or beyond_mapped or large):
        return MemoryVerdict.RSS_ILLUSION
    return MemoryVerdict.NORMAL


def major_faults_per_s(scene: Scene, pid: int) -> float | None:
    """Major page faults a second within the window, None with one look."""
    window = scene.evidence.window_s
    if window <= 0:
        return None
    total = 0
    for key in scene.threads_of(pid):
        samples = scene.samples[key]
        total += max(0, samples[-1].major_faults - samples[0].major_faults)
    return round(total / window, 1)


def _summary(scene: Scene, verdict: MemoryVerdict, sums: _Sums | None, high: int | None) -> str:
    host, cgroup = scene.evidence.host, scene.evidence.cgroup
    available = f", {size(host.memory_available)} available" if host.memory_available is not None else ""
    if verdict is MemoryVerdict.OOM_KILLED:
        return f"a member was killed for want of memory{available}"
    if verdict is MemoryVerdict.SHM_FULL:
        return f"/dev/shm is full: {size(host.shm_free or 0)} of {size(host.shm_size or 0)} free"
    if sums is None or high is None:
        return f"memory of the group could not be read{available}"
    if verdict is MemoryVerdict.RSS_ILLUSION:
        each = sums.mappers_rss // sums.mappers
        return (
            f"RSS {sums.mappers} x {size(each)} = {size(sums.mappers_rss)} is one set of pages mapped"
            f" {sums.mappers} times: the group holds at most {size(high)}{available}"
        )
    limit = f" of a limit of {size(cgroup.limit)}" if cgroup is not None and cgroup.limit else ""
    if verdict in (MemoryVerdict.PRESSURE, MemoryVerdict.THRASH):
        what = "pages are read in again and again" if verdict is MemoryVerdict.THRASH else "memory is short"
        return f"{what}: the group holds at most {size(high)}{limit}{available}"
    return f"the group holds at most {size(high)}{limit}{available}"
