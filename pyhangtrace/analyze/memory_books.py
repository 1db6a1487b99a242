"""The books of the control group that limits the job: parts that add up to what it is charged with, and the rest."""

from __future__ import annotations

from collections.abc import Collection

from pyhangtrace.model.host import CgroupFacts
from pyhangtrace.model.memory import CgroupMemory
from pyhangtrace.model.quantities import plural, size
from pyhangtrace.model.report import BookEntry, CgroupBooks

# What is this small a part of usage is no news: charges are taken in batches, one for each CPU.
_NEWS = 0.01


def books(
    cgroup: CgroupFacts | None,
    memory: CgroupMemory | None,
    *,
    members: Collection[int],
    anon: int | None,
    mapped: int | None,
    hugetlb: int | None,
    driver: int | None,
) -> CgroupBooks | None:
    """None where the group is not charged, or cannot be read. `anon` and `mapped` are what the job holds of its own and
    of files, `hugetlb` of the pool of huge pages, as far as they are known.
    """
    if cgroup is None or memory is None or memory.usage is None:
        return None
    if memory.anon is None or memory.file is None:
        return None
    shmem = memory.shmem or 0
    entries = [
        BookEntry(name="anonymous", size=memory.anon),
        BookEntry(
            name="page cache",
            size=max(0, memory.file - shmem),
            remark=f"{size(memory.dirty)} of it to be written" if memory.dirty else "",
        ),
        BookEntry(name="shared memory", size=shmem, remark="tmpfs, memfd, System V"),
        BookEntry(
            name="kernel",
            size=memory.kernel or 0,
            remark=f"page tables {size(memory.page_tables)}" if memory.page_tables is not None else "",
        ),
    ]
    if memory.hugetlb_counted and memory.hugetlb:
        entries.append(BookEntry(name="huge pages", size=memory.hugetlb, remark="hugetlb"))
    residue = memory.usage - sum(entry.size for entry in entries)
    others = None
    if memory.processes is not None:
        others = len(set(memory.processes) - set(members))
    return CgroupBooks(
        path=cgroup.path,
        version=cgroup.version,
        usage=memory.usage,
        limit=cgroup.limit,
        entries=tuple(entries),
        residue=residue,
        others=others,
        remarks=tuple(
            _remarks(memory, residue, others, anon=anon, mapped=mapped, hugetlb=hugetlb, driver=driver)
        ),
    )


def _remarks(
    memory: CgroupMemory,
    residue: int,
    others: int | None,
    *,
    anon: int | None,
    mapped: int | None,
    hugetlb: int | None,
    driver: int | None,
) -> list[str]:
    """What keeps the books and what the job holds apart."""
    usage = memory.usage or 0
    found = []
    if abs(residue) > _NEWS * usage:
        swap = f", of it swap cache {size(memory.swap_cached)}" if memory.swap_cached else ""
        found.append(f"{size(abs(residue))} {'more' if residue > 0 else 'less'} than the parts{swap}")
    charged = memory.mapped_file
    if mapped is not None and charged is not None and mapped - charged > _NEWS * max(usage, mapped):
        found.append(
            f"{size(mapped - charged)} of the files that the job maps are charged to whoever touched them first, "
            "outside of this group"
        )
    if anon is not None and memory.anon is not None and not others and anon - memory.anon > _NEWS * anon:
        found.append(f"{size(anon - memory.anon)} of anonymous memory are charged to another group")
    if hugetlb and not memory.hugetlb_counted:
        found.append(f"{size(hugetlb)} of huge pages from the pool are not counted here")
    if driver:
        found.append(
            f"{size(driver)} of device memory are mapped; what of it is pinned here counts for nobody"
        )
    if others:
        found.append(
            f"{others} {plural(others, 'process in it does', 'processes in it do')} not belong to the job"
        )
    return found
