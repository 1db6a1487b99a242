"""Who has mapped the memory in which processes have a lock for: any of them may act on it, in the job or not.

Asked for where something hangs on a lock that others than its owner can unlock. Reads the lists of mappings of all
processes. Of those that may not be read, or for which there is no time, a member of the job counts as one that has it,
and another one as one that has not.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.mappings import device_of, mapped_files
from pyhangtrace.collect.procfs import read_bytes
from pyhangtrace.model.processes import ProcessFacts

LOCK_SHARERS_TASK = "lock_sharers"

#: Device and inode of the memory.
Memory: TypeAlias = "tuple[int, int]"

# A host with more processes has no time for it.
_MOST_PROCESSES = 2048


def lock_sharers_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: which of the memories in `argument` each process has mapped to write; None where it cannot be told."""
    inodes = {b"%d" % inode for _, inode in argument}
    for pid in pids:
        progress(pid)
        maps = read_bytes(f"{state.proc_root}/{pid}/maps")
        if maps is None:
            gone = not os.path.exists(f"{state.proc_root}/{pid}")
            yield pid, () if gone else None
            continue
        # Few processes have any, and a list of mappings is long.
        if not any(b" " + inode + b" " in maps for inode in inodes):
            yield pid, ()
            continue
        yield pid, tuple(sorted({_memory(found) for found in _writable(maps)} & set(argument)))


def _writable(maps: bytes) -> Iterator[Any]:
    return (found for found in mapped_files(maps) if found["rights"][1:2] == b"w")


def _memory(found: Any) -> Memory:
    return device_of(found), int(found["inode"])


def collect(
    reader: GuardedReader,
    facts: Mapping[int, ProcessFacts],
    wanted: Mapping[int, Collection[Memory]],
    pids: Sequence[int],
    *,
    deadline_s: float,
) -> dict[int, ProcessFacts]:
    """The facts of those who want such locks, changed to say which of `pids` have that memory, as far as is known."""
    if not wanted or len(pids) > _MOST_PROCESSES:
        return {}
    memories = sorted({memory for found in wanted.values() for memory in found})
    answers = reader.run(LOCK_SHARERS_TASK, pids, memories, deadline_s=deadline_s).values
    untold = {pid for pid in pids if pid in facts and answers.get(pid) is None}
    changed = {}
    for waiter, own in wanted.items():
        sharers = {pid for pid, found in answers.items() if found and not set(own).isdisjoint(found)}
        if waiter in facts and waiter in sharers:
            changed[waiter] = replace(facts[waiter], lock_sharers=tuple(sorted(sharers | untold)))
    return changed
