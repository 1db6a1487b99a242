"""Counters of paging, from the files `vmstat` and `memory.stat`, whose names differ little."""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.model.memory import PagingCounters


def numbers(text: str) -> dict[str, int]:
    """Lines of `key number`."""
    found = {}
    for line in text.split("\n"):
        key, _, value = line.partition(" ")
        if value.strip().isdecimal():
            found[key] = int(value)
    return found


def paging(values: Mapping[str, int], *, oom_kills: int | None, limit_hits: int | None) -> PagingCounters:
    """From the lines of a memory.stat or of vmstat, whose names differ little."""
    # Before Linux 5.9 refaults of files and of anonymous pages were one counter.
    refaulted = values.get("workingset_refault_file", values.get("workingset_refault"))
    return PagingCounters(
        major_faults=values.get("pgmajfault", values.get("total_pgmajfault")),
        refaulted=values.get("total_workingset_refault_file", refaulted),
        refaulted_anon=values.get("total_workingset_refault_anon", values.get("workingset_refault_anon")),
        swapped_in=values.get("pswpin", values.get("total_pswpin")),
        swapped_out=values.get("pswpout", values.get("total_pswpout")),
        oom_kills=oom_kills,
        limit_hits=limit_hits,
    )
