"""One look: all threads of the given processes, and what their waits lead to, at one moment."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyhangtrace.collect import (
    arguments,
    file_locks,
    files,
    ipc,
    kernel_files,
    lock_files,
    mapped_places,
    mpi,
    nap_loops,
    same_file,
    segments,
    stacks,
    threads,
)
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.named_values import NAMED_LOCALS
from pyhangtrace.collect.processes import read_uptime
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.collect.stacks import ProcessPicture
from pyhangtrace.model.evidence import Look, SourceStatus
from pyhangtrace.model.groups import MpiFacts
from pyhangtrace.model.kinds import SourceState, StackFrom
from pyhangtrace.model.open_files import FdFacts, FileLock
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.threads import TaskSample, ThreadSample

_SEARCH_S = 0.25  # for holders outside the job, among all processes of the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A look and what the next one builds on."""

    look: Look
    taken: float  # time.monotonic()
    pictures: dict[int, ProcessPicture]
    files: files.OpenFiles
    coverage: tuple[SourceStatus, ...] = field(default=())
    late_s: float = 0.0  # by how much, at most, times asleep count from a later moment than `taken`


@dataclass(frozen=True, slots=True, kw_only=True)
class Looker:
    """Takes looks. `job` are the members, whose age bounds what "older than the job" means; `began` is when the
    first look was taken, None for the first one itself. `bpf`: whether eBPF may be used; `stop`: the
    processes of which threads may be stopped for a moment.
    """

    reader: GuardedReader
    table: ProcessTable
    job: Sequence[int]
    machine: str
    began: float | None
    bpf: bool = True
    stop: tuple[int, ...] = ()
    proc_root: str = PROC

    def _options(self) -> stacks.CaptureOptions:
        return stacks.CaptureOptions(named_locals=NAMED_LOCALS, bpf=self.bpf, stop=self.stop)

    def _mpi(
        self, pictures: Mapping[int, ProcessPicture], before: Seen | None, deadline_s: float
    ) -> tuple[MpiFacts, ...]:
        known = {facts.pid for facts in before.look.mpi} if before is not None else set()
        # One that naps between two questions shows nothing of MPI when it is met awake.
        used = bool(known) or any(mpi.waits_in_mpi(shown.threads) for shown in pictures.values())
        wanted = [pid for pid, shown in pictures.items() if used and not shown.problem]
        found = mpi.collect(self.reader, wanted, deadline_s=deadline_s) if wanted else {}
        return tuple(found[pid] for pid in sorted(found))

    def _kernel_files(
        self, samples: Sequence[ThreadSample], open_files: files.OpenFiles, deadline_s: float
    ) -> kernel_files.KernelFiles:
        if not self.bpf:
            return kernel_files.not_asked(
                samples,
                open_files.described,
                machine=self.machine,
                reason="--no-bpf",
                fix="leave out --no-bpf",
            )
        if self.proc_root != PROC:
            return kernel_files.not_asked(
                samples,
                open_files.described,
                machine=self.machine,
                reason="the kernel would be asked by ids of another /proc",
                fix="",
            )
        return kernel_files.collect(
            self.reader, samples, open_files.described, machine=self.machine, deadline_s=deadline_s
        )

    def look(self, pids: Sequence[int], *, before: Seen | None = None, deadline_s: float) -> Seen:
        """One look at these processes; each step gets what is left of the deadline."""
        until = time.monotonic() + deadline_s

        def left() -> float:
            return max(0.05, until - time.monotonic())

        taken = time.monotonic()
        pictures = stacks.collect(
            self.reader, pids, options=self._options(), deadline_s=left(), proc_root=self.proc_root
        )
        if before is not None:
            pictures = stacks.carry_asleep(before.pictures, pictures, taken - before.taken)
        pictures, sleep_problem = stacks.with_asleep(self.reader, pictures, deadline_s=left())
        late_s = max(time.monotonic() - taken, before.late_s if before is not None else 0.0)
        pictures = stacks.with_later_ages(pictures, late_s)
        samples = arguments.collect(
            self.reader,
            [thread for shown in pictures.values() for thread in shown.threads],
            machine=self.machine,
            deadline_s=left(),
            proc_root=self.proc_root,
        )
        samples, tasks, unread = nap_loops.collect(
            self.reader,
            samples,
            [task for shown in pictures.values() for task in shown.tasks],
            machine=self.machine,
            deadline_s=left(),
        )
        readable = {pid for pid, shown in pictures.items() if shown.problem is None}
        samples = mapped_places.collect(self.reader, samples, readable, deadline_s=left())
        table = file_locks.read(self.proc_root)
        known = tuple(dict.fromkeys((*self.job, *pids)))
        inherited = file_locks.inherited(table or (), self.job, proc_root=self.proc_root)
        locks = [*file_locks.concerning(table or (), known, ()), *inherited]
        known_paths = file_locks.paths(locks, proc_root=self.proc_root)
        queues, ipc_problem = ipc.collect(self.reader, samples, machine=self.machine, deadline_s=left())
        polled, trouble = lock_files.collect(self.reader, lock_files.paths(samples), deadline_s=left())
        named = segments.names(samples)
        shared = {segments.path(name) for name in named}
        open_files = files.collect(
            self.reader,
            samples,
            known,
            paths={*known_paths.values(), *(file.path for file in polled), *shared},
            before=before.files if before is not None else None,
            deadline_s=left(),
            search_s=min(_SEARCH_S, left()),
            proc_root=self.proc_root,
        )
        # Locks of open files name no process: those on files that somebody waits for are found by the file.
        awaited = file_locks.awaited_files(samples, open_files.described)
        locks = file_locks.concerning(table or (), known, awaited)
        locks += [lock for lock in inherited if lock not in locks]
        known_paths.update(
            {
                (lock.device, lock.inode): awaited[lock.inode]
                for lock in locks
                if (lock.device, lock.inode) not in known_paths and lock.inode in awaited
            }
        )
        kernel = self._kernel_files(samples, open_files, left())
        fds = tuple(kernel_files.complete(files.facts(open_files, samples), kernel))
        samples = kernel_files.with_timeouts(samples, fds, machine=self.machine)
        samples = list(threads.with_later_moves(samples, self.proc_root))
        look = Look(
            mpi=self._mpi(pictures, before, left()),
            at_s=round(taken - self.began, 4) if self.began is not None else 0.0,
            threads=tuple(samples),
            tasks=tuple(tasks),
            fds=_distinct_fds((*files.servers(open_files, samples), *fds)),
            ipc=queues,
            file_locks=file_locks.complete(
                locks,
                known_paths,
                open_files.openers,
                apart=lambda carriers: same_file.apart(self.reader, carriers, deadline_s=left()),
                proc_root=self.proc_root,
            ),
            segments=segments.complete(named, open_files.openers),
            lock_files=lock_files.complete(
                polled, open_files.openers, self.job, self.table, read_uptime(self.proc_root)
            ),
        )
        coverage = (
            *((kernel.status,) if kernel.status is not None else ()),
            *distinct_coverage(status for shown in pictures.values() for status in shown.rungs),
            *_coverage(
                sleep_problem=sleep_problem,
                locks_known=table is not None,
                open_files=open_files,
                trouble=trouble,
                ipc_problem=ipc_problem,
                unread=unread,
            ),
        )
        return Seen(
            look=look, taken=taken, pictures=pictures, files=open_files, coverage=coverage, late_s=late_s
        )


