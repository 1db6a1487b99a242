"""From process ids to a report: the one place that knows the order of things.

Everything has a deadline: however stuck the targets are, a run ends within five seconds after its window.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from pyhangtrace import __version__
from pyhangtrace.analyze import analyze, more_time_wanted, outsiders_wanted
from pyhangtrace.collect import (
    cgroups,
    gpu,
    gpus,
    kernel,
    looks,
    maps,
    nccl,
    probes,
    process_groups,
    processes,
    procfs,
    ras,
    smaps,
    source_lines,
    stacks,
)
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.looks import Looker, Seen
from pyhangtrace.collect.problems import process_status
from pyhangtrace.collect.ras_gate import RasMode
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.discover import job as jobs
from pyhangtrace.discover import recognise, roles
from pyhangtrace.model.errors import NoSuchProcess, NotPermitted, UsageError
from pyhangtrace.model.evidence import Cost, Evidence, JobFacts, SourceStatus
from pyhangtrace.model.host import CgroupFacts, HostFacts, MappedFile
from pyhangtrace.model.kinds import Role, SourceState, StackFrom
from pyhangtrace.model.nccl import NcclPicture
from pyhangtrace.model.probes import ProbeEvidence
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.ras import RasAnswer
from pyhangtrace.model.stacks import SourcePlace
from pyhangtrace.model.threads import ThreadSample
from pyhangtrace.render.result import Result

Progress = Callable[[str], None]

SECOND_LOOK_S = 0.1
_STEP_S = 0.5  # between the looks of a longer window
_QUIET_S = 0.5  # what is over sooner needs no word on stderr
_GRACE_S = 4.0  # beyond the window, for everything but the looks
_FIRST_LOOK_S = 2.5  # may have to read the symbols of a gigabyte of libraries from disk
_PROBES_READY_S = 0.85  # of the whole run, when the window itself is over sooner
_PROBE_WINDOW_S = 0.5  # probes slow the system calls of the whole machine a little: never longer
_WEIGH_S = 0.4
_GROUPS_S = 1.0
_NCCL_S = 1.0
_LINES_S = 2.0  # asked for by name, and after all that the verdict needs
_RAS_S = 1.5
_OUTSIDER_ROUNDS = 3
_MAX_OUTSIDERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """How to look. `window_s` is the time between first and last look; `None` lets the evidence decide, up to
    `max_window_s`. `allow_stop`: in the end, a thread whose stack nothing else gives may be stopped for a moment.
    `ras`: whether NCCL's RAS service is asked.
    """

    window_s: float | None = None
    bpf: bool = True
    allow_stop: bool = False
    max_window_s: float = 3.0
    lines: bool = False
    ras: RasMode = RasMode.SAFE


def attach(
    pids: Sequence[int], options: AttachOptions | None = None, *, progress: Progress | None = None
) -> Result:
    """Finds the job of these processes, looks at it and says what it waits for. Nobody is stopped or written to.

    `progress` gets a sentence now and then when it takes longer than half a second.

    Raises NoSuchProcess (also for a kernel thread), NotPermitted, UsageError (ourselves).
    """
    options = options or AttachOptions()
    evidence = collect_evidence(pids, options, progress=progress)
    return Result(report=analyze(evidence), evidence=evidence)


def collect_evidence(
    pids: Sequence[int],
    options: AttachOptions,
    *,
    progress: Progress | None = None,
    proc_root: str = procfs.PROC,
) -> Evidence:
    """Everything `attach` sees. Raises as it does."""
    began = time.monotonic()
    # Before anything else: the helper must not inherit threads, bcc or locks.
    with ExitStack() as stack:
        reader = stack.enter_context(GuardedReader(TASKS, proc_root=proc_root))
        drivers = None
        if gpu.present(proc_root):
            # A helper of its own, at work at once: the driver takes its time, or is what hangs.
            drivers = stack.enter_context(GuardedReader(TASKS, proc_root=proc_root))
            gpu.prefetch(drivers)
        run = _Run(
            reader=reader,
            drivers=drivers,
            began=began,
            options=options,
            progress=progress or (lambda _: None),
            proc_root=proc_root,
        )
        return run.collect(pids)


@dataclass(frozen=True, slots=True)
class _ReaderLookup:
    """Discovery's questions, answered by the guarded reader."""

    reader: GuardedReader
    deadline_s: float = 1.0

    def arguments(self, pids: Sequence[int]) -> Mapping[int, tuple[str, ...]]:
        return processes.cmdlines(self.reader, pids, deadline_s=self.deadline_s)

    def environs(self, pids: Sequence[int], names: Sequence[str]) -> Mapping[int, Mapping[str, str]]:
        return processes.environs(self.reader, pids, names, deadline_s=self.deadline_s)


