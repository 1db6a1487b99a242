"""Exact shares of memory (PSS, USS) from the C++ rollup reader: a page walk, so only where it is short and needed.

A walk costs the kernel some 50 to 90 ns a page and keeps the target's mmap lock meanwhile: a worker that maps
hundreds of gigabytes would feel it, and there the bracket from `status` says enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.processes import ProcessMemory

ROLLUP_TASK = "smaps_rollup"

_PAGE = 4096
_PER_PAGE_S = 70e-9
_PER_PROCESS_S = 0.5e-3  # a thousand mappings or so
_LONGEST_WALK_S = 0.05  # of one process: so long its mmap and munmap may have to wait
_LONGEST_S = 0.15  # of all together
_LOOSE = 1.25  # high side of the bracket over its low side


def rollup_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the sums of /proc/PID/smaps_rollup in bytes; `None` if refused."""
    from pyhangtrace import _native

    for pid in pids:
        progress(pid)
        try:
            yield pid, _native.smaps_rollup(pid, state.proc_root)
        except OSError:
            yield pid, None


def walk_cost_s(memory: ProcessMemory) -> float:
    """How long the kernel will walk, by the resident pages."""
    return _PER_PROCESS_S + (memory.rss or 0) / _PAGE * _PER_PAGE_S


def reason_to_skip(memories: Mapping[int, ProcessMemory]) -> str | None:
    """Why the page tables stay unread, `None` if walking them is worth it."""
    known = [memory for memory in memories.values() if memory.rss is not None]
    if not known:
        return "no process' memory is known"
    shared = [(memory.file or 0) + (memory.shmem or 0) for memory in known]
    anon = sum(memory.anon or 0 for memory in known)
    if anon + sum(shared) <= _LOOSE * (anon + max(shared)):
        return "the sizes in status say enough"
    costs = [walk_cost_s(memory) for memory in known]
    if max(costs) > _LONGEST_WALK_S or sum(costs) > _LONGEST_S:
        return f"walking the page tables would take about {sum(costs):.1f} s and hold up the targets' mmap"
    return None


def exact(
    reader: GuardedReader, memories: Mapping[int, ProcessMemory], *, deadline_s: float
) -> tuple[dict[int, ProcessMemory], SourceStatus]:
    """The same memories with PSS and USS where they could be read, and what became of the source."""
    why_not = reason_to_skip(memories)
    if why_not is not None:
        return dict(memories), SourceStatus(source="smaps", state=SourceState.SKIPPED, reason=why_not)
    answers = reader.run(ROLLUP_TASK, list(memories), deadline_s=deadline_s)
    found = dict(memories)
    for pid, sums in answers.values.items():
        if sums is not None and "pss" in sums:
            found[pid] = _with_shares(memories[pid], sums)
    unread = [pid for pid, memory in found.items() if memory.pss is None]
    if not unread:
        return found, SourceStatus(source="smaps", state=SourceState.USED)
    late = any(pid in answers.problems for pid in unread)
    return found, SourceStatus(
        source="smaps",
        state=SourceState.TIMED_OUT if late else SourceState.REFUSED,
        reason=f"{len(unread)} of {len(found)} processes were not read",
        fix="" if late else "run with sudo",
    )


def _with_shares(memory: ProcessMemory, sums: Mapping[str, int]) -> ProcessMemory:
    private = ("private_clean", "private_dirty", "private_hugetlb")
    return replace(memory, pss=sums["pss"], uss=sum(sums.get(name, 0) for name in private))
