"""Verdicts that need counters at two moments, who was killed, the books of a control group, and files being loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyhangtrace.analyze import analyze, progress_wanted
from pyhangtrace.analyze.memory import weigh
from pyhangtrace.analyze.scene import build_scene
from pyhangtrace.model.host import CgroupFacts, HostFacts, MappedFile, OomKill, PressureFacts
from pyhangtrace.model.kinds import MemoryMode, MemoryVerdict
from pyhangtrace.model.memory import (
    CgroupMemory,
    ExactMemory,
    ExactProcess,
    FileShare,
    LoadedFile,
    MemoryCounters,
    MemoryFacts,
    PagingCounters,
    ProcessCounters,
    ShmSpace,
    StallCounters,
)
from pyhangtrace.model.processes import ProcessMemory
from pyhangtrace.model.report import MemoryReport
from tests.unit.analyze import builders as b

MIB = 1 << 20
GIB = 1 << 30
PLAIN = ProcessMemory(rss=3 * GIB, anon=GIB, file=2 * GIB, shmem=0)
JOB = CgroupFacts(version=1, path="/job", limit=8 * GIB, usage=6 * GIB, oom_kills=0, cache=4 * GIB)


def counters(
    *,
    faults: int = 0,
    refaults: int = 0,
    reads: int = 0,
    chars: int = 0,
    grown: int = 0,
    host_faults: int | None = None,
    swapped_in: int = 0,
    stall_s: float = 0.0,
    seconds: float = 2.0,
    cgroup: bool = False,
) -> tuple[MemoryCounters, MemoryCounters]:
    """Two seconds or so of one process; what is given happened within them."""
    other = faults if host_faults is None else host_faults

    def at(share: int) -> MemoryCounters:
        paging = PagingCounters(
            major_faults=50 + other * share,
            refaulted=7 + refaults * share,
            swapped_in=3 + swapped_in * share,
            swapped_out=0,
        )
        return MemoryCounters(
            at_s=seconds * share,
            host=paging if not cgroup else PagingCounters(major_faults=0, refaulted=0, swapped_in=0),
            cgroup=replace(paging, swapped_in=None) if cgroup else None,
            stalls=StallCounters(memory_full_s=10 + stall_s * share, memory_some_s=10 + stall_s * share),
            processes=(
                ProcessCounters(
                    pid=100,
                    major_faults=1000 + faults * share,
                    read_bytes=5000 + reads * share,
                    read_chars=70 + chars * share,
                    rss=GIB + grown * share,
                ),
            ),
        )

    return at(0), at(1)


def weighed(
    facts: MemoryFacts | None,
    *memories: ProcessMemory,
    cgroup: CgroupFacts | None = None,
    mapped: tuple[MappedFile, ...] = (),
    host: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> MemoryReport:
    sizes = memories or (PLAIN,)
    processes = [
        replace(b.rank(100 + i, i, len(sizes)), memory=memory, **{"stack_start": 900 + i, **(changes or {})})
        for i, memory in enumerate(sizes)
    ]
    known = {
        "memory_total": 64 * GIB,
        "memory_available": 40 * GIB,
        "memory_mapped": 20 * GIB,
        "oom_kills": 0,
    }
    evidence = b.evidence(
        processes,
        b.twice(*(b.asleep(process.pid, seconds=5) for process in processes)),
        host=HostFacts(name="host", machine="x86_64", **{**known, **(host or {})}),
        cgroup=cgroup,
        mapped_files=mapped,
        memory=facts,
    )
    return weigh(build_scene(evidence))


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        ({"faults": 2000, "refaults": 4000, "reads": 400 * MIB}, MemoryVerdict.THRASH),
        ({"faults": 2000, "refaults": 4000, "cgroup": True}, MemoryVerdict.THRASH),
        # A first read takes major faults, too, and nothing comes back.
        ({"faults": 2000, "refaults": 100, "reads": 400 * MIB}, MemoryVerdict.NORMAL),
        # Somebody else's pages come back.
        ({"faults": 2000, "refaults": 9000, "host_faults": 50_000}, MemoryVerdict.NORMAL),
        ({"faults": 100, "refaults": 4000}, MemoryVerdict.NORMAL),
        # With readahead: few major faults, and what is read had been there before, mostly.
        ({"faults": 30, "refaults": 200_000, "reads": 900 * MIB, "cgroup": True}, MemoryVerdict.THRASH),
        ({"faults": 30, "refaults": 200_000, "reads": 900 * MIB, "grown": 400 * MIB}, MemoryVerdict.THRASH),
        # A first reading, one of what was dropped long ago, reads of others, and reads by system calls.
        ({"faults": 30, "refaults": 100, "reads": 900 * MIB}, MemoryVerdict.NORMAL),
        ({"faults": 30, "refaults": 20_000, "reads": 900 * MIB}, MemoryVerdict.NORMAL),
        ({"faults": 30, "refaults": 200_000, "reads": 900 * MIB, "grown": 800 * MIB}, MemoryVerdict.NORMAL),
        ({"faults": 30, "refaults": 200_000, "reads": MIB, "host_faults": 90}, MemoryVerdict.NORMAL),
        ({"faults": 30, "refaults": 200_000, "reads": 900 * MIB, "chars": 900 * MIB}, MemoryVerdict.NORMAL),
        ({"faults": 0, "refaults": 200_000, "reads": 900 * MIB}, MemoryVerdict.NORMAL),
        ({"stall_s": 5, "seconds": 40.0}, MemoryVerdict.PRESSURE),
        ({"stall_s": 2, "seconds": 40.0}, MemoryVerdict.NORMAL),
        # Totals lag behind by two seconds: what they gain may be from before.
        ({"stall_s": 1.9}, MemoryVerdict.NORMAL),
    ],
)
def test_what_happened_within_the_window(what: dict[str, Any], verdict: MemoryVerdict) -> None:
    cgroup = JOB if what.get("cgroup") else None
    memory = weighed(MemoryFacts(counters=counters(**what)), cgroup=cgroup)
    assert memory.verdict is verdict
    assert bool(memory.evidence) == (verdict is not MemoryVerdict.NORMAL)
    suspect = {MemoryVerdict.THRASH: "memory.thrash", MemoryVerdict.PRESSURE: "memory.pressure"}.get(verdict)
    assert suspect not in [one.suspect for one in memory.cleared]


@pytest.mark.parametrize(
    ("swap", "what", "verdict"),
    [
        (GIB, {"swapped_in": 1000, "faults": 500}, MemoryVerdict.SWAP),
        (GIB, {"swapped_in": 1000}, MemoryVerdict.NORMAL),  # into others
        (GIB, {"faults": 500}, MemoryVerdict.NORMAL),
        (0, {"swapped_in": 1000, "faults": 500}, MemoryVerdict.NORMAL),
    ],
)
def test_swap(swap: int, what: dict[str, Any], verdict: MemoryVerdict) -> None:
    memory = weighed(MemoryFacts(counters=counters(**what)), replace(PLAIN, swap=swap))
    assert memory.verdict is verdict
    if verdict is MemoryVerdict.NORMAL:
        (cleared,) = [one.because for one in memory.cleared if one.suspect == "memory.swap"]
        assert ("1.1 GB" if swap else "0 B") in cleared


def test_a_full_shm_of_a_container() -> None:
    spaces = (
        ShmSpace(device=9, size=64 * MIB, free=4096, pids=(100,)),
        ShmSpace(device=8, size=GIB, free=GIB, pids=(101,)),
    )
    memory = weighed(MemoryFacts(shm=spaces), PLAIN, PLAIN, host={"shm_size": 32 * GIB, "shm_free": 32 * GIB})
    assert memory.verdict is MemoryVerdict.SHM_FULL
    assert "/dev/shm is full: 4 kB of 67 MB free" in memory.summary


def test_another_memory_file_system_that_is_full() -> None:
    spaces = (
        ShmSpace(device=9, size=4 * MIB, free=0, pids=(100,), point="/run/cache"),
        ShmSpace(device=8, size=GIB, free=GIB, pids=(100,)),
    )
    memory = weighed(MemoryFacts(shm=spaces), PLAIN)
    assert memory.verdict is MemoryVerdict.SHM_FULL
    assert memory.summary == "/run/cache is full: 0 B of 4.2 MB free"


@pytest.mark.parametrize(("free", "full"), [(5 * MIB, True), (60 * MIB, False)])
def test_a_log_that_tells_of_no_room(free: int, full: bool) -> None:
    """More may have been asked for than was left; with plenty left by now it is over."""
    space = ShmSpace(device=9, size=64 * MIB, free=free, pids=(100, 101), refused=(101,))
    memory = weighed(MemoryFacts(shm=(space,)), PLAIN)
    said = memory.summary if full else next(one.because for one in memory.cleared if "full" in one.suspect)
    assert memory.verdict is (MemoryVerdict.SHM_FULL if full else MemoryVerdict.NORMAL)
    assert "the log of pid 101" in said


def test_cleared_has_the_numbers() -> None:
    facts = MemoryFacts(
        counters=counters(faults=20, refaults=4),
        shm=(ShmSpace(device=9, size=GIB, free=GIB // 2, pids=(100,)),),
    )
    host = {"pressure": PressureFacts(memory_full=0.5)}
    cleared = {one.suspect: one.because for one in weighed(facts, cgroup=JOB, host=host).cleared}
    assert cleared == {
        "memory.oom": "no OOM kill counted by control group /job",
        "memory.pressure": "43 GB of 69 GB available, all waited for memory 0.5 % of the last 10 s",
        "memory.thrash": "10 major faults a second, 2 pages a second read in again",
        "memory.swap": "0 B swapped out",
        "memory.shm_full": "537 MB of 1.1 GB free in /dev/shm",
    }


KILL = OomKill(
    pid=100, comm="python3", text="Memory cgroup out of memory: Killed process 100", age_s=42.0,
    constraint="CONSTRAINT_MEMCG", limit_of="/job", cgroup="/job/rank0",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kill", "changes", "said"),
    [
        (KILL, {}, "rank 0 (pid 100, python3) was killed 42 s ago at the limit of /job"),
        (replace(KILL, pid=9), {}, "pid 9 (python3) was killed 42 s ago at the limit of /job"),
        (
            replace(KILL, constraint="CONSTRAINT_NONE", limit_of=None),
            {},
            "rank 0 (pid 100, python3) was killed 42 s ago when the machine had no memory left",
        ),
        # Another process of that number, and one of another job.
        (replace(KILL, limit_of="/other"), {"started_s_ago": 10.0}, None),
        (replace(KILL, pid=9, limit_of="/other"), {}, None),
    ],
)
def test_who_was_killed_and_at_whose_limit(kill: OomKill, changes: dict[str, Any], said: str | None) -> None:
    memory = weighed(None, cgroup=JOB, host={"oom_log": (kill,)}, changes=changes)
    assert (memory.verdict is MemoryVerdict.OOM_KILLED) == (said is not None)
    if said is not None:
        assert memory.summary.startswith(said)
        assert [victim.pid for victim in memory.oom] == [kill.pid]


def test_a_zombie_that_sigkill_ended_where_kills_are_counted() -> None:
    changes = {"state": "Z", "exit_code": 9}
    killed = weighed(None, cgroup=replace(JOB, oom_kills=1), changes=changes)
    assert killed.verdict is MemoryVerdict.OOM_KILLED
    assert killed.oom[0].limit_of == "/job"
    assert "counts 1 OOM kill" in killed.oom[0].proof
    assert weighed(None, cgroup=JOB, changes=changes).verdict is MemoryVerdict.NORMAL


def test_shared_memory_is_no_cache_that_can_be_dropped() -> None:
    full = replace(JOB, usage=8 * GIB, cache=6 * GIB)
    dropped = MemoryFacts(cgroup=CgroupMemory(usage=8 * GIB, anon=2 * GIB, file=6 * GIB, shmem=0))
    kept = MemoryFacts(cgroup=CgroupMemory(usage=8 * GIB, anon=2 * GIB, file=6 * GIB, shmem=6 * GIB))
    assert weighed(dropped, cgroup=full).verdict is MemoryVerdict.NORMAL
    assert weighed(kept, cgroup=full).verdict is MemoryVerdict.PRESSURE


def test_the_books_add_up_and_say_what_is_charged_elsewhere() -> None:
    charged = CgroupMemory(
        usage=2 * GIB, anon=GIB, file=GIB - 20 * MIB, shmem=100 * MIB, mapped_file=200 * MIB,
        kernel=19 * MIB, processes=(100, 5),
    )  # fmt: skip
    books = weighed(MemoryFacts(cgroup=charged, mapped_twice=((100, 0),)), cgroup=JOB).books
    assert books is not None
    assert {entry.name: entry.size for entry in books.entries} == {
        "anonymous": GIB,
        "page cache": GIB - 120 * MIB,
        "shared memory": 100 * MIB,
        "kernel": 19 * MIB,
    }
    assert books.residue == MIB
    assert books.others == 1
    assert (
        "1.9 GB of the files that the job maps are charged to whoever touched them first" in books.remarks[0]
    )
    assert books.remarks[1:] == ("1 process in it does not belong to the job",)


def test_a_residue_that_is_news_and_memory_that_counts_elsewhere() -> None:
    charged = CgroupMemory(
        usage=2 * GIB, anon=GIB, file=GIB // 2, kernel=0, swap_cached=MIB, processes=(100,)
    )
    facts = MemoryFacts(cgroup=charged, driver=((100, GIB),), hugetlb_in_use=GIB)
    memory = ProcessMemory(rss=GIB, anon=GIB, file=0, shmem=0, hugetlb=GIB)
    books = weighed(facts, memory, cgroup=JOB).books
    assert books is not None
    assert books.residue == GIB // 2
    assert [remark.split(" ", 2)[2] for remark in books.remarks] == [
        "more than the parts, of it swap cache 1.0 MB",
        "of huge pages from the pool are not counted here",
        "of device memory are mapped; what of it is pinned here counts for nobody",
    ]


def exact(*processes: ExactProcess, **changes: Any) -> MemoryFacts:
    values: dict[str, Any] = {"mode": MemoryMode.PFN_UNION, "frames": 5 * GIB, "hugetlb_frames": GIB}
    values.update({"unique": 3 * GIB, "processes": processes}, **changes)
    return MemoryFacts(exact=ExactMemory(**values))


def test_frames_are_exact_and_tell_what_outsiders_count() -> None:
    shares = [ExactProcess(pid=pid, pss=2 * GIB - 100 * MIB, uss=GIB) for pid in (100, 101)]
    memory = weighed(exact(*shares), PLAIN, PLAIN)
    assert (memory.mode, memory.group_low, memory.group_high) == (MemoryMode.PFN_UNION, 5 * GIB, 5 * GIB)
    assert (memory.shared, memory.unique, memory.outsiders) == (2 * GIB, 3 * GIB, 200 * MIB)
    assert "the group holds 5.4 GB" in memory.summary


def test_a_walk_that_is_not_whole_is_a_range() -> None:
    shares = [ExactProcess(pid=100, pss=GIB, uss=GIB), ExactProcess(pid=101, problem="no_time")]
    memory = weighed(exact(*shares, frames=3 * GIB, complete=False), PLAIN, PLAIN)
    assert not memory.complete
    assert (memory.group_low, memory.group_high) == (3 * GIB, 6 * GIB)
    assert memory.outsiders is None


def test_shares_without_frames() -> None:
    shares = [ExactProcess(pid=pid, pss=2 * GIB, uss=GIB, hugetlb=MIB) for pid in (100, 101)]
    facts = exact(*shares, mode=MemoryMode.ROLLUP, frames=None, unique=None)
    memory = weighed(facts, PLAIN, PLAIN)
    assert memory.mode is MemoryMode.ROLLUP
    assert memory.group_low == 4 * GIB + MIB
    assert (memory.shared, memory.unique) == (2 * GIB, 2 * GIB)


def test_hugetlb_is_in_no_rss_and_is_held_once() -> None:
    memory = ProcessMemory(rss=GIB, anon=GIB, file=0, shmem=0, hugetlb=4 * GIB)
    held = weighed(MemoryFacts(hugetlb_in_use=5 * GIB), memory, memory)
    assert (held.group_low, held.group_high) == (6 * GIB, 7 * GIB)


def test_files_by_their_weight_in_the_sum() -> None:
    files = tuple(
        MappedFile(path=f"/m/{inode}", device=1, inode=inode, size=GIB, resident=GIB, mappers=(100, 101))
        for inode in (1, 2)
    )
    share = FileShare(device=1, inode=2, path="/m/2", rss=GIB, pss=GIB // 2)
    process = ExactProcess(pid=100, pss=GIB, uss=GIB, files=(share,))
    facts = replace(exact(process), mapped=((1, 1, 100, MIB), (1, 2, 100, GIB), (1, 2, 101, GIB)))
    (first, second) = weighed(facts, PLAIN, PLAIN, mapped=files).files
    assert (first.path, first.in_rss, first.mapped_by) == ("/m/2", GIB, {"100": GIB, "101": GIB})
    assert (second.path, second.in_rss, second.mapped_by) == ("/m/1", None, {"100": MIB})


def shard(number: int, **changes: Any) -> LoadedFile:
    values: dict[str, Any] = {
        "path": f"/m/model-{number:05}-of-00003.safetensors",
        "device": 1,
        "inode": number,
    }
    return LoadedFile(**{**values, "size": GIB, **changes})


def test_a_load_from_disk_has_a_rate_and_a_time_to_go() -> None:
    shards = (
        shard(1, cached_before=GIB, cached_after=GIB),
        shard(2, readers=(100,), positions=((100, 0, GIB // 2),), cached_before=0, cached_after=GIB // 2),
        shard(3, cached_before=0, cached_after=0),
    )
    (one,) = weighed(MemoryFacts(counters=counters(), loaded=shards)).loading
    assert (one.files, one.count, one.readers) == ("/m/model-*-of-*.safetensors", 3, (100,))
    assert one.current == ("model-00002-of-00003.safetensors",)
    assert one.rate_bytes_per_s == GIB / 4
    assert (one.done, one.total, one.eta_s) == (GIB * 3 // 2, 3 * GIB, 6.0)
    assert "268 MB/s, 1.6 GB of 3.2 GB are in memory, 6 s to go" in one.summary


def test_a_load_by_page_faults_is_seen_in_the_page_cache() -> None:
    mapped = shard(1, mappers=(100,), cached_before=0, cached_after=GIB // 4)
    (one,) = weighed(MemoryFacts(counters=counters(faults=500), loaded=(mapped,))).loading
    assert one.rate_bytes_per_s == GIB / 8
    assert one.eta_s == 6.0


def test_a_load_from_memory_goes_by_positions() -> None:
    warm = shard(1, readers=(100, 101), cached_before=GIB, cached_after=GIB)
    warm = replace(warm, positions=((100, 0, GIB // 2), (101, 0, GIB // 4)))
    (one,) = weighed(MemoryFacts(counters=counters(), loaded=(warm,))).loading
    assert one.rate_bytes_per_s == GIB / 4
    assert (one.done, one.eta_s) == (GIB // 2, 2.0)
    assert "at 268 MB/s, at 537 MB of 1.1 GB, 2 s to go" in one.summary


def test_no_time_is_given_for_what_does_not_stay_in_memory() -> None:
    mapped = shard(1, mappers=(100,), cached_before=GIB // 4 - MIB, cached_after=GIB // 4)
    for reads, told in ((MIB, True), (GIB, False)):
        facts = MemoryFacts(counters=counters(faults=50, reads=reads), loaded=(mapped,))
        (one,) = weighed(facts).loading
        assert (one.eta_s is not None) == told
        assert ("does not stay" in one.summary) != told
        assert one.rate_bytes_per_s == MIB / 2
    facts = MemoryFacts(counters=counters(faults=5000, refaults=5000), loaded=(mapped,))
    memory = weighed(facts, cgroup=JOB)
    assert memory.verdict is MemoryVerdict.THRASH
    assert memory.loading[0].eta_s is None


@pytest.mark.parametrize(
    ("file", "what", "said"),
    [
        (shard(1, readers=(100,), positions=((100, GIB // 2, GIB // 2),)), {}, "not a byte of it in 2.0 s"),
        # Reads go on elsewhere in it, it has been read to its end, or nobody has begun.
        (shard(1, readers=(100,), positions=((100, GIB // 2, GIB // 2),)), {"reads": MIB}, None),
        (shard(1, readers=(100,), positions=((100, GIB, GIB),)), {}, None),
        (shard(1, readers=(100,), positions=((100, 0, 0),), cached_before=5, cached_after=5), {}, None),
        (shard(1, mappers=(100,), cached_before=GIB, cached_after=GIB), {}, None),
    ],
)
def test_half_read_and_still(file: LoadedFile, what: dict[str, Any], said: str | None) -> None:
    found = weighed(MemoryFacts(counters=counters(**what), loaded=(file,))).loading
    assert [said in one.summary for one in found] == ([True] if said else [])


def test_the_rate_is_that_of_the_moment_between_the_looks_at_the_files() -> None:
    mapped = shard(1, mappers=(100,), cached_before=0, cached_after=GIB // 4)
    facts = MemoryFacts(counters=counters(), loaded=(mapped,), loaded_s=0.25)
    (one,) = weighed(facts).loading
    assert one.rate_bytes_per_s == GIB


@pytest.mark.parametrize(("function", "told"), [("load_weights", True), ("execute_model", False)])
def test_the_phase_has_the_progress_where_files_are_what_it_reads(function: str, told: bool) -> None:
    processes = [replace(process, memory=PLAIN) for process in b.ranks(2)]
    frames = (b.py("read"), b.py(function, "/venv/vllm/v1/worker/gpu_worker.py"))
    looks = b.twice(*(b.sleeper(process.pid, frames=frames) for process in processes))
    shards = (
        shard(1, readers=(100,), positions=((100, 0, GIB // 2),), cached_before=0, cached_after=GIB // 2),
    )
    evidence = b.evidence(processes, looks, memory=MemoryFacts(counters=counters(), loaded=shards))
    assert progress_wanted(evidence) == told
    phase = analyze(evidence).workload.phase
    assert phase is not None
    assert (phase.rate_bytes_per_s, phase.eta_s) == ((GIB / 4, 2.0) if told else (None, None))
    assert ("model-00001-of-00003.safetensors at 268 MB/s" in (phase.detail or "")) == told
