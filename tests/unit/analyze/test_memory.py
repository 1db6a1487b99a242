"""The bracket of what a group holds, and the verdicts on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.host import CgroupFacts, HostFacts, MappedFile, OomKill, PressureFacts
from pyhangtrace.model.kinds import Kind, MemoryMode, MemoryVerdict
from pyhangtrace.model.memory import ExactMemory, ExactProcess, MemoryFacts
from pyhangtrace.model.processes import ProcessMemory
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import MemoryReport
from tests.unit.analyze import builders as b

GIB = 1 << 30


def memory_of(
    *sizes: ProcessMemory,
    mapped: tuple[MappedFile, ...] = (),
    cgroup: CgroupFacts | None = None,
    memory: MemoryFacts | None = None,
    **host: Any,
) -> MemoryReport:
    facts = {"memory_total": 64 * GIB, "memory_available": 40 * GIB, "memory_mapped": 20 * GIB, **host}
    processes = [
        replace(b.rank(100 + i, i, len(sizes)), memory=size, stack_start=900 + i)
        for i, size in enumerate(sizes)
    ]
    read = tuple((process.pid, 0) for process in processes)
    looks = b.twice(*(b.asleep(process.pid, seconds=5) for process in processes))
    evidence = b.evidence(
        processes,
        looks,
        host=HostFacts(name="host", machine="x86_64", **facts),
        mapped_files=mapped,
        cgroup=cgroup,
        memory=memory or MemoryFacts(mapped_twice=read, unlisted=0 if mapped else None),
    )
    return analyze(evidence).memory


def maps_file(size: int, anon: int = GIB) -> ProcessMemory:
    return ProcessMemory(rss=size + anon, anon=anon, file=size, shmem=0)


WEIGHTS = MappedFile(
    path="/w", device=1, inode=2, size=16 * GIB, resident=16 * GIB, mappers=tuple(range(100, 108))
)


def test_eight_ranks_that_map_one_file() -> None:
    memory = memory_of(*[maps_file(16 * GIB)] * 8, mapped=(WEIGHTS,))
    assert memory.verdict is MemoryVerdict.RSS_ILLUSION
    assert memory.rss_sum == 8 * 17 * GIB
    assert (memory.group_low, memory.group_high) == (24 * GIB, 24 * GIB)
    assert memory.illusion_factor == pytest.approx(136 / 24, abs=0.01)
    assert "8 x 18 GB = 146 GB is one set of pages" in memory.summary


def test_alike_pages_are_not_counted_twice_in_the_lower_end() -> None:
    """By KSM, also of processes that an execve lies between."""
    sizes = [maps_file(0, anon=2 * GIB)] * 2
    read = ((100, 0), (101, 0))
    for facts, low in (
        (MemoryFacts(mapped_twice=read), 4 * GIB),
        (MemoryFacts(mapped_twice=read, merged_saves=GIB, merged=((100, GIB), (101, GIB))), 3 * GIB),
        (MemoryFacts(mapped_twice=read, merged_saves=9 * GIB, merged=((100, GIB),)), 3 * GIB),
        # It may not be seen whose they are.
        (MemoryFacts(mapped_twice=read, merged_saves=GIB), 3 * GIB),
    ):
        memory = memory_of(*sizes, memory=facts)
        assert memory.group_low == low
        assert memory.group_high == 4 * GIB
        assert memory.merged == (4 * GIB - low or None)


def test_small_helpers_are_not_counted_among_those_that_map() -> None:
    memory = memory_of(*[maps_file(16 * GIB)] * 8, maps_file(0, anon=GIB // 8), mapped=(WEIGHTS,))
    assert "8 x 18 GB = 146 GB is one set of pages mapped 8 times" in memory.summary


def test_a_file_mapped_twice_by_one_process_is_held_once() -> None:
    memory = memory_of(*[maps_file(16 * GIB)] * 8, memory_mapped=5 * GIB)
    assert memory.group_low == 13 * GIB
    assert memory.group_high is not None
    assert memory.group_low <= memory.group_high


def test_files_of_their_own_are_no_illusion() -> None:
    mapped = tuple(
        MappedFile(path=f"/w{i}", device=1, inode=i, size=4 * GIB, resident=4 * GIB, mappers=(100 + i,))
        for i in range(4)
    )
    memory = memory_of(*[maps_file(4 * GIB)] * 4, mapped=mapped)
    assert memory.verdict is MemoryVerdict.NORMAL
    assert memory.group_low == 8 * GIB
    assert memory.group_high == 20 * GIB


def test_mapped_of_the_host_bounds_the_group() -> None:
    memory = memory_of(*[maps_file(16 * GIB)] * 8, memory_mapped=17 * GIB)
    assert memory.group_high == 25 * GIB
    assert memory.verdict is MemoryVerdict.RSS_ILLUSION


def test_forked_processes_share_anonymous_pages() -> None:
    processes = [
        b.rank(
            pid,
            i,
            3,
            exe="/usr/bin/python3",
            ppid=50 if i == 0 else 100,
            memory=ProcessMemory(rss=GIB, anon=GIB),
        )
        for i, pid in enumerate((100, 101, 102))
    ]
    looks = b.twice(*(b.asleep(process.pid, seconds=5) for process in processes))
    memory = analyze(b.evidence(processes, looks)).memory
    assert memory.group_low == GIB
    assert memory.group_high == 3 * GIB


def test_files_that_each_maps_several_times() -> None:
    facts = MemoryFacts(
        mapped=tuple((1, 2, pid, 48 * GIB) for pid in (100, 101)),
        mapped_twice=((100, 32 * GIB), (101, 32 * GIB)),
        unlisted=GIB,
    )
    memory = memory_of(maps_file(48 * GIB), maps_file(48 * GIB), mapped=(WEIGHTS,), memory=facts)
    assert (memory.group_low, memory.group_high) == (18 * GIB, 19 * GIB)
    assert memory.verdict is MemoryVerdict.RSS_ILLUSION


def test_files_of_one_whose_mappings_are_not_known() -> None:
    memory = memory_of(
        maps_file(4 * GIB), maps_file(4 * GIB), memory=MemoryFacts(mapped_twice=((100, GIB),), unlisted=GIB)
    )
    assert (memory.group_low, memory.group_high) == (5 * GIB, 2 * GIB + GIB + 4 * GIB)
    nothing = memory_of(maps_file(4 * GIB), memory=MemoryFacts())
    assert (nothing.group_low, nothing.group_high) == (GIB, 5 * GIB)
    assert "1.1 GB to 5.4 GB (--exact tells)" in nothing.explanation
    assert "1.1 GB to 5.4 GB (--exact tells)" in nothing.summary


@pytest.mark.parametrize(
    ("starts", "exes", "low"),
    [
        # The parent is gone, or there is one between them that is no member.
        ((7, 7, 7), ("/a", "/a", "/a"), 1),
        ((None, None, None), ("/a", "/a", "/a"), 1),
        ((None, None, None), ("/a", "/b", ""), 1),
        ((7, 8, None), ("/a", "/a", "/a"), 1),
        ((7, 7, 8), ("/a", "/a", "/a"), 2),
        ((7, 8, 9), ("/a", "/a", "/a"), 3),
        ((None, None, 7), ("/a", "/b", "/b"), 2),
    ],
)
def test_pages_that_may_be_left_of_a_parent(
    starts: tuple[int | None, ...], exes: tuple[str, ...], low: int
) -> None:
    processes = [
        b.process(100 + i, ppid=1, stack_start=start, exe=exe, memory=ProcessMemory(rss=GIB, anon=GIB))
        for i, (start, exe) in enumerate(zip(starts, exes, strict=True))
    ]
    memory = analyze(
        b.evidence(processes, b.twice(*(b.asleep(process.pid, seconds=5) for process in processes)))
    ).memory
    assert (memory.group_low, memory.group_high) == (low * GIB, 3 * GIB)


def walked(frames: int, unique: int, *pids: int) -> MemoryFacts:
    processes = tuple(ExactProcess(pid=pid, pss=frames // len(pids)) for pid in pids)
    return MemoryFacts(
        exact=ExactMemory(mode=MemoryMode.PFN_UNION, processes=processes, frames=frames, unique=unique)
    )


def test_the_sentence_says_one_set_of_pages_only_if_it_is_most_of_it() -> None:
    own = [ProcessMemory(rss=4 * GIB, anon=4 * GIB, file=0, shmem=0)] * 4
    pids = range(100, 104)
    apart = memory_of(*own, memory=walked(7 * GIB, 4 * GIB, *pids))
    assert apart.explanation == (
        "4 x 4.3 GB of RSS counts pages again for each that maps them: 17 GB in sum, 7.5 GB in memory"
    )
    helper = ProcessMemory(rss=GIB, anon=GIB, file=0, shmem=0)
    shared = memory_of(*[maps_file(16 * GIB)] * 4, helper, memory=walked(18 * GIB, 2 * GIB, *pids, 104))
    assert shared.explanation == (
        "4 x 18 GB of RSS is one set of pages: 74 GB in sum with 1 smaller process, 19 GB in memory"
    )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, MemoryVerdict.NORMAL),
        ({"memory_available": GIB}, MemoryVerdict.PRESSURE),
        ({"pressure": PressureFacts(memory_full=30.0)}, MemoryVerdict.PRESSURE),
        ({"shm_size": GIB, "shm_free": 0}, MemoryVerdict.SHM_FULL),
        (
            {"cgroup": CgroupFacts(version=2, path="/x", limit=GIB, usage=GIB, cache=0)},
            MemoryVerdict.PRESSURE,
        ),
        # What the limit is full of can be dropped.
        (
            {"cgroup": CgroupFacts(version=2, path="/x", limit=GIB, usage=GIB, cache=GIB)},
            MemoryVerdict.NORMAL,
        ),
    ],
)
def test_other_verdicts(changes: dict[str, Any], verdict: MemoryVerdict) -> None:
    assert memory_of(maps_file(GIB), maps_file(GIB), **changes).verdict is verdict


def test_nothing_known_is_none() -> None:
    memory = memory_of(ProcessMemory(), ProcessMemory())
    assert (memory.rss_sum, memory.group_low, memory.group_high, memory.illusion_factor) == (None,) * 4
    assert memory.verdict is MemoryVerdict.NORMAL


def test_killed_for_want_of_memory() -> None:
    processes = [*b.ranks(2)[:1], b.process(101, state="Z", title="", exe="", exit_code=9)]
    host = HostFacts(
        name="host", machine="x86_64", oom_log=(OomKill(pid=101, comm="python3", text="oom-kill"),)
    )
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100)), host=host))
    assert report.verdict.cause is Kind.PEER_OOM_KILLED
    assert report.memory.verdict is MemoryVerdict.OOM_KILLED
    assert not any(one.suspect == "memory.oom" for one in report.verdict.cleared)


def test_memory_is_cleared_with_numbers_in_a_hang() -> None:
    processes = [replace(process, memory=maps_file(GIB)) for process in b.ranks(2)]
    report = analyze(b.evidence(processes, b.twice(b.in_collective(100), b.asleep(101, seconds=3600))))
    (cleared,) = [one for one in report.verdict.cleared if one.suspect == "memory.oom"]
    assert "available" in cleared.because


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 B"),
        (8192, "8 kB"),
        (27_300_000, "27 MB"),
        (1_500_000_000, "1.5 GB"),
        (412_000_000_000, "412 GB"),
        (3.4e12, "3.4 TB"),
    ],
)
def test_sizes(value: int, words: str) -> None:
    assert size(int(value)) == words
