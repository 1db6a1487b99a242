"""What a memory control group is charged with, in both versions of the hierarchy.

Source: the kernel's Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst, mm/memcontrol.c. Nothing but
files of the cgroup file system is read; they take no lock of a target.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyhangtrace.collect.cgroups import ROOT
from pyhangtrace.collect.paging import numbers, paging
from pyhangtrace.collect.procfs import read_text
from pyhangtrace.model.memory import CgroupMemory, PagingCounters

_MOST_GROUPS = 512
_MOST_PROCESSES = 4096

# Parts of the kernel's own memory before `kernel` sums them up (Linux 5.18).
_KERNEL_PARTS = ("kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc", "slab")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupPlace:
    """A group's folder below the mount of its controller; `hugetlb` the folder of that controller, where it differs."""

    version: int
    folder: str
    hugetlb: str | None = None

    def paging(self) -> PagingCounters:
        """Its counters of paging, and of what its limit did."""
        values = numbers(read_text(f"{self.folder}/memory.stat") or "")
        if self.version == 2:
            events = numbers(read_text(f"{self.folder}/memory.events") or "")
            return paging(values, oom_kills=events.get("oom_kill"), limit_hits=events.get("max"))
        control = numbers(read_text(f"{self.folder}/memory.oom_control") or "")
        return paging(
            values,
            oom_kills=control.get("oom_kill"),
            limit_hits=_whole(read_text(f"{self.folder}/memory.failcnt")),
        )

    def book(self) -> CgroupMemory:
        """What it is charged with now."""
        values = numbers(read_text(f"{self.folder}/memory.stat") or "")
        return self._book_v2(values) if self.version == 2 else self._book_v1(values)

    def _book_v2(self, values: dict[str, int]) -> CgroupMemory:
        kernel = values.get("kernel")
        if kernel is None and "slab" in values:
            kernel = sum(values.get(name, 0) for name in _KERNEL_PARTS)
        if kernel is not None:
            kernel += values.get("sock", 0)
        return CgroupMemory(
            usage=_whole(read_text(f"{self.folder}/memory.current")),
            peak=_whole(read_text(f"{self.folder}/memory.peak")),
            anon=values.get("anon"),
            file=values.get("file"),
            shmem=values.get("shmem"),
            mapped_file=values.get("file_mapped"),
            dirty=values.get("file_dirty"),
            kernel=kernel,
            page_tables=values.get("pagetables"),
            slab=values.get("slab"),
            swap=_whole(read_text(f"{self.folder}/memory.swap.current")),
            swap_cached=values.get("swapcached"),
            hugetlb=_hugetlb(self.folder, "current"),
            hugetlb_counted="hugetlb" in values,
            processes=_processes(self.folder),
        )

    def _book_v1(self, values: dict[str, int]) -> CgroupMemory:
        def total(name: str) -> int | None:
            return values.get(f"total_{name}", values.get(name))

        return CgroupMemory(
            usage=_whole(read_text(f"{self.folder}/memory.usage_in_bytes")),
            peak=_whole(read_text(f"{self.folder}/memory.max_usage_in_bytes")),
            anon=total("rss"),
            file=total("cache"),
            shmem=total("shmem"),
            mapped_file=total("mapped_file"),
            dirty=total("dirty"),
            kernel=_whole(read_text(f"{self.folder}/memory.kmem.usage_in_bytes")),
            swap=total("swap"),
            swap_cached=total("swapcached"),
            hugetlb=_hugetlb(self.hugetlb, "usage_in_bytes") if self.hugetlb is not None else None,
            processes=_processes(self.folder),
        )


def place(version: int, path: str, root: str = ROOT) -> CgroupPlace | None:
    """The group of this path (as in /proc/PID/cgroup); None if it cannot be seen from here."""
    below = path if path != "/" else ""
    if version == 2:
        folder = f"{root}{below}"
        return CgroupPlace(version=2, folder=folder) if os.path.isdir(folder) else None
    folder = f"{root}/memory{below}"
    huge = f"{root}/hugetlb{below}"
    if not os.path.isdir(folder):
        return None
    return CgroupPlace(version=1, folder=folder, hugetlb=huge if os.path.isdir(huge) else None)


def _whole(text: str | None) -> int | None:
    word = (text or "").strip()
    return int(word) if word.isdecimal() else None


def _hugetlb(folder: str, name: str) -> int | None:
    """Usage of all sizes of huge pages: files called `hugetlb.2MB.current` and so on."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    sizes = [
        _whole(read_text(f"{folder}/{file}"))
        for file in names
        if file.startswith("hugetlb.") and file.endswith(f".{name}") and ".rsvd." not in file
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _processes(folder: str) -> tuple[int, ...] | None:
    """Processes in the group and in those below it; None if there are too many groups to look through."""
    found: set[int] = set()
    queue = [folder]
    for _ in range(_MOST_GROUPS):
        if not queue:
            return tuple(sorted(found)[:_MOST_PROCESSES])
        here = queue.pop()
        found.update(
            int(word) for word in (read_text(f"{here}/cgroup.procs") or "").split() if word.isdecimal()
        )
        try:
            with os.scandir(here) as entries:
                queue.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:  # removed meanwhile
            continue
    return None
