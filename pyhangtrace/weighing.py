"""From process ids to the books of their memory: what `hangtrace memory` does, in its order.

What takes no lock of a target comes first; page tables are walked once, and only where that was asked for or takes
milliseconds. Everything that may block runs in a helper that can be given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from pyhangtrace import __version__
from pyhangtrace.collect import exact_memory, kernel, loading, maps, mmap_lock, procfs, smaps
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.memory_facts import MemoryWatch
from pyhangtrace.collect.problems import process_status
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.discover import roles
from pyhangtrace.findings import Findings, begin
from pyhangtrace.model.errors import NotPermitted
from pyhangtrace.model.evidence import Cost, Evidence, JobFacts, Look, SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.memory import ExactMemory, MemoryCounters

_STEP_S = 1.0
_FILES_S = 0.3
BUDGET_S = 30.0
"""For how long page tables are walked where nothing else is said."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighOptions:
    """`window_s` lies between the two readings of all counters. `exact`: walk the page tables of all members, for
    `budget_s` seconds at most.
    """

    window_s: float = 0.5
    exact: bool = False
    budget_s: float = BUDGET_S


def collect(
    pids: Sequence[int],
    options: WeighOptions,
    *,
    progress: Progress | None = None,
    proc_root: str = procfs.PROC,
) -> Evidence:
    """Finds the job of these processes, and gives the evidence of what memory it holds and whether memory holds it up:
    no threads in it, and counters of memory at the begin and the end of the window.

    Raises NoSuchProcess (also for a kernel thread), NotPermitted, UsageError (ourselves).
    """
    began, cpu_before = time.monotonic(), time.process_time()
    with GuardedReader(TASKS, proc_root=proc_root) as reader:
        found = begin(pids, reader, proc_root)
        found.describe(found.group.members, reader, deadline_s=_STEP_S)
        found.identities = roles.assign(found.group, found.table)
        evidence = _watch(found, reader, options, progress or (lambda _: None))
        own, helper = time.process_time() - cpu_before, reader.usage()
    cost = Cost(wall_s=round(time.monotonic() - began, 3), cpu_s=round(own + helper.cpu_s, 3))
    return replace(evidence, cost=cost)


def _watch(found: Findings, reader: GuardedReader, options: WeighOptions, progress: Progress) -> Evidence:
    members = found.living(found.group.members)
    facts = [found.facts[pid] for pid in found.group.members if pid in found.facts]
    ages = [process.started_s_ago for process in facts if process.started_s_ago is not None]
    machine, log_problem = kernel.collect(since_s_ago=max(ages, default=None), proc_root=found.proc_root)
    cgroup = kernel.cgroup_of(facts)
    watch = MemoryWatch(members, cgroup, proc_root=found.proc_root)
    # The lock of each memory map is looked at before anything that would wait for it.
    locked = mmap_lock.locked(reader, members, deadline_s=_STEP_S)
    readable = [pid for pid in members if pid not in locked]
    mapped = maps.collect(reader, readable, deadline_s=_STEP_S)
    if readable and not mapped and not locked:
        _refuse(found)
    shared = maps.shared_files(reader, mapped, deadline_s=_FILES_S)
    mappings = {pid: of_one.files for pid, of_one in mapped.items()}
    reads = loading.Watch(reader, mappings, readable, deadline_s=_FILES_S)
    window_began = time.monotonic()
    exact, walked = _walk(found, reader, readable, locked, options, progress)
    pause = window_began + options.window_s - time.monotonic()
    if pause > 0:
        time.sleep(pause)
    memory = watch.finish(
        reader,
        mapped=mapped,
        shown=shared,
        reads=reads,
        exact=exact,
        running_s=found.running_s(members),
        deadline_s=_FILES_S,
    )
    ended = _ended(memory.counters)
    return Evidence(
        tool_version=__version__,
        taken_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        attached_to=found.asked,
        host=machine,
        job=JobFacts(
            root_pid=found.group.root,
            members=found.group.members,
            found_by=found.group.found_by,
            framework=found.group.framework,
            world_size=roles.world_size(found.identities),
        ),
        processes=tuple(
            replace(
                process,
                role=found.identities[process.pid].role,
                claims=tuple(found.identities[process.pid].claims),
                problem="mmap_lock_held"
                if process.pid in locked
                else "gone"
                if process.pid in ended
                else process.problem,
                problem_tid=locked.get(process.pid),
            )
            for pid in found.group.members
            if (process := found.facts.get(pid)) is not None and process.pid in found.identities
        ),
        looks=(Look(at_s=0.0, threads=()), Look(at_s=memory.counters[-1].at_s, threads=())),
        mapped_files=shared,
        cgroup=kernel.cgroup_of(facts),
        memory=memory,
        memory_alone=True,
        coverage=(
            SourceStatus(
                source="kernel log",
                state=SourceState.USED if log_problem is None else SourceState.REFUSED,
                reason=log_problem or "",
                fix="" if log_problem is None else "run as root, or: sysctl -w kernel.dmesg_restrict=0",
            ),
            *(process_status(pid, "mmap_lock_held", tid) for pid, tid in sorted(locked.items())),
            walked,
        ),
    )


def _ended(counters: Sequence[MemoryCounters]) -> set[int]:
    """Who had memory at the begin of the window, and has none at its end."""
    before = {process.pid for process in counters[0].processes if process.rss}
    return before - {process.pid for process in counters[-1].processes if process.rss}


def _walk(
    found: Findings,
    reader: GuardedReader,
    readable: Sequence[int],
    locked: dict[int, int | None],
    options: WeighOptions,
    progress: Progress,
) -> tuple[ExactMemory | None, SourceStatus]:
    """Page tables: of all members if asked for, else only where that takes no time to speak of."""
    memories = {pid: found.facts[pid].memory for pid in readable}
    if options.exact:
        seconds = sum(smaps.walk_cost_s(memory) for memory in memories.values())
        if seconds > 1.0:
            progress(f"walking the page tables of {len(memories)} processes")
        memories.update({pid: found.facts[pid].memory for pid in locked})
        return exact_memory.collect(reader, memories, locked, budget_s=options.budget_s)
    if locked:
        reason = "the memory map of a member is locked"
        return None, SourceStatus(source="page tables", state=SourceState.SKIPPED, reason=reason)
    shares, status = smaps.exact(reader, memories, deadline_s=_STEP_S)
    found.facts.update({pid: replace(found.facts[pid], memory=memory) for pid, memory in shares.items()})
    return None, replace(status, source="page tables")


def _refuse(found: Findings) -> None:
    """Raises NotPermitted where nobody's mappings can be read since the kernel does not let us."""
    for pid in found.asked:
        try:
            with Path(found.proc_root, str(pid), "maps").open("rb") as stream:
                stream.read(1)
        except PermissionError as error:
            raise NotPermitted(
                f"process {pid} (uid {found.facts[pid].uid}) may not be read by this user",
                "run with sudo; in a container also: --cap-add SYS_PTRACE",
            ) from error
        except OSError:
            continue
