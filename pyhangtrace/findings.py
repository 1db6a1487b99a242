"""What a run has found so far, and the evidence that makes: filled in by the engine, in its order."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from pyhangtrace import __version__
from pyhangtrace.collect import looks, problems, process_groups, processes, procfs, same_memory, spent
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.host import Host
from pyhangtrace.collect.looks import Seen
from pyhangtrace.discover import job, roles
from pyhangtrace.model.errors import NotPermitted
from pyhangtrace.model.evidence import Evidence, JobFacts, SourceStatus
from pyhangtrace.model.host import HostFacts
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.logs import LogMark
from pyhangtrace.model.memory import MemoryFacts
from pyhangtrace.model.nccl import NcclPicture
from pyhangtrace.model.probes import ProbeEvidence
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.processes import ProcessFacts, PythonFacts
from pyhangtrace.model.ras import RasAnswer
from pyhangtrace.model.recorders import RecorderFacts
from pyhangtrace.model.stacks import SourcePlace


@dataclass(slots=True, kw_only=True)
class Findings:
    """Of one run. `uptime_s` is when the table was read; what is not known yet is empty."""

    asked: tuple[int, ...]
    table: ProcessTable
    uptime_s: float | None
    group: job.Group
    observers: tuple[int, ...]
    proc_root: str = procfs.PROC
    facts: dict[int, ProcessFacts] = field(default_factory=dict)
    identities: dict[int, roles.Identity] = field(default_factory=dict)
    outsiders: list[int] = field(default_factory=list)
    counters: spent.Counters = field(default_factory=spent.Counters)
    seen: list[Seen] = field(default_factory=list)
    host: Host | None = None
    probed: tuple[tuple[int, ProbeEvidence], ...] = ()
    groups: process_groups.Found = field(default_factory=process_groups.Found)
    recorders: tuple[RecorderFacts, ...] = ()
    log_marks: tuple[LogMark, ...] = ()
    nccl: list[NcclPicture] = field(default_factory=list)
    linked: dict[int, tuple[str, str]] | None = None  # NCCL in programs themselves; None: not looked for yet
    nccl_status: SourceStatus | None = None
    ras: RasAnswer | None = None
    source: tuple[SourcePlace, ...] = ()
    memory: MemoryFacts | None = None
    coverage: list[SourceStatus] = field(default_factory=list)

    @property
    def window_s(self) -> float:
        """Seconds between the first and the last look."""
        return self.seen[-1].taken - self.seen[0].taken

    @property
    def everybody(self) -> tuple[int, ...]:
        """Members of the job and outsiders that waits lead to."""
        return (*self.group.members, *self.outsiders)

    def adopt(self, pids: Sequence[int]) -> bool:
        """Takes outsiders into the job, if any of these are. What they are called there is not asked: a rank of another
        job stays none.
        """
        new = [pid for pid in self.outsiders if pid in pids]
        if not new:
            return False
        self.outsiders = [pid for pid in self.outsiders if pid not in new]
        members = (*self.group.members, *new)
        said = "others that wait for it and that it waits for"
        found_by = self.group.found_by
        self.group = replace(
            self.group,
            members=tuple(sorted(members, key=lambda pid: (self.table[pid].start_ticks, pid))),
            found_by=found_by if said in found_by else f"{found_by}, and {said}",
        )
        return True

    def living(self, pids: Iterable[int]) -> list[int]:
        """Those of them that are worth reading."""
        return [pid for pid in pids if pid in self.facts and self.facts[pid].problem is None]

    def running_s(self, pids: Iterable[int]) -> dict[int, float]:
        """For how long those of them run that are worth reading, where that is known."""
        ages = {pid: self.facts[pid].started_s_ago for pid in self.living(pids)}
        return {pid: age for pid, age in ages.items() if age is not None}

    def with_library(self, framework: str) -> list[int]:
        """Members that have the framework's library loaded."""
        loaded = self.host.frameworks if self.host is not None else {}
        return [pid for pid, names in sorted(loaded.items()) if framework in names]

    def problem(self, pid: int) -> tuple[str | None, int | None]:
        """(why nothing more could be read of the process, the thread that causes it)."""
        facts = self.facts[pid]
        last = self.seen[-1].pictures.get(pid) or self.seen[0].pictures.get(pid)
        if facts.problem is None and last is not None:
            return last.problem, last.problem_tid
        return facts.problem, facts.problem_tid

    def ended(self, pid: int) -> bool:
        """Whether the process has ended, also if it is not reaped yet."""
        return self.facts[pid].state in ("Z", "X") or self.problem(pid)[0] == "gone"

    def describe(self, pids: Sequence[int], reader: GuardedReader, *, deadline_s: float) -> None:
        """Learns what these processes of the table are."""
        missing = [pid for pid in pids if pid not in self.group.arguments]
        arguments = dict(self.group.arguments)
        if missing:
            arguments.update(processes.cmdlines(reader, missing, deadline_s=deadline_s))
        self.facts.update(
            processes.describe(pids, self.table, arguments, uptime_s=self.uptime_s, proc_root=self.proc_root)
        )
        self.facts.update(same_memory.collect(reader, self.facts, deadline_s=deadline_s))

    def check_permission(self) -> None:
        """Raises NotPermitted if none of those whom the user named may be read."""
        troubles = problems.of_processes(self.seen[0].pictures)
        refused = [pid for pid in self.asked if troubles.get(pid, ("", None))[0] == "not_permitted"]
        if refused and len(refused) == len(self.asked):
            raise NotPermitted(
                f"process {refused[0]} (uid {self.facts[refused[0]].uid}) may not be read by this user",
                "run with sudo; in a container also: --cap-add SYS_PTRACE",
            )

    def stopped_us(self, pid: int) -> int:
        """Microseconds for which the process was stopped, over all looks."""
        return sum(seen.pictures[pid].stopped_us for seen in self.seen if pid in seen.pictures)

    def store_address(self, pid: int) -> tuple[str, int] | None:
        """Where the environment of a process says that the store of its job is."""
        known = dict(self.identities.get(pid, roles.Identity()).variables)
        host, port = known.get("MASTER_ADDR"), known.get("MASTER_PORT", "")
        return (host, int(port)) if host and port.isdecimal() and int(port) < 1 << 16 else None

    def evidence(self, *, unkillable: Sequence[int] = ()) -> Evidence:
        """What is known so far. `unkillable` are helpers that could not be ended."""
        host = self.host
        spending = spent.since(
            self.counters, self.facts.values(), [seen.look for seen in self.seen], self.proc_root
        )
        return Evidence(
            tool_version=__version__,
            taken_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            attached_to=self.asked,
            host=host.facts if host else HostFacts(name=platform.node(), machine=platform.machine()),
            job=JobFacts(
                root_pid=self.group.root,
                members=self.group.members,
                found_by=self.group.found_by,
                framework=self._framework(),
                world_size=roles.world_size(self.identities),
                observers=self.observers,
            ),
            processes=tuple(
                self._process(pid, spending.get(pid, spent.Spent()))
                for pid in self.everybody
                if pid in self.facts
            ),
            looks=tuple(seen.look for seen in self.seen),
            probes=self.probed,
            mapped_files=host.mapped if host else (),
            cgroup=host.cgroup if host else None,
            memory=self.memory,
            gpus=host.gpus.devices if host else (),
            gpu_driver=host.gpus.driver if host else None,
            cuda=host.gpus.processes if host else (),
            coverage=self._all_coverage(unkillable),
            source=self.source,
            nccl=tuple(self.nccl),
            groups=self.groups.groups,
            group_waits=self.groups.waits,
            recorders=self.recorders,
            log_marks=self.log_marks,
            ras=self.ras,
        )

    def _framework(self) -> str | None:
        loaded = self.host.frameworks if self.host is not None else {}
        names = {name for each in loaded.values() for name in each}
        return roles.framework(self.identities, self.group.framework, names)

    def _process(self, pid: int, spending: spent.Spent) -> ProcessFacts:
        identity = self.identities.get(pid, roles.Identity())
        problem, problem_tid = self.problem(pid)
        return replace(
            self.facts[pid],
            role=Role.OUTSIDER if pid in self.outsiders else identity.role,
            claims=(*identity.claims, *([self.groups.places[pid]] if pid in self.groups.places else ())),
            forked_from_rank=identity.forked_from_rank,
            identity=identity.variables,
            limits=identity.limits,
            modules=self.host.frameworks.get(pid, ()) if self.host else (),
            python=self._python(pid),
            gone=problem == "gone",
            problem=problem,
            problem_tid=problem_tid,
            cpu_s_in_window=spending.cpu_s,
            read_bytes_in_window=spending.read_bytes,
            throttled_s_in_window=spending.throttled_s,
        )

    def _python(self, pid: int) -> PythonFacts | None:
        """Its interpreter, as the last look that saw it shows it."""
        pictures = (seen.pictures.get(pid) for seen in reversed(self.seen))
        return next(
            (shown.python for shown in pictures if shown is not None and shown.python is not None), None
        )

    def _all_coverage(self, unkillable: Sequence[int]) -> tuple[SourceStatus, ...]:
        return (
            *problems.coverage(self.seen[-1].pictures, unkillable),
            *looks.distinct_coverage(status for seen in self.seen for status in seen.coverage),
            *(self.host.coverage if self.host else ()),
            *self.groups.coverage,
            *((self.nccl_status,) if self.nccl_status is not None else ()),
            *self.coverage,
        )


def begin(pids: Sequence[int], reader: GuardedReader, proc_root: str) -> Findings:
    """The job of these processes, of which nothing more is known yet.

    Raises NoSuchProcess (also for a kernel thread), UsageError (ourselves).
    """
    table = procfs.read_table(proc_root)
    uptime_s = processes.read_uptime(proc_root)
    asked = tuple(dict.fromkeys(processes.named(pid, table, proc_root) for pid in pids))
    lookup = processes.ReaderLookup(reader)
    around = job.wrappers(os.getpid(), table, lookup)
    group = job.find(asked, table, lookup, ourselves=(*ourselves(reader), *around))
    return Findings(
        asked=asked,
        table=table,
        uptime_s=uptime_s,
        group=group,
        observers=tuple(pid for pid in table.ancestors(os.getpid()) if pid not in group.members),
        proc_root=proc_root,
    )


def ourselves(reader: GuardedReader) -> tuple[int, ...]:
    """This process and the helper that reads for it now."""
    helper = reader.helper_pid
    return (os.getpid(),) if helper is None else (os.getpid(), helper)