@dataclass(slots=True, kw_only=True)
class _Host:
    """What does not belong to one look."""

    facts: HostFacts
    cgroup: CgroupFacts | None
    gpus: gpus.Gpus
    mapped: tuple[MappedFile, ...]
    frameworks: dict[int, tuple[str, ...]]
    coverage: list[SourceStatus]


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run. Fields are filled in the order of `collect`."""

    reader: GuardedReader
    drivers: GuardedReader | None
    began: float
    options: AttachOptions
    progress: Progress
    proc_root: str
    cpu_before: float = field(default_factory=time.process_time)
    asked: tuple[int, ...] = ()
    table: ProcessTable = field(default_factory=lambda: ProcessTable({}))
    uptime_s: float | None = None  # when the table was read
    group: jobs.Group = field(init=False)
    identities: dict[int, roles.Identity] = field(default_factory=dict)
    facts: dict[int, ProcessFacts] = field(default_factory=dict)
    outsiders: list[int] = field(default_factory=list)
    observers: tuple[int, ...] = ()
    seen: list[Seen] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)
    host: _Host = field(init=False)
    probed: tuple[tuple[int, ProbeEvidence], ...] = ()
    coverage: list[SourceStatus] = field(default_factory=list)
    attached_s: float = 0.0
    source: tuple[SourcePlace, ...] = ()
    groups: process_groups.Found = field(default_factory=process_groups.Found)
    ras: RasAnswer | None = None
    nccl: list[NcclPicture] = field(default_factory=list)
    nccl_status: SourceStatus | None = None
    said: set[str] = field(default_factory=set)

    def collect(self, pids: Sequence[int]) -> Evidence:
        self.table = procfs.read_table(self.proc_root)
        self.uptime_s = processes.read_uptime(self.proc_root)
        self.asked = tuple(dict.fromkeys(self._process_of(pid) for pid in pids))
        lookup = _ReaderLookup(self.reader)
        around = jobs.wrappers(os.getpid(), self.table, lookup)
        self.group = jobs.find(self.asked, self.table, lookup, ourselves=(*self._ourselves(), *around))
        self.observers = tuple(
            pid for pid in self.table.ancestors(os.getpid()) if pid not in self.group.members
        )
        targets = [pid for pid in self.group.members if self.table[pid].state not in "ZX"]
        with probes.start(targets if self.options.bpf else (), window_s=_PROBE_WINDOW_S) as window:
            self._first_look()
            self._check_permission()
            self._look_around()
            self._read_nccl()
            self._later_looks()
            self._read_nccl()
            self._read_groups()
            self._stop_for_stacks()
            self._weigh()
            self._finish_probes(window)
            self.attached_s = window.close()
        self._ask_ras()
        self._read_source_lines()
        evidence = self._evidence()
        return replace(evidence, cost=self._cost())

    def _process_of(self, pid: int) -> int:
        """The process of what the user named: a thread id stands for its process."""
        row = self.table.get(pid)
        if row is None:
            status = dict(procfs.fields(procfs.read_text(f"{self.proc_root}/{pid}/status") or ""))
            owner = status.get("Tgid", "")
            row = self.table.get(int(owner)) if owner.isdecimal() else None
        if row is None:
            raise NoSuchProcess(f"there is no process {pid}", "ps -e -o pid,args shows those that exist")
        if row.kernel_thread:
            raise NoSuchProcess(
                f"{pid} is a kernel thread ({row.comm}); it belongs to no job", "name a process of the job"
            )
        if row.pid == os.getpid():
            raise UsageError(f"{pid} is this very program")
        return row.pid

    def _ourselves(self) -> tuple[int, ...]:
        helper = self.reader.helper_pid
        return (os.getpid(),) if helper is None else (os.getpid(), helper)

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _window_limit_s(self) -> float:
        window_s = self.options.window_s
        return self.options.max_window_s if window_s is None else window_s

    def _left(self, wanted_s: float) -> float:
        """A step's deadline: what it wants, within what is left of the whole run."""
        return max(0.1, min(wanted_s, self._window_limit_s() + _GRACE_S - self._elapsed()))

    def _looker(self, stop: tuple[int, ...] = ()) -> Looker:
        return Looker(
            reader=self.reader,
            table=self.table,
            job=self.group.members,
            machine=platform.machine(),
            began=self.seen[0].taken if self.seen else None,
            bpf=self.options.bpf,
            stop=stop,
            proc_root=self.proc_root,
        )

    def _first_look(self) -> None:
        self._describe(self.group.members)
        members = self._living(self.group.members)
        self.reads = {pid: read for pid in members if (read := self._read_bytes(pid)) is not None}
        quotas = {group for pid in members if (group := self.facts[pid].cpu_cgroup) is not None}
        self.throttled = {
            group: spent for group in quotas if (spent := cgroups.throttled_s(group)) is not None
        }
        self.seen = [self._looker().look(members, deadline_s=self._left(_FIRST_LOOK_S))]
        self._identify()

    def _read_nccl(self) -> None:
        """Once after the first look and once after the last: what was launched in between tells that it moves."""
        loaded = [pid for pid, names in self.host.frameworks.items() if nccl.FRAMEWORK in names]
        pids = self._living(sorted(loaded))
        if pids:
            picture, self.nccl_status = nccl.collect(
                self.reader,
                pids,
                self.seen[-1].look.threads,
                at_s=time.monotonic() - self.seen[0].taken,
                deadline_s=self._left(_NCCL_S),
            )
            self.nccl.append(picture)

    def _read_groups(self) -> None:
        """Again after a longer window; within a short one they are where they were."""
        if self.groups.after == 0 or (self.groups.groups and len(self.seen) > self.groups.after + 1):
            pids, threads = self._living(self.group.members), self.seen[-1].look.threads
            left_s = self._left(_GROUPS_S)
            self.groups = process_groups.collect(
                self.reader, pids, threads, after=len(self.seen), deadline_s=left_s
            )

    def _living(self, pids: Sequence[int]) -> list[int]:
        return [pid for pid in pids if pid in self.facts and self.facts[pid].problem is None]

    def _describe(self, pids: Sequence[int]) -> None:
        missing = [pid for pid in pids if pid not in self.group.arguments]
        arguments = dict(self.group.arguments)
        if missing:
            arguments.update(processes.cmdlines(self.reader, missing, deadline_s=self._left(1.0)))
        self.facts.update(
            processes.describe(pids, self.table, arguments, uptime_s=self.uptime_s, proc_root=self.proc_root)
        )

    def _identify(self) -> None:
        """Roles and claims: what /proc says, what the programs themselves say, and what their stacks show."""
        unknown = roles.wants_program_environ(self.group, self.table)
        memory = stacks.program_environs(
            self.reader, unknown, recognise.IDENTITY_VARIABLES, deadline_s=self._left(1.0)
        )
        loaders = {
            thread.pid
            for thread in self.seen[0].look.threads
            if any(frame.function == recognise.DATA_WORKER_FRAME for frame in thread.frames)
        }
        self.identities = roles.assign(self.group, self.table, program_environs=memory, data_workers=loaders)

    def _look_around(self) -> None:
        """What takes longer than a look and does not have to be simultaneous with it, and who else has a part."""
        for _ in range(_OUTSIDER_ROUNDS):
            known = {*self.group.members, *self.outsiders, *self.observers, *self._ourselves()}
            wanted = [
                pid
                for pid in outsiders_wanted(self._evidence(partial=True))
                if pid in self.table and pid not in known
            ][:_MAX_OUTSIDERS]
            if not wanted:
                break
            self.outsiders.extend(wanted)
            self._describe(wanted)
            more = self._looker().look(self._living(wanted), deadline_s=self._left(1.0))
            self.seen[0] = looks.joined(self.seen[0], more)
        self._read_groups()
        self.host = self._collect_host()

    def _collect_host(self) -> _Host:
        coverage = []
        ages = [age for pid in self.group.members if (age := self.facts[pid].started_s_ago) is not None]
        facts, problem = kernel.collect(since_s_ago=max(ages, default=None), proc_root=self.proc_root)
        coverage.append(
            SourceStatus(
                source="kernel log",
                state=SourceState.USED if problem is None else SourceState.REFUSED,
                reason=problem or "",
                fix="" if problem is None else "run as root, or: sysctl -w kernel.dmesg_restrict=0",
            )
        )
        living = self._living(self.group.members)
        mapped = maps.collect(self.reader, living, deadline_s=self._left(1.0))
        shared = maps.shared_files(self.reader, mapped, deadline_s=self._left(0.3))
        frameworks = maps.loaded(mapped)
        devices = gpus.collect(self.reader, self.drivers, frameworks, deadline_s=self._left(0.5))
        coverage += devices.coverage
        return _Host(
            facts=facts,
            cgroup=kernel.cgroup(self.facts[pid].cgroup for pid in self.group.members),
            gpus=devices,
            mapped=shared,
            frameworks=frameworks,
            coverage=coverage,
        )

    def _later_looks(self) -> None:
        fixed = self.options.window_s
        self._look_at(SECOND_LOOK_S if fixed is None else min(fixed, _STEP_S))
        while self._window() < self._window_limit_s():
            step_s = _STEP_S
            if fixed is None:
                wanted = more_time_wanted(self._evidence(partial=True))
                if wanted <= 0:
                    break
                step_s = min(_STEP_S, max(wanted, SECOND_LOOK_S))
                self._say(f"something has moved lately: looking for up to {self.options.max_window_s:g} s")
            self._look_at(min(self._window() + step_s, self._window_limit_s()))

    def _stop_for_stacks(self) -> None:
        """One more look, in which threads without a whole stack are stopped. Their counters are as before the stop, so
        what the looks say together still holds; a further look would see that they ran.
        """
        members = self._living(self.group.members)
        lacking = {thread.pid for thread in self.seen[-1].look.threads if _lacks_frames(thread)}
        if self.options.allow_stop and lacking.intersection(members):
            self._look_at(self._window(), stop=tuple(members))

    def _weigh(self) -> None:
        """Exact shares of memory, after the looks: should a walk get stuck, it costs no look."""
        members = {pid: self.facts[pid].memory for pid in self._living(self.group.members)}
        memories, status = smaps.exact(self.reader, members, deadline_s=self._left(_WEIGH_S))
        for pid, memory in memories.items():
            self.facts[pid] = replace(self.facts[pid], memory=memory)
        self.coverage.append(status)

    def _ask_ras(self) -> None:
        """NCCL's own view, last of all: nobody is stopped any more, and stacks say what a query would meet."""
        loaded = [pid for pid, names in sorted(self.host.frameworks.items()) if nccl.FRAMEWORK in names]
        answer = ras.collect(
            self.reader,
            loaded,
            self.seen[-1].look.threads,
            self.nccl[-1].states if self.nccl else (),
            ended=any(
                self.facts[pid].state in ("Z", "X") or self._problem(pid)[0] == "gone" for pid in loaded
            ),
            mode=self.options.ras,
            asked=self.asked,
            deadline_s=self._left(_RAS_S),
            proc_root=self.proc_root,
        )
        self.ras = answer.found
        self.coverage += answer.coverage

    def _read_source_lines(self) -> None:
        """For showing only: the verdict is made of the looks as they are."""
        if not self.options.lines:
            return
        self.source, status = source_lines.collect(
            self.reader, self.seen[-1].look, budget_s=self._left(_LINES_S)
        )
        self.coverage.append(status)

    def _window(self) -> float:
        return self.seen[-1].taken - self.seen[0].taken

    def _look_at(self, at_s: float, *, stop: tuple[int, ...] = ()) -> None:
        """Waits for the moment, `at_s` after the first look, and looks again at everybody."""
        pause = self.seen[0].taken + at_s - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        pids = self._living([*self.group.members, *self.outsiders])
        self.seen.append(
            self._looker(stop).look(pids, before=self.seen[-1], deadline_s=self._left(_FIRST_LOOK_S))
        )

    def _say(self, sentence: str) -> None:
        """Once, and only when it takes long enough for a person to wonder."""
        if self._elapsed() > _QUIET_S and sentence not in self.said:
            self.said.add(sentence)
            self.progress(sentence)

    def _finish_probes(self, window: probes.ProbeRun) -> None:
        if not self.options.bpf:
            self.coverage.append(
                SourceStatus(source=probes.SOURCE, state=SourceState.SKIPPED, reason="--no-bpf was given")
            )
            return
        patience = max(0.1, _PROBES_READY_S - self._elapsed())
        counted = window.finish(deadline_s=self._left(patience))
        self.probed = tuple((process.pid, process.evidence) for process in counted.processes)
        self.coverage.append(counted.status)

    def _check_permission(self) -> None:
        problems = looks.process_problems(self.seen[0].pictures)
        refused = [pid for pid in self.asked if problems.get(pid, ("", None))[0] == "not_permitted"]
        if refused and len(refused) == len(self.asked):
            raise NotPermitted(
                f"process {refused[0]} (uid {self.facts[refused[0]].uid}) may not be read by this user",
                "run with sudo; in a container also: --cap-add SYS_PTRACE",
            )

    def _evidence(self, *, partial: bool = False) -> Evidence:
        """What is known so far; `partial`: the host may not have been looked at yet."""
        host = None if partial and not hasattr(self, "host") else self.host
        pids = (*self.group.members, *self.outsiders)
        return Evidence(
            tool_version=__version__,
            taken_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            attached_to=self.asked,
            host=host.facts if host else HostFacts(name=platform.node(), machine=platform.machine()),
            job=JobFacts(
                root_pid=self.group.root,
                members=self.group.members,
                found_by=self.group.found_by,
                framework=self._framework(host),
                world_size=roles.world_size(self.identities),
                observers=self.observers,
            ),
            processes=tuple(self._process(pid, host) for pid in pids if pid in self.facts),
            looks=tuple(seen.look for seen in self.seen),
            probes=self.probed,
            mapped_files=host.mapped if host else (),
            cgroup=host.cgroup if host else None,
            gpus=host.gpus.devices if host else (),
            gpu_driver=host.gpus.driver if host else None,
            cuda=host.gpus.processes if host else (),
            coverage=self._all_coverage(host),
            source=self.source,
            nccl=tuple(self.nccl),
            groups=self.groups.groups,
            ras=self.ras,
        )

    def _framework(self, host: _Host | None) -> str | None:
        """The most specific name that titles, libraries, variables and launchers give."""
        named = [
            claim.framework
            for identity in self.identities.values()
            for claim in identity.claims
            if claim.framework is not None
        ]
        loaded = {name for names in (host.frameworks if host else {}).values() for name in names}
        for candidate in ("sglang", "vllm", "tensorrt_llm", "deepspeed", "ray", "jax"):
            if candidate in (self.group.framework, *named) or candidate in loaded:
                return candidate
        if "torch" in loaded:
            return "torch"
        return self.group.framework or (named[0] if named else None)

    def _process(self, pid: int, host: _Host | None) -> ProcessFacts:
        facts = self.facts[pid]
        identity = self.identities.get(pid)
        problem, problem_tid = self._problem(pid)
        python = next(
            (
                shown.python
                for seen in reversed(self.seen)
                if (shown := seen.pictures.get(pid)) is not None and shown.python is not None
            ),
            None,
        )
        role = Role.OUTSIDER
        if pid not in self.outsiders:
            role = identity.role if identity is not None else Role.OTHER
        return replace(
            facts,
            role=role,
            claims=tuple(identity.claims) if identity is not None else (),
            identity=identity.variables if identity is not None else (),
            modules=host.frameworks.get(pid, ()) if host else (),
            python=python,
            gone=problem == "gone",
            problem=problem,
            problem_tid=problem_tid,
            cpu_s_in_window=self._cpu_in_window(pid),
            read_bytes_in_window=self._read_in_window(pid),
            throttled_s_in_window=self._throttled_in_window(pid),
        )

    def _problem(self, pid: int) -> tuple[str | None, int | None]:
        """(why nothing more could be read of it, the thread that causes it)."""
        facts = self.facts[pid]
        last = self.seen[-1].pictures.get(pid) or self.seen[0].pictures.get(pid)
        if facts.problem is None and last is not None:
            return last.problem, last.problem_tid
        return facts.problem, facts.problem_tid

    def _cpu_in_window(self, pid: int) -> float | None:
        """CPU seconds between first and last look, of the threads that are in both."""
        if len(self.seen) < 2:
            return None
        first = {
            thread.tid: thread.run_ns
            for thread in self.seen[0].look.threads
            if thread.pid == pid and thread.run_ns is not None
        }
        passed = [
            thread.run_ns - first[thread.tid]
            for thread in self.seen[-1].look.threads
            if thread.pid == pid and thread.run_ns is not None and thread.tid in first
        ]
        return round(sum(passed) / 1e9, 6) if passed else None

    def _throttled_in_window(self, pid: int) -> float | None:
        group = self.facts[pid].cpu_cgroup
        if len(self.seen) < 2 or group is None or group not in self.throttled:
            return None
        now = cgroups.throttled_s(group)
        return round(max(0.0, now - self.throttled[group]), 6) if now is not None else None

    def _read_bytes(self, pid: int) -> int | None:
        text = procfs.read_text(f"{self.proc_root}/{pid}/io")
        value = dict(procfs.fields(text or "")).get("read_bytes", "")
        return int(value) if value.isdecimal() else None

    def _read_in_window(self, pid: int) -> int | None:
        if len(self.seen) < 2 or pid not in self.reads:
            return None
        now = self._read_bytes(pid)
        return now - self.reads[pid] if now is not None else None

    def _all_coverage(self, host: _Host | None) -> tuple[SourceStatus, ...]:
        problems = looks.process_problems(self.seen[-1].pictures)
        failed = sorted({why for why, _ in problems.values() if why.startswith("reader_")})
        found = [
            SourceStatus(
                source="stacks",
                state=SourceState.FAILED if failed else SourceState.USED,
                reason="; ".join(failed),
                fix="make setup, or reinstall pyhangtrace" if any("_native" in why for why in failed) else "",
            )
        ]
        for pid, (why, tid) in sorted(problems.items()):
            if why.startswith("reader_") or why in ("gone", "zombie"):
                continue
            found.append(process_status(pid, why, tid))
        unkillable = self.reader.usage().unkillable
        if unkillable:
            found.append(
                SourceStatus(
                    source="reader",
                    state=SourceState.TIMED_OUT,
                    reason=f"helper {', '.join(map(str, unkillable))} sleeps in the kernel behind a target's lock and "
                    "ends when that lock is released",
                )
            )
        return (
            *found,
            *looks.distinct_coverage(status for seen in self.seen for status in seen.coverage),
            *(host.coverage if host else ()),
            *self.groups.coverage,
            *((self.nccl_status,) if self.nccl_status is not None else ()),
            *self.coverage,
        )

    def _stopped_us(self, pid: int) -> int:
        return sum(seen.pictures[pid].stopped_us for seen in self.seen if pid in seen.pictures)

    def _cost(self) -> Cost:
        own = time.process_time() - self.cpu_before
        return Cost(
            wall_s=round(self._elapsed(), 3),
            cpu_s=round(
                own + sum(reader.usage().cpu_s for reader in (self.reader, self.drivers) if reader), 3
            ),
            # Said for each, so that a reader need not know whether anybody could have been stopped.
            stopped_us=tuple((pid, self._stopped_us(pid)) for pid in sorted(self.facts)),
            probe_attached_s=round(self.attached_s, 3),
        )


def _lacks_frames(thread: ThreadSample) -> bool:
    """Whether registers may be what is missing: eBPF and samples give all of them."""
    if thread.stack_complete or thread.stack_from in (StackFrom.BPF, StackFrom.PERF):
        return False
    return thread.state in ("S", "R")
