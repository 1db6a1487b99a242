"""`record`: a window of what every process of a job does, from probes in the kernel and snapshots from outside.

The order: find the job, start the probes, look once, watch until the window is over, look again, put together.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyhangtrace import __version__
from pyhangtrace.analyze import analyze
from pyhangtrace.collect import (
    called_functions,
    fault_places,
    host,
    nccl,
    newborn,
    process_groups,
    procfs,
    recorded_threads,
    stacks,
)
from pyhangtrace.collect.called_functions import Found
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.looks import Looker, Seen
from pyhangtrace.collect.record_probes import RecordProbes
from pyhangtrace.collect.record_tables import Counted
from pyhangtrace.collect.snapshots import Snapshots
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.discover import recognise, roles
from pyhangtrace.findings import Findings, begin
from pyhangtrace.interrupts import interruptible
from pyhangtrace.model.errors import NotSupported
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.groups import ProcessGroupFacts
from pyhangtrace.model.recording import (
    CollectiveCount,
    Metric,
    RecordedProcess,
    Recording,
    RecordingCost,
)
from pyhangtrace.model.report import Report

Progress = Callable[[str], None]

_READY_S = 20.0  # a compilation from a cold disk on a busy machine
_LOOK_S = 2.5
_STEP_S = 1.0
_ANSWER_S = 10.0
_FUNCTIONS_S = 5.0  # may have to read the symbols of a gigabyte of libraries from disk


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """For how long to record, what stacks are weighed by (that decides which probes are attached), and of which
    families of functions (`called_functions.FAMILIES`) the calls are watched too.
    """

    window_s: float
    metric: Metric = Metric.FUTEX
    uprobes: tuple[str, ...] = ()


def record(pids: Sequence[int], options: RecordOptions, *, progress: Progress | None = None) -> Recording:
    """Records the job of these processes. Nobody is stopped or written to.

    Raises NotSupported (exit code 6, with the fix) where the probes cannot be had; NoSuchProcess, NotPermitted,
    UsageError.
    """
    with GuardedReader(TASKS, proc_root=procfs.PROC) as reader:
        return _Run(reader=reader, options=options, progress=progress or (lambda _: None)).record(pids)


@dataclass(slots=True, kw_only=True)
class _Run:
    reader: GuardedReader
    options: RecordOptions
    progress: Progress
    began: float = field(default_factory=time.monotonic)
    cpu_before: float = field(default_factory=time.process_time)
    found: Findings = field(init=False)

    def record(self, pids: Sequence[int]) -> Recording:
        self.found = found = begin(pids, self.reader, procfs.PROC)
        members = [pid for pid in found.group.members if found.table[pid].state not in "ZX"]
        with RecordProbes(members, window_s=self.options.window_s, metric=self.options.metric) as probes:
            found.describe(found.group.members, self.reader, deadline_s=_STEP_S)
            found.seen = [self._look()]
            found.check_permission()
            self._identify()
            if self.options.uprobes:
                probes.watch_calls(self._functions(members), self.options.uprobes)
            communicators = self._communicators() if self.options.uprobes else {}
            opened_at = probes.open(deadline_s=_READY_S)
            for metric in (Metric.FUTEX, self.options.metric):
                if (why := probes.missing(metric)) is not None:
                    raise _unavailable(why)
            assert opened_at is not None
            many = f"{len(members)} processes" if len(members) != 1 else f"pid {members[0]}"
            with interruptible() as stop:
                self.progress(f"recording {many} for {self.options.window_s:g} s, or until Ctrl-C")
                groups, read_at = self._groups(), time.monotonic()
                seen = Snapshots(
                    reader=self.reader,
                    pids=found.living(members),
                    opened_at=opened_at,
                    running=self.options.metric is Metric.FAULTS,
                )
                seen.until(opened_at + self.options.window_s, stop=stop)
            counted = probes.finish(deadline_s=_ANSWER_S, communicators=communicators)
            after, passed_s = self._groups(), time.monotonic() - read_at
        children = newborn.status(found.table, procfs.read_table(procfs.PROC), members, os.getpid())
        if isinstance(counted, SourceStatus):
            raise _unavailable(counted)
        found.seen.append(self._look(found.seen[0]))
        found.host = host.collect(
            self.reader,
            None,
            [found.facts[pid] for pid in found.group.members],
            left=lambda wanted_s: wanted_s,
            proc_root=procfs.PROC,
        )
        report = analyze(found.evidence(unkillable=self.reader.usage().unkillable))
        return self._recording(
            report, counted, seen, _progress_of(groups, after, passed_s), opened_at, children
        )

    def _functions(self, members: Sequence[int]) -> dict[int, list[Found]]:
        return called_functions.find(
            self.reader, self.found.living(members), self.options.uprobes, deadline_s=_FUNCTIONS_S
        )

    def _communicators(self) -> dict[int, dict[int, str]]:
        """What NCCL's memory says of the communicators that its calls name by address."""
        found = self.found
        picture, _ = nccl.collect(
            self.reader,
            found.living(found.group.members),
            found.seen[-1].look.threads,
            linked={},
            at_s=0.0,
            deadline_s=_STEP_S,
        )
        return {
            state.pid: {
                each.address: f"rank {each.rank} of {each.n_ranks} in {each.comm_hash:#x}"
                for each in state.communicators
            }
            for state in picture.states
        }

    def _look(self, before: Seen | None = None) -> Seen:
        looker = Looker(
            reader=self.reader,
            table=self.found.table,
            job=self.found.group.members,
            machine=platform.machine(),
            began=before.taken if before is not None else None,
        )
        return looker.look(self.found.living(self.found.group.members), before=before, deadline_s=_LOOK_S)

    def _identify(self) -> None:
        found = self.found
        memory = stacks.program_environs(
            self.reader,
            roles.wants_program_environ(found.group, found.table),
            recognise.READ_VARIABLES,
            deadline_s=_STEP_S,
        )
        loaders = roles.data_workers(found.seen[0].look.threads)
        found.identities = roles.assign(
            found.group, found.table, program_environs=memory, data_workers=loaders
        )

    def _groups(self) -> tuple[ProcessGroupFacts, ...]:
        """Process groups, with how many collectives each member has begun."""
        found = self.found
        found.groups = process_groups.collect(
            self.reader,
            found.living(found.group.members),
            found.seen[-1].look.threads,
            after=len(found.seen),
            deadline_s=_STEP_S,
        )
        return found.groups.groups

    def _recording(
        self,
        report: Report,
        counted: Counted,
        seen: Snapshots,
        collectives: tuple[CollectiveCount, ...],
        opened_at: float,
        children: SourceStatus,
    ) -> Recording:
        services = {
            (process.pid, thread.tid): thread.service
            for process in report.processes
            for thread in process.threads
        }
        members = set(self.found.group.members)
        lost = counted.lost
        if seen.left_out:
            lost = (*lost, ("stacks of snapshots", seen.left_out))
        return Recording(
            tool_version=__version__,
            taken_at=report.taken_at,
            host=report.host,
            attached_to=self.found.asked,
            metric=self.options.metric,
            window_s=counted.window_s,
            processes=tuple(
                RecordedProcess(
                    pid=process.pid,
                    rank=process.rank,
                    role=process.role,
                    title=process.title,
                    wakers=counted.wakers.get(process.pid, ()),
                    block_requests=counted.io.get(process.pid, (0, 0))[0],
                    block_bytes=counted.io.get(process.pid, (0, 0))[1],
                )
                for process in report.processes
                if process.pid in members
            ),
            threads=recorded_threads.threads(counted, seen, services),
            words=counted.words,
            off_cpu=counted.off_cpu,
            calls=counted.calls,
            places=fault_places.named(counted, self.reader, deadline_s=_STEP_S),
            events=counted.events,
            stacks=seen.stacks,
            samples=tuple(seen.samples),
            fault_counts=tuple(seen.fault_counts),
            collectives=collectives,
            lost=lost,
            coverage=(*counted.coverage, children),
            cost=RecordingCost(
                ready_s=round(opened_at - self.began, 3),
                attached_s=round(counted.attached_s, 3),
                cpu_s=round(
                    time.process_time() - self.cpu_before + self.reader.usage().cpu_s + counted.cpu_s, 3
                ),
                snapshots=seen.taken,
            ),
        )


def _unavailable(why: SourceStatus) -> NotSupported:
    return NotSupported(f"record needs eBPF probes: {why.reason}", f"fix: {why.fix}" if why.fix else "")


def _progress_of(
    before: Sequence[ProcessGroupFacts], after: Sequence[ProcessGroupFacts], passed_s: float
) -> tuple[CollectiveCount, ...]:
    """Of groups whose operations are recorded, how many were begun; a group that is new began with none."""
    begun = {(group.pid, group.name): group.begun for group in before if group.recorded}
    counts = []
    for group in after:
        if not group.recorded:
            continue
        last = [operation.op for operation in group.pending if operation.sequence == group.begun]
        counts.append(
            CollectiveCount(
                pid=group.pid,
                group=group.description or group.called or group.name,
                before=begun.get((group.pid, group.name), 0),
                after=group.begun,
                passed_s=passed_s,
                last=last[0] if last else "",
                source="flight recorder",
            )
        )
    return tuple(counts)
