"""Books and counters of control groups from recorded trees of both versions, and which kernels print what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyhangtrace.analyze.memory_books import books
from pyhangtrace.collect import cgroup_memory, memory_counters
from pyhangtrace.model.host import CgroupFacts
from tests.unit.collect.helpers import write

MIB = 1 << 20

# memory.stat of Linux 6.1 (`kernel` since 5.18), 5.10 and 5.4, cut to what is of interest and to what looks alike.
V2_NEW = """\
anon 10485760
file 83886080
kernel 3145728
kernel_stack 524288
pagetables 1048576
sec_pagetables 0
percpu 65536
sock 1048576
vmalloc 0
shmem 20971520
zswap 0
file_mapped 41943040
file_dirty 4096
file_writeback 0
swapcached 0
anon_thp 0
slab_reclaimable 1000000
slab_unreclaimable 200000
slab 1200000
workingset_refault_anon 5
workingset_refault_file 77
pgfault 100
pgmajfault 42
"""
V2_5_10 = V2_NEW.replace("kernel 3145728\n", "").replace("sec_pagetables 0\n", "")
V2_5_4 = (
    "\n".join(
        line
        for line in V2_5_10.splitlines()
        if not line.startswith(("pagetables", "workingset", "swapcached"))
    )
    + "\nworkingset_refault 78\n"
)
V1 = """\
cache 1
rss 1
total_cache 83886080
total_rss 10485760
total_shmem 20971520
total_mapped_file 41943040
total_dirty 4096
total_workingset_refault_anon 5
total_workingset_refault_file 77
total_swap 0
total_pgfault 100
total_pgmajfault 42
"""


def v2(root: Path, stat: str) -> cgroup_memory.CgroupPlace:
    write(
        root,
        {
            "job/memory.stat": stat,
            "job/memory.current": f"{98 * MIB}\n",
            "job/memory.peak": f"{99 * MIB}\n",
            "job/memory.swap.current": "0\n",
            "job/memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\n",
            "job/memory.pressure": "some avg10=0.00 total=1500000\nfull avg10=0.00 total=500000\n",
            "job/hugetlb.2MB.current": f"{4 * MIB}\n",
            "job/hugetlb.2MB.rsvd.current": f"{400 * MIB}\n",
            "job/hugetlb.1GB.current": "0\n",
            "job/cgroup.procs": "7\n",
            "job/rank0/cgroup.procs": "100\n101\n",
        },
    )
    place = cgroup_memory.place(2, "/job", str(root))
    assert place is not None
    return place


@pytest.mark.parametrize(
    ("stat", "kernel", "tables"),
    [
        (V2_NEW, 3 * MIB + MIB, MIB),
        (V2_5_10, 524288 + 1048576 + 65536 + 1200000 + MIB, MIB),
        (V2_5_4, 524288 + 65536 + 1200000 + MIB, None),
    ],
    ids=["6.1", "5.10", "5.4"],
)
def test_version_2(tmp_path: Path, stat: str, kernel: int, tables: int | None) -> None:
    book = v2(tmp_path, stat).book()
    assert (book.usage, book.peak, book.anon, book.file) == (98 * MIB, 99 * MIB, 10 * MIB, 80 * MIB)
    assert (book.shmem, book.mapped_file, book.dirty, book.swap) == (20 * MIB, 40 * MIB, 4096, 0)
    assert (book.kernel, book.page_tables) == (kernel, tables)
    assert (book.hugetlb, book.hugetlb_counted) == (4 * MIB, False)
    assert book.processes == (7, 100, 101)


def test_version_2_counters(tmp_path: Path) -> None:
    place = v2(tmp_path, V2_NEW)
    (tmp_path / "proc").mkdir()
    read = memory_counters.read([], at_s=1.5, cgroup=place, proc_root=str(tmp_path / "proc"))
    assert read.cgroup is not None
    assert (read.cgroup.major_faults, read.cgroup.refaulted, read.cgroup.refaulted_anon) == (42, 77, 5)
    assert (read.cgroup.oom_kills, read.cgroup.limit_hits) == (2, 12)
    assert read.cgroup_stalls is not None
    assert (read.cgroup_stalls.memory_some_s, read.cgroup_stalls.memory_full_s) == (1.5, 0.5)
    assert (read.stalls.memory_some_s, read.host.major_faults) == (None, None)


def test_one_counter_of_refaults_before_5_9(tmp_path: Path) -> None:
    assert v2(tmp_path, V2_5_4).paging().refaulted == 78


def test_version_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "memory/job/memory.stat": V1,
            "memory/job/memory.usage_in_bytes": f"{96 * MIB}\n",
            "memory/job/memory.max_usage_in_bytes": f"{97 * MIB}\n",
            "memory/job/memory.kmem.usage_in_bytes": f"{5 * MIB}\n",
            "memory/job/memory.failcnt": "9\n",
            "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "memory/job/cgroup.procs": "100\n",
            "hugetlb/job/hugetlb.2MB.usage_in_bytes": f"{6 * MIB}\n",
        },
    )
    place = cgroup_memory.place(1, "/job", str(tmp_path))
    assert place is not None
    book, counted = place.book(), place.paging()
    assert (book.usage, book.anon, book.file, book.shmem) == (96 * MIB, 10 * MIB, 80 * MIB, 20 * MIB)
    assert (book.kernel, book.hugetlb, book.processes) == (5 * MIB, 6 * MIB, (100,))
    assert (counted.major_faults, counted.refaulted) == (42, 77)
    assert (counted.oom_kills, counted.limit_hits) == (3, 9)
    assert cgroup_memory.place(1, "/other", str(tmp_path)) is None


@pytest.mark.parametrize("stat", [V2_NEW, V2_5_10], ids=["6.1", "5.10"])
def test_recorded_books_balance_within_a_hundredth(tmp_path: Path, stat: str) -> None:
    book = v2(tmp_path, stat).book()
    usage = 10 * MIB + 80 * MIB + (book.kernel or 0)
    write(tmp_path, {"job/memory.current": f"{usage + 64 * 4096}\n"})
    facts = CgroupFacts(version=2, path="/job", limit=None)
    found = books(
        facts, v2_book(tmp_path), members=(100, 101), anon=None, mapped=None, hugetlb=None, driver=None
    )
    assert found is not None
    assert abs(found.residue) < 0.01 * found.usage
    assert found.others == 1


def v2_book(root: Path) -> cgroup_memory.CgroupMemory:
    place = cgroup_memory.place(2, "/job", str(root))
    assert place is not None
    return place.book()


def test_counters_of_ourselves() -> None:
    read = memory_counters.read([os.getpid(), 2**30], at_s=0.0)
    ours, nobody = read.processes
    assert ours.rss is not None
    assert ours.rss > MIB
    assert ours.major_faults is not None
    assert (nobody.rss, nobody.major_faults, nobody.read_bytes) == (None, None, None)
    assert read.host.major_faults is not None
