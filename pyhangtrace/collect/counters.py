"""Counters of whole processes: two small files each, however many threads there are. Takes no lock of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pyhangtrace.collect.procfs import PROC, fields, read_text
from pyhangtrace.model.pace import ProcessCounters
from pyhangtrace.model.process_table import parse_stat

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read(pid: int, proc_root: str = PROC) -> ProcessCounters | None:
    """What this process has done so far; None if it is gone."""
    text = read_text(f"{proc_root}/{pid}/stat")
    stat = parse_stat(text) if text is not None else None
    if stat is None:
        return None
    return ProcessCounters(
        pid=pid,
        start_ticks=stat.start_ticks,
        state=stat.state,
        threads=stat.threads,
        cpu_s=(stat.utime_ticks + stat.stime_ticks) / _TICKS,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
        rss=stat.rss_pages * _PAGE,
        io_bytes=_io_bytes(pid, proc_root),
    )


def read_all(pids: Iterable[int], proc_root: str = PROC) -> dict[int, ProcessCounters]:
    """Of these processes, those that are there and have not ended."""
    found = (read(pid, proc_root) for pid in pids)
    return {each.pid: each for each in found if each is not None and not each.ended}


def refused(pid: int, proc_root: str = PROC) -> bool:
    """Whether the kernel does not let this user look into the process, so that no stack of it can be read."""
    try:
        with open(f"{proc_root}/{pid}/io", "rb") as file:
            file.read(1)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _io_bytes(pid: int, proc_root: str) -> int | None:
    text = read_text(f"{proc_root}/{pid}/io")
    if text is None:
        return None
    known = dict(fields(text))
    try:
        return int(known["rchar"]) + int(known["wchar"])
    except (KeyError, ValueError):
        return None
