"""What processes spent between the first and the last look: CPU, reads from disk, and time off the CPU by a quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyhangtrace.collect import cgroups
from pyhangtrace.collect.procfs import PROC, fields, read_text
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.processes import ProcessFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """As they stood before the first look: bytes read, by process, and seconds throttled, by the group with a quota."""

    read_bytes: Mapping[int, int] = field(default_factory=dict)
    throttled_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Of one process; None where it is not known."""

    cpu_s: float | None = None
    read_bytes: int | None = None
    throttled_s: float | None = None


def counters(processes: Iterable[ProcessFacts], proc_root: str = PROC) -> Counters:
    """The counters of these processes and of their groups now."""
    processes = list(processes)
    reads = {facts.pid: _read_bytes(facts.pid, proc_root) for facts in processes}
    groups = {facts.cpu_cgroup for facts in processes if facts.cpu_cgroup is not None}
    throttled = {group: cgroups.throttled_s(group) for group in groups}
    return Counters(
        read_bytes={pid: read for pid, read in reads.items() if read is not None},
        throttled_s={group: spent for group, spent in throttled.items() if spent is not None},
    )


def since(
    before: Counters, processes: Iterable[ProcessFacts], looks: Sequence[Look], proc_root: str = PROC
) -> dict[int, Spent]:
    """By process, what was spent since; nothing before there is a second look."""
    if len(looks) < 2:
        return {}
    known = [
        facts
        for facts in processes
        if facts.pid in before.read_bytes or facts.cpu_cgroup in before.throttled_s
    ]
    now = counters(known, proc_root)
    reads = {
        pid: read - before.read_bytes[pid] for pid, read in now.read_bytes.items() if pid in before.read_bytes
    }
    throttled = {
        group: round(max(0.0, spent - before.throttled_s[group]), 6)
        for group, spent in now.throttled_s.items()
        if group in before.throttled_s
    }
    groups = {facts.pid: facts.cpu_cgroup for facts in known}
    cpu = cpu_between(looks[0], looks[-1])
    return {
        pid: Spent(
            cpu_s=cpu.get(pid), read_bytes=reads.get(pid), throttled_s=throttled.get(groups.get(pid) or "")
        )
        for pid in {*cpu, *groups}
    }


def cpu_between(first: Look, last: Look) -> dict[int, float]:
    """CPU seconds by process, of the threads that are in both looks."""
    before = {(thread.pid, thread.tid): thread.run_ns for thread in first.threads}
    passed: dict[int, int] = {}
    for thread in last.threads:
        earlier = before.get((thread.pid, thread.tid))
        if thread.run_ns is not None and earlier is not None:
            passed[thread.pid] = passed.get(thread.pid, 0) + thread.run_ns - earlier
    return {pid: round(ns / 1e9, 6) for pid, ns in passed.items()}


def _read_bytes(pid: int, proc_root: str) -> int | None:
    value = dict(fields(read_text(f"{proc_root}/{pid}/io") or "")).get("read_bytes", "")
    return int(value) if value.isdecimal() else None