def joined(first: Seen, more: Seen) -> Seen:
    """A look at the job and one at outsiders taken right after it, as one picture."""
    samples = {(thread.pid, thread.tid): thread for thread in (*more.look.threads, *first.look.threads)}
    look = replace(
        first.look,
        threads=tuple(samples[key] for key in sorted(samples)),
        tasks=_tasks_of_both(first, more),
        fds=_distinct_fds((*more.look.fds, *first.look.fds)),
        file_locks=_distinct_locks(first.look.file_locks, more.look.file_locks),
        lock_files=tuple(
            {file.path: file for file in (*more.look.lock_files, *first.look.lock_files)}.values()
        ),
        ipc=tuple(dict.fromkeys((*first.look.ipc, *more.look.ipc))),
        segments=tuple(dict.fromkeys((*first.look.segments, *more.look.segments))),
        mpi=_mpi_of_both(first, more),
    )
    merged = files.OpenFiles(
        described={**first.files.described, **more.files.described},
        sockets={**first.files.sockets, **more.files.sockets},
        openers=first.files.openers.with_more(more.files.openers),
        problem=first.files.problem or more.files.problem,
        named={**more.files.named, **first.files.named},
    )
    return replace(
        first,
        look=look,
        pictures={**first.pictures, **more.pictures},
        files=merged,
        coverage=distinct_coverage((*first.coverage, *more.coverage)),
        late_s=max(first.late_s, more.taken - first.taken + more.late_s),
    )


