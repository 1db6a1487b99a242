"""What the members' figures add up to, and what the group really holds: a bracket, or what page tables say.

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
from pyhangtrace.model.kinds import MemoryMode, Role
from pyhangtrace.model.memory import ExactMemory
from pyhangtrace.model.processes import ProcessFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Over all members. `shared` is of files and shared memory, `hugetlb` of the pool, which RSS leaves out."""

    rss: int
    anon: int
    anon_low: int
    shared: int
    shared_max: int
    hugetlb: int
    hugetlb_max: int
    page_tables: int
    processes: int
    mappers: int  # processes that map about as much as the one that maps most
    mappers_rss: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Physical memory that the group has mapped, and its parts where page tables were read."""

    low: int
    high: int
    mode: MemoryMode
    complete: bool = True
    shared: int | None = None
    unique: int | None = None
    outsiders: int | None = None
    pss: int | None = None


def members_of(scene: Scene) -> list[ProcessFacts]:
    """Processes of the job that are still there."""
    return [
        process
        for process in scene.evidence.processes
        if process.role is not Role.OUTSIDER and not process.gone
    ]


def add_up(scene: Scene, members: Iterable[ProcessFacts]) -> Sums | None:
    """None if no member's memory is known."""
    rss = anon = shared = shared_max = copied = count = 0
    anon_low = hugetlb = hugetlb_max = page_tables = 0
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
        hugetlb += memory.hugetlb or 0
        hugetlb_max = max(hugetlb_max, memory.hugetlb or 0)
        page_tables += memory.page_tables or 0
        maps.append((own_shared, memory.rss))
        if forked_without_exec(scene, process.pid) is not None:
            # Pages not written since the fork are the parent's, counted again.
            copied = max(copied, own_anon)
        else:
            anon_low += own_anon
    if not count:
        return None
    alike = [own_rss for own_shared, own_rss in maps if own_shared * 2 >= shared_max]
    return Sums(
        rss=rss,
        anon=anon,
        anon_low=max(anon_low, copied),
        shared=shared,
        shared_max=shared_max,
        hugetlb=hugetlb,
        hugetlb_max=hugetlb_max,
        page_tables=page_tables,
        processes=count,
        mappers=len(alike),
        mappers_rss=sum(alike),
    )


def hold(scene: Scene, members: list[ProcessFacts], sums: Sums) -> Held:
    """The tightest that is known."""
    evidence = scene.evidence
    low, high = _bracket(scene, sums)
    exact = evidence.memory.exact if evidence.memory is not None else None
    if exact is not None:
        return _exact(exact, low, high)
    shares = [process.memory for process in members if process.memory.rss is not None]
    if shares and all(memory.pss is not None for memory in shares):
        pss = sum(memory.pss or 0 for memory in shares)
        unique = None
        if all(memory.uss is not None for memory in shares):
            unique = sum(memory.uss or 0 for memory in shares)
        return Held(
            low=max(low, pss),
            high=max(high, pss),
            mode=MemoryMode.ROLLUP,
            unique=unique,
            shared=_shared(pss, unique, len(shares)),
            pss=pss,
        )
    return Held(low=low, high=high, mode=MemoryMode.BRACKET)


def _exact(exact: ExactMemory, low: int, high: int) -> Held:
    shares = [process.pss for process in exact.processes if process.pss is not None]
    pss = sum(shares) if shares else None
    if exact.mode is MemoryMode.PFN_UNION and exact.frames is not None:
        # Shares count what outsiders map, too, only in part; huge pages of the pool are in none.
        mapped = exact.frames - (exact.hugetlb_frames or 0)
        return Held(
            low=exact.frames,
            high=exact.frames if exact.complete else max(high, exact.frames),
            mode=MemoryMode.PFN_UNION,
            complete=exact.complete,
            unique=exact.unique,
            shared=exact.frames - exact.unique if exact.unique is not None else None,
            outsiders=max(0, mapped - pss) if pss is not None and exact.complete else None,
            pss=pss,
        )
    if pss is None:
        return Held(low=low, high=high, mode=MemoryMode.BRACKET, complete=False)
    unique = sum(process.uss or 0 for process in exact.processes)
    # Shares leave out huge pages of the pool; whoever has most of them is all that is certain.
    pooled = max((process.hugetlb or 0 for process in exact.processes), default=0)
    certain = max(low, pss + pooled)
    return Held(
        low=certain,
        high=max(high, certain),
        mode=MemoryMode.ROLLUP,
        complete=exact.complete,
        unique=unique,
        shared=_shared(pss, unique, len(shares)),
        pss=pss,
    )


def _shared(pss: int, unique: int | None, members: int) -> int | None:
    """By shares alone, what one member has in common with others is theirs who are outside."""
    return max(0, pss - unique) if unique is not None and members > 1 else None


def _bracket(scene: Scene, sums: Sums) -> tuple[int, int]:
    host = scene.evidence.host
    # A process that maps a page twice counts it twice in its own RSS; `Mapped` of the machine does not.
    mapped_once = sums.shared_max if host.memory_mapped is None else min(sums.shared_max, host.memory_mapped)
    low = sums.anon_low + mapped_once + sums.hugetlb_max
    resident = _resident(scene.evidence.mapped_files)
    cap = sums.shared if resident is None else min(sums.shared, max(resident, sums.shared_max))
    if host.memory_mapped is not None and sums.shared_max <= host.memory_mapped:
        cap = min(cap, host.memory_mapped)
    pool = scene.evidence.memory.hugetlb_in_use if scene.evidence.memory is not None else None
    pooled = sums.hugetlb if pool is None else max(sums.hugetlb_max, min(sums.hugetlb, pool))
    high = sums.anon + cap + pooled
    return min(low, high), high


def _resident(files: tuple[MappedFile, ...]) -> int | None:
    distinct = {(file.device, file.inode): file.resident for file in files}
    if not distinct or any(value is None for value in distinct.values()):
        return None
    return sum(value for value in distinct.values() if value is not None)
