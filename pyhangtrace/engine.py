"""From process ids to a report: the one place that knows the order of things.

Everything has a deadline: however stuck the targets are, a run ends within five seconds after its window.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyhangtrace.analyze import (
    alarms_wanted,
    analyze,
    more_time_wanted,
    outsiders_wanted,
    progress_wanted,
    shared_locks_wanted,
)
from pyhangtrace.collect import (
    alarms,
    flight_recorder,
    gpu,
    group_waits,
    host,
    jax_processes,
    key_setters,
    loading,
    lock_sharers,
    log_marks,
    looks,
    mmap_lock,
    nccl,
    nccl_version,
    probes,
    process_groups,
    procfs,
    ras,
    smaps,
    source_lines,
    spent,
    stacks,
)
from pyhangtrace.collect.guarded import MMAP_LOCK_HELD, GuardedReader
from pyhangtrace.collect.looks import Looker
from pyhangtrace.collect.maps import FileMapping
from pyhangtrace.collect.memory_facts import MemoryWatch
from pyhangtrace.collect.ras_gate import RasMode
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.collect.threads import with_moves_of
from pyhangtrace.discover import recognise, roles
from pyhangtrace.findings import Findings, begin, ourselves
from pyhangtrace.model.evidence import Cost, Evidence, SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.render.result import Result

Progress = Callable[[str], None]

SECOND_LOOK_S = 0.1
_STEP_S = 0.5  # between the looks of a longer window
_FEWEST_LOOKS = 4  # are taken where they are wanted, however long they take
_QUIET_S = 0.5  # what is over sooner needs no word on stderr
_GRACE_S = 4.0  # beyond the window, for everything but the looks
_FIRST_LOOK_S = 2.5  # may have to read the symbols of a gigabyte of libraries from disk
_PROBES_READY_S = 0.85  # of the whole run, when the window itself is over sooner
_PROBE_WINDOW_S = 0.5  # probes slow the system calls of the whole machine a little: never longer
_WEIGH_S = 0.4
_SHM_S = 0.2
_READS_S = 0.2  # between the looks at files that are being loaded
_MORE_READS_S = 0.8  # where none of them has come any further, and a disk gives something all the same
_LOGS_S = 0.3
_GROUPS_S = 1.0
_NCCL_S = 1.0
_CUDA = "cuda"  # as `maps` names the driver's library
_LINKED_S = 0.3
_KERNEL_S = 0.5  # for what only the kernel records: alarms, locks of memory maps
_SHARERS_S = 0.5
_MAX_ALARMS = 64
# Asked for by name, and of thousands of entries with their stacks: the run lasts that much longer if need be.
_RECORDERS_S = 10.0
_LINES_S = 2.0  # asked for by name, and after all that the verdict needs
_RAS_S = 1.5
_OUTSIDERS_S = 2.0  # over all rounds
_MAX_OUTSIDERS = 64  # at once
_MOST_OUTSIDERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """How to look. `window_s` is the time between first and last look; `None` lets the evidence decide, up to
    `max_window_s`. `allow_stop`: in the end, a thread whose stack nothing else gives may be stopped for a moment.
    `ras`: whether NCCL's RAS service is asked. `recorders`: all that torch's flight recorders hold is kept, too.
    """

    window_s: float | None = None
    bpf: bool = True
    allow_stop: bool = False
    max_window_s: float = 3.0
    lines: bool = False
    ras: RasMode = RasMode.SAFE
    recorders: bool = False


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


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run, step by step. `found` is there once the job is known."""

    reader: GuardedReader
    drivers: GuardedReader | None
    began: float
    options: AttachOptions
    progress: Progress
    proc_root: str
    cpu_before: float = field(default_factory=time.process_time)
    found: Findings = field(init=False)
    memory: MemoryWatch | None = None
    attached_s: float = 0.0
    said: set[str] = field(default_factory=set)

    def collect(self, pids: Sequence[int]) -> Evidence:
        self.found = found = begin(pids, self.reader, self.proc_root)
        targets = [pid for pid in found.group.members if found.table[pid].state not in "ZX"]
        with probes.start(targets if self.options.bpf else (), window_s=_PROBE_WINDOW_S) as window:
            self._first_look()
            found.check_permission()
            self._look_around()
            self._read_nccl()
            self._later_looks()
            self._read_nccl()
            self._read_groups()
            self._mark_moved_on()
            self._read_alarms()
            self._read_lock_sharers()
            self._read_map_locks()
            self._read_recorders()
            self._read_logs()
            self._stop_for_stacks()
            self._weigh()
            self._finish_probes(window)
            self.attached_s = window.close()
        self._ask_ras()
        self._read_source_lines()
        return replace(self._evidence(), cost=self._cost())

    # -- time ------------------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _window_limit_s(self) -> float:
        window_s = self.options.window_s
        return self.options.max_window_s if window_s is None else window_s

    def _left(self, wanted_s: float) -> float:
        """A step's deadline: what it wants, within what is left of the whole run."""
        return max(0.1, min(wanted_s, self._window_limit_s() + _GRACE_S - self._elapsed()))

    def _say(self, sentence: str) -> None:
        """Once, and only when it takes long enough for a person to wonder."""
        if self._elapsed() > _QUIET_S and sentence not in self.said:
            self.said.add(sentence)
            self.progress(sentence)

    # -- looks -----------------------------------------------------------------------------------------------

    def _looker(self, stop: tuple[int, ...] = ()) -> Looker:
        seen = self.found.seen
        return Looker(
            reader=self.reader,
            table=self.found.table,
            job=self.found.group.members,
            machine=platform.machine(),
            began=seen[0].taken if seen else None,
            bpf=self.options.bpf,
            stop=stop,
            proc_root=self.proc_root,
        )

    def _first_look(self) -> None:
        self._describe(self.found.group.members)
        members = self.found.living(self.found.group.members)
        self.found.counters = spent.counters((self.found.facts[pid] for pid in members), self.proc_root)
        self.found.seen = [self._looker().look(members, deadline_s=self._left(_FIRST_LOOK_S))]
        self._identify()

    def _describe(self, pids: Sequence[int]) -> None:
        self.found.describe(pids, self.reader, deadline_s=self._left(1.0))

    def _identify(self) -> None:
        """Roles and claims: what /proc says, what the programs themselves say, and what their stacks show."""
        group, table = self.found.group, self.found.table
        memory = stacks.program_environs(
            self.reader,
            roles.wants_program_environ(group, table),
            recognise.READ_VARIABLES,
            deadline_s=self._left(1.0),
        )
        threads = self.found.seen[0].look.threads
        loaders = roles.data_workers(threads)
        identities = roles.assign(group, table, program_environs=memory, data_workers=loaders)
        nameless = roles.without_rank(identities)
        wanted = sorted(jax_processes.uses_jax(thread for thread in threads if thread.pid in nameless))
        roles.add(identities, jax_processes.collect(self.reader, wanted, deadline_s=self._left(_GROUPS_S)))
        self.found.identities = identities

    def _look_around(self) -> None:
        """What takes longer than a look and does not have to be simultaneous with it, and who else has a part."""
        found = self.found
        self._look_at_outsiders()
        self._read_groups()
        found.host = host.collect(
            self.reader,
            self.drivers,
            [found.facts[pid] for pid in found.group.members],
            left=self._left,
            proc_root=self.proc_root,
        )
        self.memory = MemoryWatch(
            found.living(found.group.members), found.host.cgroup, proc_root=self.proc_root
        )

    def _look_at_outsiders(self) -> None:
        """Whom the waits lead to, and whom these wait for in turn: each round goes one process further."""
        found = self.found
        until = self._elapsed() + _OUTSIDERS_S
        while self._elapsed() < until and len(found.outsiders) < _MOST_OUTSIDERS:
            wanted = outsiders_wanted(self._evidence())
            adopted = found.adopt(wanted.partners)
            owners = [pid for tid in wanted.owners if (pid := procfs.process_of(tid, self.proc_root))]
            children = [child for pid in wanted.parents for child in found.table.children(pid)]
            known = {*found.everybody, *found.observers, *ourselves(self.reader)}
            candidates = [pid for pid in (*owners, *wanted.pids, *children) if pid not in known]
            new = [pid for pid in self._with_children(candidates) if pid not in known][:_MAX_OUTSIDERS]
            if not new and adopted:
                continue
            if not new:
                break
            found.outsiders.extend(new)
            self._describe(new)
            if known.issuperset(owners):
                more = self._looker().look(found.living(new), deadline_s=self._left(1.0))
                found.seen[0] = looks.joined(found.seen[0], more)
            else:
                # Whether a process shares a lock is only seen where it is looked at together with who waits for that.
                found.seen = []
                everybody = found.living(found.everybody)
                found.seen = [self._looker().look(everybody, deadline_s=self._left(_FIRST_LOOK_S))]

    def _with_children(self, pids: Sequence[int]) -> list[int]:
        """Those of the table, and the children of those that wait for theirs, so that one look shows them all."""
        table = self.found.table
        found: dict[int, None] = {}
        todo = [pid for pid in pids if pid in table]
        while todo and len(found) < _MAX_OUTSIDERS:
            pid = todo.pop(0)
            if pid not in found:
                found[pid] = None
                if procfs.waits_for_children(pid, self.proc_root):
                    todo.extend(table.children(pid))
        return list(found)

    def _later_looks(self) -> None:
        fixed = self.options.window_s
        self._look_at(SECOND_LOOK_S if fixed is None else min(fixed, _STEP_S))
        limit_s = self._window_limit_s()
        # Where a look takes as long as a window, two of them may not do.
        while self.found.window_s < limit_s or (fixed is None and len(self.found.seen) < _FEWEST_LOOKS):
            step_s = _STEP_S
            if fixed is None:
                wanted = more_time_wanted(self._evidence())
                if wanted <= 0:
                    break
                step_s = min(_STEP_S, max(wanted, SECOND_LOOK_S))
                self._say(f"something has moved lately: looking for up to {self.options.max_window_s:g} s")
            self._look_at(max(self.found.window_s, min(self.found.window_s + step_s, limit_s)))

    def _look_at(self, at_s: float, *, stop: tuple[int, ...] = ()) -> None:
        """Waits for the moment, `at_s` after the first look, and looks again at everybody."""
        seen = self.found.seen
        pause = seen[0].taken + at_s - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        pids = self.found.living(self.found.everybody)
        seen.append(self._looker(stop).look(pids, before=seen[-1], deadline_s=self._left(_FIRST_LOOK_S)))

    def _stop_for_stacks(self) -> None:
        """One more look, in which threads without a whole stack are stopped. Their counters are as before the stop, so
        what the looks say together still holds; a further look would see that they ran.
        """
        members = self.found.living(self.found.group.members)
        lacking = looks.lacking_frames(self.found.seen[-1].look)
        if self.options.allow_stop and lacking.intersection(members):
            self._look_at(self.found.window_s, stop=tuple(members))

    # -- what is read beside the looks ----------------------------------------------------------------------

    def _read_nccl(self) -> None:
        """Once after the first look and once after the last: what was launched in between tells that it moves."""
        found = self.found
        users = nccl.users(found.seen[-1].look.threads).intersection(found.group.members)
        loaded = users.union(found.with_library(nccl.FRAMEWORK))
        if found.linked is None:
            # It may be in the program itself, and show no name in any stack.
            silent = found.living([pid for pid in found.with_library(_CUDA) if pid not in loaded])
            found.linked = nccl_version.linked(self.reader, silent, deadline_s=self._left(_LINKED_S))
        pids = found.living(sorted(loaded.union(found.linked)))
        if pids:
            picture, found.nccl_status = nccl.collect(
                self.reader,
                pids,
                found.seen[-1].look.threads,
                linked=found.linked,
                at_s=time.monotonic() - found.seen[0].taken,
                deadline_s=self._left(_NCCL_S),
            )
            found.nccl.append(picture)

    def _read_groups(self) -> None:
        """Again after a longer window, and where somebody has come to ask the store; else all are where they were."""
        found = self.found
        before = found.groups
        known = before.groups or before.waits
        came = before.after > 0 and group_waits.wants_keys(found.seen[-1].look.threads) - (
            group_waits.wants_keys(found.seen[before.after - 1].look.threads)
        )
        if before.after == 0 or came or (known and len(found.seen) > before.after + 1):
            members, threads = found.living(found.group.members), found.seen[-1].look.threads
            groups = process_groups.collect(
                self.reader, members, threads, after=len(found.seen), deadline_s=self._left(_GROUPS_S)
            )
            stores = {pid: place for pid in members if (place := found.store_address(pid)) is not None}
            waits = group_waits.collect(
                self.reader, members, threads, stores, deadline_s=self._left(_GROUPS_S)
            )
            joined = group_waits.joined(before.waits, waits)
            known = key_setters.collect(
                self.reader, members, threads, joined, deadline_s=self._left(_GROUPS_S)
            )
            found.groups = replace(groups, waits=known)

    def _mark_moved_on(self) -> None:
        """Groups are read after the stacks: of who slept all the while and went on since, they tell of a later wait."""
        found = self.found
        told = {(wait.pid, wait.tid) for wait in found.groups.waits}
        told.update((group.pid, group.pid) for group in found.groups.groups)
        if not told or len(found.seen) < 2:
            return
        first, last = found.seen[0].look, found.seen[-1]
        before = {(thread.pid, thread.tid): thread.slices for thread in first.threads}
        still = {
            key
            for thread in last.look.threads
            if (key := (thread.pid, thread.tid)) in told and before.get(key) == thread.slices
        }
        moved = with_moves_of(last.look.threads, still, self.proc_root)
        if moved != last.look.threads:
            found.seen[-1] = replace(last, look=replace(last.look, threads=moved))

    def _read_alarms(self) -> None:
        """Of those who hang only: others have no need to wake up."""
        if not self.options.bpf:
            return
        wanted = self.found.living(alarms_wanted(self._evidence()))[:_MAX_ALARMS]
        if wanted:
            changed, status = alarms.collect(
                self.reader, self.found.facts, wanted, deadline_s=self._left(_KERNEL_S)
            )
            self.found.facts.update(changed)
            self.found.coverage.append(status)

    def _read_lock_sharers(self) -> None:
        """Of those who hang on locks that others can unlock only: all processes have to be asked."""
        wanted = shared_locks_wanted(self._evidence())
        if not wanted:
            return
        found = self.found
        pids = [pid for pid in procfs.numbers(self.proc_root) if pid not in ourselves(self.reader)]
        told = lock_sharers.collect(self.reader, found.facts, wanted, pids, deadline_s=self._left(_SHARERS_S))
        found.facts.update(told)

    def _read_map_locks(self) -> None:
        """Of those whose memory is locked only: the kernel's own word for who has the lock."""
        if not self.options.bpf:
            return
        found = self.found
        locked = [pid for pid in found.everybody if found.problem(pid)[0] == MMAP_LOCK_HELD]
        told = mmap_lock.writers(self.reader, locked, deadline_s=self._left(_KERNEL_S))
        found.facts.update({pid: replace(found.facts[pid], map_lock_tid=tid) for pid, tid in told.items()})

    def _read_recorders(self) -> None:
        """For showing only: what the verdict needs of them is with the groups."""
        if self.options.recorders:
            members = sorted({group.pid for group in self.found.groups.groups})
            self.found.recorders = flight_recorder.collect(
                self.reader, self.found.living(members), deadline_s=_RECORDERS_S
            )

    def _read_logs(self) -> None:
        """Only of a job that has ranks: what else there is has no phases."""
        if any(each.claims for each in self.found.identities.values()):
            running_s = self.found.running_s(self.found.group.members)
            self.found.log_marks = log_marks.collect(self.reader, running_s, deadline_s=self._left(_LOGS_S))

    def _weigh(self) -> None:
        """Exact shares of memory, after the looks: should a walk get stuck, it costs no look."""
        facts = self.found.facts
        members = {pid: facts[pid].memory for pid in self.found.living(self.found.group.members)}
        memories, status = smaps.exact(self.reader, members, deadline_s=self._left(_WEIGH_S))
        facts.update({pid: replace(facts[pid], memory=memory) for pid, memory in memories.items()})
        self.found.coverage.append(status)
        if self.memory is not None and self.found.host is not None:
            self.found.memory = self.memory.finish(
                self.reader,
                mapped=self.found.host.maps,
                shown=self.found.host.mapped,
                reads=self._watch_reads(self.found.host.mappings),
                running_s=self.found.running_s(self.found.group.members),
                deadline_s=self._left(_SHM_S),
            )

    def _watch_reads(self, mappings: Mapping[int, Sequence[FileMapping]]) -> loading.Watch | None:
        """Files that ranks load, over a moment of their own. That may block: it comes when all else is known."""
        if not progress_wanted(self._evidence()):
            return None
        members = self.found.living(self.found.group.members)
        reads = loading.Watch(self.reader, mappings, members, deadline_s=self._left(_SHM_S))
        time.sleep(_READS_S)
        if any((process.read_bytes_in_window or 0) > 0 for process in self._evidence().processes):
            reads.patience_s = _MORE_READS_S
        return reads

    def _finish_probes(self, window: probes.ProbeRun) -> None:
        if not self.options.bpf:
            self.found.coverage.append(
                SourceStatus(source=probes.SOURCE, state=SourceState.SKIPPED, reason="--no-bpf was given")
            )
            return
        patience = max(0.1, _PROBES_READY_S - self._elapsed())
        counted = window.finish(deadline_s=self._left(patience))
        self.found.probed = tuple((process.pid, process.evidence) for process in counted.processes)
        self.found.coverage.append(counted.status)

    def _ask_ras(self) -> None:
        """NCCL's own view, last of all: nobody is stopped any more, and stacks say what a query would meet."""
        found = self.found
        loaded = found.with_library(nccl.FRAMEWORK)
        answer = ras.collect(
            self.reader,
            loaded,
            found.seen[-1].look.threads,
            found.nccl[-1].states if found.nccl else (),
            ended=any(map(found.ended, loaded)),
            mode=self.options.ras,
            asked=found.asked,
            deadline_s=self._left(_RAS_S),
            proc_root=self.proc_root,
        )
        found.ras = answer.found
        found.coverage += answer.coverage

    def _read_source_lines(self) -> None:
        """For showing only: the verdict is made of the looks as they are."""
        if self.options.lines:
            self.found.source, status = source_lines.collect(
                self.reader, self.found.seen[-1].look, budget_s=self._left(_LINES_S)
            )
            self.found.coverage.append(status)

    # -- results ---------------------------------------------------------------------------------------------

    def _evidence(self) -> Evidence:
        return self.found.evidence(unkillable=self.reader.usage().unkillable)

    def _cost(self) -> Cost:
        own = time.process_time() - self.cpu_before
        readers = sum(reader.usage().cpu_s for reader in (self.reader, self.drivers) if reader)
        return Cost(
            wall_s=round(self._elapsed(), 3),
            cpu_s=round(own + readers, 3),
            # Said for each, so that a reader need not know whether anybody could have been stopped.
            stopped_us=tuple((pid, self.found.stopped_us(pid)) for pid in sorted(self.found.facts)),
            probe_attached_s=round(self.attached_s, 3),
        )