def _tasks_of_both(first: Seen, more: Seen) -> tuple[TaskSample, ...]:
    again = {task.pid for task in first.look.tasks}
    return (*first.look.tasks, *(task for task in more.look.tasks if task.pid not in again))


def _mpi_of_both(first: Seen, more: Seen) -> tuple[MpiFacts, ...]:
    by_pid = {facts.pid: facts for facts in (*more.look.mpi, *first.look.mpi)}
    return tuple(by_pid[pid] for pid in sorted(by_pid))


def _distinct_fds(found: Iterable[FdFacts]) -> tuple[FdFacts, ...]:
    by_key = {(fd.pid, fd.fd): fd for fd in found}
    return tuple(by_key[key] for key in sorted(by_key))


def _distinct_locks(*tables: Iterable[FileLock]) -> tuple[FileLock, ...]:
    """Of locks that are alike all from one table: the later look knows more paths, the earlier one more waiters."""
    known: dict[file_locks.LockKey, list[FileLock]] = {}
    for table in tables:
        for key, found in file_locks.alike(table).items():
            if key not in known or known[key][0].path is None:
                known[key] = found
    return tuple(lock for key in sorted(known) for lock in known[key])


def distinct_coverage(statuses: Iterable[SourceStatus]) -> tuple[SourceStatus, ...]:
    """One entry per source; a failure in any look is what is kept."""
    kept: dict[str, SourceStatus] = {}
    for status in statuses:
        if status.source not in kept or kept[status.source].state is SourceState.USED:
            kept[status.source] = status
    return tuple(kept.values())


def _coverage(
    *,
    sleep_problem: str,
    locks_known: bool,
    open_files: files.OpenFiles,
    trouble: Sequence[str],
    ipc_problem: str | None,
    unread: str,
) -> tuple[SourceStatus, ...]:
    found = [
        _status("asleep times", works=not sleep_problem, reason=sleep_problem),
        _status("file locks", works=locks_known, reason="/proc/locks cannot be read"),
        _status(
            "open files",
            works=open_files.openers.complete,
            reason=_unsearched(open_files.openers.closed),
            fix=_search_fix(open_files.openers.closed),
        ),
    ]
    if open_files.problem is not None:
        found.append(
            _status("sockets", works=False, reason=open_files.problem, fix="run as root; modprobe unix_diag")
        )
    if ipc_problem is not None:
        found.append(_status("System V IPC", works=False, reason=ipc_problem, fix="run as root"))
    if unread:
        found.append(_status("nap loops", works=False, reason=unread))
    if trouble:
        found.append(_status("lock files", works=False, reason="; ".join(trouble)))
    return tuple(found)


def _unsearched(closed: Collection[int]) -> str:
    what = "searched for the other ends of pipes and sockets and for who has files open"
    if not closed:
        return f"not every process could be {what} in time"
    if closed == {0}:
        return f"processes outside this PID namespace cannot be {what}"
    who = f"pid {next(iter(closed))}" if len(closed) == 1 else f"{len(closed)} processes"
    return f"{who} may not be {what}"


def _search_fix(closed: Collection[int]) -> str:
    if closed == {0}:
        return "run it on the host, or with --pid=host"
    return "run as root" if os.geteuid() else ""


def _status(source: str, *, works: bool, reason: str, fix: str = "") -> SourceStatus:
    if works:
        return SourceStatus(source=source, state=SourceState.USED)
    return SourceStatus(source=source, state=SourceState.FAILED, reason=reason, fix=fix)


def lacking_frames(look: Look) -> set[int]:
    """Processes with a thread whose registers may be what its stack lacks: eBPF and samples give all of them."""
    return {
        thread.pid
        for thread in look.threads
        if not thread.stack_complete
        and thread.stack_from not in (StackFrom.BPF, StackFrom.PERF)
        and thread.state in ("S", "R")
    }
