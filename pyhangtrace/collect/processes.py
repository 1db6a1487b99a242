"""What each process is: names, family, owner, state and memory, from files that take no lock of the target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyhangtrace.collect import cgroups, connections
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import (
    PROC,
    fields,
    kilobytes,
    printable,
    read_bytes,
    read_link,
    read_text,
    signal_numbers,
    split_arguments,
)
from pyhangtrace.model.errors import NoSuchProcess, UsageError
from pyhangtrace.model.process_table import ProcessStat, ProcessTable
from pyhangtrace.model.processes import PosixTimer, ProcessFacts, ProcessMemory

CMDLINE_TASK = "cmdline"
ENVIRON_TASK = "environ"
_LONGEST_CMDLINE = 1 << 16
_LONGEST_ENVIRON = 1 << 21
_LONGEST_TITLE = 400
_LONGEST_TIMERS = 1 << 14


def read_cmdlines(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the arguments of each process, () for one that has none or may not be seen."""
    for pid in pids:
        progress(pid)
        yield pid, split_arguments(read_bytes(f"{state.proc_root}/{pid}/cmdline", _LONGEST_CMDLINE) or b"")


def read_environs(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the start-up environment of each process, only the names in `argument`; `None` if refused."""
    wanted = set(argument)
    for pid in pids:
        progress(pid)
        raw = read_bytes(f"{state.proc_root}/{pid}/environ", _LONGEST_ENVIRON)
        if raw is None:
            yield pid, None
            continue
        found: dict[str, str] = {}
        for entry in raw.decode(errors="surrogateescape").split("\0"):
            name, equals, value = entry.partition("=")
            if equals and name in wanted:
                found.setdefault(name, printable(value))
        yield pid, found


@dataclass(frozen=True, slots=True)
class ReaderLookup:
    """Discovery's questions, answered by the guarded reader."""

    reader: GuardedReader
    deadline_s: float = 1.0

    def arguments(self, pids: Sequence[int]) -> Mapping[int, tuple[str, ...]]:
        """See `cmdlines`."""
        return cmdlines(self.reader, pids, deadline_s=self.deadline_s)

    def environs(self, pids: Sequence[int], names: Sequence[str]) -> Mapping[int, Mapping[str, str]]:
        """See `environs`."""
        return environs(self.reader, pids, names, deadline_s=self.deadline_s)

    def connections(self, pids: Sequence[int]) -> Mapping[int, frozenset[connections.Ends]]:
        """See `connections.collect`."""
        return connections.collect(self.reader, pids, deadline_s=self.deadline_s)


def named(pid: int, table: ProcessTable, proc_root: str = PROC) -> int:
    """The process of what the user named: a thread id stands for its process.

    Raises NoSuchProcess (also for a kernel thread), UsageError (ourselves).
    """
    row = table.get(pid)
    if row is None:
        status = dict(fields(read_text(f"{proc_root}/{pid}/status") or ""))
        owner = status.get("Tgid", "")
        row = table.get(int(owner)) if owner.isdecimal() else None
    if row is None:
        raise NoSuchProcess(f"there is no process {pid}", "ps -e -o pid,args shows those that exist")
    if row.kernel_thread:
        raise NoSuchProcess(
            f"{pid} is a kernel thread ({row.comm}); it belongs to no job", "name a process of the job"
        )
    if row.pid == os.getpid():
        raise UsageError(f"{pid} is this very program")
    return row.pid


def cmdlines(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, tuple[str, ...]]:
    """Arguments by pid; a process whose memory cannot be read is missing."""
    return reader.run(CMDLINE_TASK, pids, deadline_s=deadline_s).values


def environs(
    reader: GuardedReader, pids: Sequence[int], names: Sequence[str], *, deadline_s: float
) -> dict[int, dict[str, str]]:
    """Of each process' start-up environment the asked names; a process that may not be read is missing."""
    answers = reader.run(ENVIRON_TASK, pids, tuple(names), deadline_s=deadline_s)
    return {pid: found for pid, found in answers.values.items() if found is not None}


def describe(
    pids: Sequence[int],
    table: ProcessTable,
    arguments: Mapping[int, tuple[str, ...]],
    *,
    uptime_s: float | None = None,
    proc_root: str = PROC,
) -> dict[int, ProcessFacts]:
    """The facts of processes of the table; role, claims and Python are for others to fill in.

    Ages are as of `uptime_s` (None: now), so that those of processes described one after the other can be compared.
    """
    uptime_s = read_uptime(proc_root) if uptime_s is None else uptime_s
    ours = read_link(f"{proc_root}/self/ns/pid")
    return {
        pid: _describe(row, arguments.get(pid, ()), uptime_s, ours, proc_root)
        for pid in pids
        if (row := table.get(pid)) is not None
    }


def read_uptime(proc_root: str = PROC) -> float | None:
    """Seconds since boot."""
    text = read_text(f"{proc_root}/uptime")
    try:
        return float(text.split()[0]) if text else None
    except (ValueError, IndexError):
        return None


def _describe(
    row: ProcessStat,
    arguments: tuple[str, ...],
    uptime_s: float | None,
    our_namespace: str | None,
    proc_root: str,
) -> ProcessFacts:
    folder = f"{proc_root}/{row.pid}"
    status = dict(fields(read_text(f"{folder}/status") or ""))
    groups = cgroups.paths(row.pid, proc_root)
    namespace = read_link(f"{folder}/ns/pid")
    zombie = row.state in "ZX"
    started = None
    if uptime_s is not None:
        started = max(0.0, round(uptime_s - row.start_ticks / os.sysconf("SC_CLK_TCK"), 2))
    return ProcessFacts(
        pid=row.pid,
        ppid=row.ppid,
        comm=printable(row.comm),
        title=printable(" ".join(" ".join(arguments).split()))[:_LONGEST_TITLE],
        exe=printable(read_link(f"{folder}/exe") or ""),
        uid=_first_number(status.get("Uid")),
        state=row.state,
        started_s_ago=started,
        start_ticks=row.start_ticks,
        stack_start=row.stack_start or None,
        pgid=row.pgid,
        sid=row.sid,
        tracer_pid=_first_number(status.get("TracerPid")) or None,
        signals_caught=signal_numbers(status.get("SigCgt")),
        timers=parse_timers(read_text(f"{folder}/timers", _LONGEST_TIMERS) or ""),
        exit_code=row.exit_code if zombie else None,
        memory=read_memory(status),
        cgroup=_cgroup(groups),
        frozen_by=cgroups.frozen_by(groups),
        cpu_cgroup=cgroups.quota_group(groups),
        container=len(status.get("NSpid", "").split()) > 1
        or (namespace is not None and our_namespace is not None and namespace != our_namespace),
        problem="kernel_thread" if row.kernel_thread else "zombie" if zombie else None,
    )


def parse_timers(text: str) -> tuple[PosixTimer, ...]:
    """The timers of /proc/PID/timers (Linux 3.10, with CONFIG_CHECKPOINT_RESTORE), in their order."""
    found: list[PosixTimer] = []
    signal: int | None = None
    for name, value in fields(text):
        if name == "signal":
            number = value.partition("/")[0]
            signal = int(number) if number.isdecimal() else None
        elif name == "notify" and value.startswith("none"):
            signal = None
        elif name == "ClockID":
            clock = value.removeprefix("-")
            if clock.isdecimal():
                found.append(PosixTimer(signal=signal, clock=int(value)))
            signal = None
    return tuple(found)


def read_memory(status: Mapping[str, str]) -> ProcessMemory:
    """Memory from the fields of /proc/PID/status (takes no lock, walks no page)."""

    def size(name: str) -> int | None:
        return kilobytes(status[name]) if name in status else None

    return ProcessMemory(
        rss=size("VmRSS"),
        anon=size("RssAnon"),
        file=size("RssFile"),
        shmem=size("RssShmem"),
        swap=size("VmSwap"),
        hugetlb=size("HugetlbPages"),
        page_tables=size("VmPTE"),
    )


def _first_number(value: str | None) -> int | None:
    word = (value or "").split()
    return int(word[0]) if word and word[0].isdecimal() else None


def _cgroup(groups: Mapping[str, str]) -> str | None:
    """The path that limits memory: of the v1 memory controller, else of the unified hierarchy."""
    path = groups.get("memory", groups.get(cgroups.UNIFIED))
    return printable(path) if path is not None else None
