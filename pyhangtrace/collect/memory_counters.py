"""Counters of paging, stalls and reads: a few small files, none of which takes a lock of a target."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from pyhangtrace.collect.cgroup_memory import CgroupPlace
from pyhangtrace.collect.paging import numbers, paging
from pyhangtrace.collect.procfs import PROC, fields, kilobytes, read_text
from pyhangtrace.model.memory import MemoryCounters, PagingCounters, ProcessCounters, StallCounters

KSM = "/sys/kernel/mm/ksm"

_TOTAL = re.compile(r"^(some|full) .*total=(\d+)", re.MULTILINE)
_MAJOR_FAULTS_AT = 9  # behind the name, in /proc/PID/stat: field 12


def read(
    pids: Iterable[int], *, at_s: float, cgroup: CgroupPlace | None = None, proc_root: str = PROC
) -> MemoryCounters:
    """All counters now; `at_s` is the caller's."""
    return MemoryCounters(
        at_s=at_s,
        host=host_paging(read_text(f"{proc_root}/vmstat") or ""),
        cgroup=cgroup.paging() if cgroup is not None else None,
        stalls=stalls(f"{proc_root}/pressure/", ""),
        cgroup_stalls=stalls(f"{cgroup.folder}/", ".pressure")
        if cgroup is not None and cgroup.version == 2
        else None,
        processes=tuple(of_process(pid, proc_root) for pid in pids),
    )


def host_paging(vmstat: str) -> PagingCounters:
    """From /proc/vmstat."""
    values = numbers(vmstat)
    return paging(values, oom_kills=values.get("oom_kill"), limit_hits=None)


def stalls(prefix: str, suffix: str) -> StallCounters:
    """Totals of pressure stall information, from files called e.g. `/proc/pressure/memory`."""
    found: dict[str, float] = {}
    for resource in ("memory", "io"):
        for kind, total in _TOTAL.findall(read_text(f"{prefix}{resource}{suffix}") or ""):
            found[f"{resource}_{kind}_s"] = int(total) / 1e6
    return StallCounters(**found)


def of_process(pid: int, proc_root: str = PROC) -> ProcessCounters:
    """Of one process; None in it what may not be seen."""
    stat = read_text(f"{proc_root}/{pid}/stat") or ""
    words = stat[stat.rfind(")") + 2 :].split()
    io = dict(fields(read_text(f"{proc_root}/{pid}/io") or ""))
    statm = (read_text(f"{proc_root}/{pid}/statm") or "").split()
    return ProcessCounters(
        pid=pid,
        major_faults=_number(words[_MAJOR_FAULTS_AT]) if len(words) > _MAJOR_FAULTS_AT else None,
        read_bytes=_number(io.get("read_bytes")),
        read_chars=_number(io.get("rchar")),
        rss=int(statm[1]) * os.sysconf("SC_PAGE_SIZE") if len(statm) > 1 and statm[1].isdecimal() else None,
    )


def hugetlb_in_use(proc_root: str = PROC) -> int | None:
    """Bytes of all pools of huge pages that are in use, from meminfo (of the default size) and sysfs' others."""
    about = dict(fields(read_text(f"{proc_root}/meminfo") or ""))
    pool = kilobytes(about.get("Hugetlb", ""))  # of all sizes, Linux 4.16
    free, page = _number(about.get("HugePages_Free")), kilobytes(about.get("Hugepagesize", ""))
    if pool is None or free is None or page is None:
        return None
    return max(0, pool - free * page)


def merged_saves(folder: str = KSM) -> int | None:
    """Bytes that the machine has less in use as alike pages are kept once; None where there are none such."""
    sharing = _number((read_text(f"{folder}/pages_sharing") or "").strip())
    return sharing * os.sysconf("SC_PAGE_SIZE") if sharing else None


def merged(pids: Iterable[int], proc_root: str = PROC) -> tuple[tuple[int, int], ...]:
    """(pid, bytes of it that are such pages), where that is told (Linux 5.19) and may be seen."""
    found = []
    for pid in pids:
        pages = _number((read_text(f"{proc_root}/{pid}/ksm_merging_pages") or "").strip())
        if pages is not None:
            found.append((pid, pages * os.sysconf("SC_PAGE_SIZE")))
    return tuple(found)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
