"""Processes that run in the memory of their parent: children of clone(2) with CLONE_VM, of vfork until they exec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyhangtrace.collect import kcmp
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.processes import ProcessFacts

SAME_MEMORY_TASK = "same_memory"


def same_memory_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: whether each process runs in the memory of another one, `argument[pid]`; `None` if nobody may know."""
    same = kcmp.comparer()
    for pid in pids:
        progress(pid)
        yield pid, same(pid, argument[pid], kcmp.MEMORY, 0, 0)


def collect(
    reader: GuardedReader, facts: Mapping[int, ProcessFacts], *, deadline_s: float
) -> dict[int, ProcessFacts]:
    """The facts of those who share their memory, changed to say with whom."""
    pairs = dict(_candidates(facts.values(), facts))
    if not pairs:
        return {}
    answers = reader.run(SAME_MEMORY_TASK, list(pairs), pairs, deadline_s=deadline_s).values
    sharers: dict[int, set[int]] = {}
    for pid, parent in pairs.items():
        if answers.get(pid):
            sharers.setdefault(pid, set()).add(parent)
            sharers.setdefault(parent, set()).add(pid)
    return {pid: replace(facts[pid], same_memory=tuple(sorted(found))) for pid, found in sharers.items()}


def _candidates(
    processes: Iterable[ProcessFacts], known: Mapping[int, ProcessFacts]
) -> Iterator[tuple[int, int]]:
    """Children whose first stack lies where that of their parent does, as it only can without an execve."""
    for process in processes:
        parent = known.get(process.ppid)
        if parent is None or process.stack_start is None:
            continue
        if process.stack_start == parent.stack_start and _alike(process, parent):
            yield process.pid, parent.pid


def _alike(process: ProcessFacts, parent: ProcessFacts) -> bool:
    """One memory has one size; both were read one after the other, though, while it may have grown."""
    one, other = process.memory.rss, parent.memory.rss
    return one is not None and other is not None and abs(one - other) <= max(one, other) // 8
