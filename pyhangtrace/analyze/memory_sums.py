"""What the members' figures add up to, and what the group really holds: a bracket, or what page tables say.

RSS of processes that map the same pages adds up to many times what is there. What the group really holds lies
between what certainly are different pages, and its anonymous pages plus what the page cache holds of the distinct
files mapped. `Mapped` of /proc/meminfo counts each page once, so a sum above it is
arithmetic, not an opinion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.kinds import MemoryMode, Role
from pyhangtrace.model.memory import ExactMemory, MemoryFacts
from pyhangtrace.model.processes import ProcessFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Over all members. `shared` is of files and shared memory, `hugetlb` of the pool, which RSS leaves out; `anon_low`
    and `shared_low` are what cannot be fewer pages, `merged` what may be there once and not often by KSM, `unread` the
    part of `shared` of those whose mappings are unknown.
    """

    rss: int
    anon: int
    anon_low: int
    shared: int
    shared_max: int
    shared_low: int
    unread: int
    hugetlb: int
    hugetlb_max: int
    page_tables: int
    merged: int
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
    walked: bool = False  # the page tables of all, as asked for


def members_of(scene: Scene) -> list[ProcessFacts]:
    """Processes of the job that are still there."""
    return [
        process
        for process in scene.evidence.processes
        if process.role is not Role.OUTSIDER and not process.gone
    ]


def add_up(scene: Scene, members: Iterable[ProcessFacts]) -> Sums | None:
    """None if no member's memory is known."""
    rss = anon = shared = shared_max = shared_low = unread = count = 0
    hugetlb = hugetlb_max = page_tables = 0
    maps: list[tuple[int, int]] = []
    owners: list[tuple[ProcessFacts, int]] = []
    facts = scene.evidence.memory
    twice = dict(facts.mapped_twice) if facts is not None else {}
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
        owners.append((process, own_anon))
        if process.pid in twice:
            # Each page that it maps again counts again in its own RSS.
            shared_low = max(shared_low, own_shared - twice[process.pid])
        else:
            unread += own_shared
    if not count:
        return None
    merged = _merged(facts)
    alike = [own_rss for own_shared, own_rss in maps if own_shared * 2 >= shared_max]
    return Sums(
        rss=rss,
        anon=anon,
        anon_low=max(0, _different(owners) - merged),
        shared=shared,
        shared_max=shared_max,
        shared_low=shared_low,
        unread=unread,
        hugetlb=hugetlb,
        hugetlb_max=hugetlb_max,
        page_tables=page_tables,
        merged=merged,
        processes=count,
        mappers=len(alike),
        mappers_rss=sum(alike),
    )


def _merged(facts: MemoryFacts | None) -> int:
    """Anonymous memory of members that may be counted often and be there once, since its pages are alike."""
    if facts is None or facts.merged_saves is None:
        return 0
    own = sum(amount for _, amount in facts.merged)
    # Of whom it may not be seen it may be all that is saved anywhere.
    return min(facts.merged_saves, own) if facts.merged else facts.merged_saves


def _different(owners: list[tuple[ProcessFacts, int]]) -> int:
    """Anonymous memory that is not the same in any case: of processes that one fork after the other may have copied
    from one another, that of one. Pages not written since are in the RSS of all, also when the parent is long gone.
    """
    families: list[list[tuple[ProcessFacts, int]]] = []
    for one in owners:
        related = [family for family in families if any(_may_share(one[0], other) for other, _ in family)]
        families = [family for family in families if family not in related]
        families.append([one, *(member for family in related for member in family)])
    return sum(max(anon for _, anon in family) for family in families)


def _may_share(one: ProcessFacts, other: ProcessFacts) -> bool:
    """False where an execve lies between them: it gives a process a new memory of its own."""
    if one.stack_start is not None and other.stack_start is not None:
        return one.stack_start == other.stack_start
    return not one.exe or not other.exe or one.exe == other.exe


def hold(scene: Scene, members: list[ProcessFacts], sums: Sums) -> Held:
    """The tightest that is known."""
    evidence = scene.evidence
    low, high = _bracket(scene, sums)
    exact = evidence.memory.exact if evidence.memory is not None else None
    if exact is not None:
        return replace(_exact(exact, low, high), walked=True)
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
    host, facts = scene.evidence.host, scene.evidence.memory
    mapped_once = sums.shared_low if host.memory_mapped is None else min(sums.shared_low, host.memory_mapped)
    low = sums.anon_low + mapped_once + sums.hugetlb_max
    cap = sums.shared
    resident = _resident(scene)
    if resident is not None and facts is not None and facts.unlisted is not None:
        cap = min(cap, max(resident + facts.unlisted + sums.unread, sums.shared_low))
    if host.memory_mapped is not None and sums.shared_max <= host.memory_mapped:
        cap = min(cap, host.memory_mapped)
    pool = facts.hugetlb_in_use if facts is not None else None
    pooled = sums.hugetlb if pool is None else max(sums.hugetlb_max, min(sums.hugetlb, pool))
    high = sums.anon + cap + pooled
    return min(low, high), high


def _resident(scene: Scene) -> int | None:
    """What members can have in memory of the files listed; None where it is not known of one of them."""
    facts = scene.evidence.memory
    mapped: dict[tuple[int, int], int] = {}
    for device, inode, _, amount in facts.mapped if facts is not None else ():
        mapped[(device, inode)] = mapped.get((device, inode), 0) + amount
    total = 0
    for file in scene.evidence.mapped_files:
        if file.kind == "hugetlb":
            continue  # in no RSS
        known = [
            value for value in (file.resident, mapped.get((file.device, file.inode))) if value is not None
        ]
        if not known:
            return None
        total += min(known)
    return total
