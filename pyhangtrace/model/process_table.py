"""All processes of a host as their `stat` lines describe them, and who is whose child.

Source of the layout: proc(5), /proc/PID/stat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

# include/linux/sched.h
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_FORKED = 0x00000040  # PF_FORKNOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One line of /proc/PID/stat. Times in clock ticks; `exit_code` is a wait status, 0 also where hidden."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int = 0
    sid: int = 0
    flags: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    utime_ticks: int = 0
    stime_ticks: int = 0
    threads: int = 1
    start_ticks: int = 0
    rss_pages: int = 0
    stack_start: int = 0  # 0 for those whose memory is not ours to see
    exit_code: int = 0
    uid: int | None = None  # of the files in /proc/PID; root for a process that may not be dumped

    @property
    def kernel_thread(self) -> bool:
        """It has no user side: nothing of it can be a member of a job."""
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def forked(self) -> bool:
        """It still runs the program, in a copy of the memory, of who forked it."""
        return bool(self.flags & _FORKED)


def parse_stat(text: str, *, uid: int | None = None) -> ProcessStat | None:
    """Parses a stat line (of a process or a thread); `None` if it is none. The name may hold anything."""
    opening, closing = text.find("("), text.rfind(")")
    if opening < 0 or closing < opening:
        return None
    rest = text[closing + 2 :].split()
    try:
        return ProcessStat(
            pid=int(text[:opening]),
            comm=text[opening + 1 : closing],
            state=rest[0],
            ppid=int(rest[1]),
            pgid=int(rest[2]),
            sid=int(rest[3]),
            flags=int(rest[6]),
            minor_faults=int(rest[7]),
            major_faults=int(rest[9]),
            utime_ticks=int(rest[11]),
            stime_ticks=int(rest[12]),
            threads=int(rest[17]),
            start_ticks=int(rest[19]),
            rss_pages=int(rest[21]) if len(rest) > 21 else 0,
            stack_start=int(rest[25]) if len(rest) > 25 else 0,
            exit_code=int(rest[49]) if len(rest) > 49 else 0,
            uid=uid,
        )
    except (ValueError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """One reading of all processes, with the family relations."""

    by_pid: dict[int, ProcessStat]
    _children: dict[int, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        children: dict[int, list[ProcessStat]] = {}
        for row in self.by_pid.values():
            children.setdefault(row.ppid, []).append(row)
        ordered = {
            ppid: tuple(row.pid for row in sorted(rows, key=lambda row: (row.start_ticks, row.pid)))
            for ppid, rows in children.items()
        }
        object.__setattr__(self, "_children", ordered)

    @classmethod
    def of(cls, rows: Iterable[ProcessStat]) -> ProcessTable:
        """A table of these rows. One whose main thread alone has ended shows as a zombie, and lives in its others."""
        return cls(
            {
                row.pid: replace(row, state="S") if row.state == "Z" and row.threads > 1 else row
                for row in rows
            }
        )

    def __contains__(self, pid: int) -> bool:
        return pid in self.by_pid

    def __getitem__(self, pid: int) -> ProcessStat:
        return self.by_pid[pid]

    def get(self, pid: int) -> ProcessStat | None:
        """The row of `pid`, `None` if there was no such process."""
        return self.by_pid.get(pid)

    def children(self, pid: int) -> tuple[int, ...]:
        """Children in the order they were started."""
        return self._children.get(pid, ())

    def descendants(self, pid: int) -> tuple[int, ...]:
        """All below `pid`, parents before their children."""
        found: list[int] = []
        seen = {pid}
        waiting = [pid]
        while waiting:
            for child in self.children(waiting.pop(0)):
                if child not in seen:
                    seen.add(child)
                    found.append(child)
                    waiting.append(child)
        return tuple(found)

    def ancestors(self, pid: int) -> Iterator[int]:
        """Parent, grandparent and so on, as far as they are visible."""
        seen = {pid}
        row = self.get(pid)
        while row is not None and row.ppid in self.by_pid and row.ppid not in seen:
            seen.add(row.ppid)
            yield row.ppid
            row = self.get(row.ppid)
