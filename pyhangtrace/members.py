"""Who belongs to a job that is followed for long, as its processes end and are started again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyhangtrace.collect import counters
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.discover import roles
from pyhangtrace.findings import begin
from pyhangtrace.model.errors import NoSuchProcess, NotPermitted
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.pace import ProcessCounters

_WORKERS = frozenset({Role.RANK, Role.SCHEDULER})
_REFRESH_S = 300.0  # a job may grow without anybody of it ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of the job. `title` is its command line; `rank` is None where nothing but its place says one."""

    pid: int
    start_ticks: int
    role: Role
    rank: int | None
    title: str


@dataclass(slots=True, kw_only=True)
class Members:
    """The job of some processes. `asked` are those the user named, which may end before the job does; `searched_s` is
    when it was last searched for processes, which takes far longer than to read the counters of those that are known.
    """

    asked: tuple[int, ...]
    proc_root: str = PROC
    known: dict[int, Member] = field(default_factory=dict)
    framework: str | None = None
    searched_s: float | None = None
    _lost_s: float | None = None

    @property
    def workers(self) -> frozenset[int]:
        """Those whose work is that of the job; nobody where roles are not known."""
        return frozenset(pid for pid, member in self.known.items() if member.role in _WORKERS)

    def find(self, at_s: float) -> None:
        """Finds the job for the first time.

        Raises NoSuchProcess, NotPermitted, UsageError (ourselves).
        """
        self._learn(self.asked, at_s)
        for pid in self.asked:
            if pid in self.known and counters.refused(pid, self.proc_root):
                raise NotPermitted(
                    f"process {pid} may not be read by this user",
                    "run with sudo; in a container also: --cap-add SYS_PTRACE",
                )

    def read(self, at_s: float) -> dict[int, ProcessCounters]:
        """Counters of all that live, {} once the job has ended. Who was started meanwhile is found after
        another one has ended, and else after some minutes.
        """
        now = self._read()
        if len(now) < len(self.known):
            self._lost_s = at_s
        if now and self._to_be_searched(at_s):
            anchors = [pid for pid in self.asked if pid in now] or sorted(now)[:1]
            # What ends while it is searched is found missing by the next reading.
            with contextlib.suppress(NoSuchProcess):
                self._learn(anchors, at_s)
            return self._read()
        return now

    def _to_be_searched(self, at_s: float) -> bool:
        """A launcher takes a moment to start the next ones, or a minute; and who has just been forked does not show yet
        what it is. So from a loss on it is searched ever less often: whoever comes is found within twice the time.
        """
        if self.searched_s is None or at_s - self.searched_s > _REFRESH_S:
            return True
        return self._lost_s is not None and at_s - self.searched_s >= self.searched_s - self._lost_s

    def _read(self) -> dict[int, ProcessCounters]:
        read = counters.read_all(self.known, self.proc_root)
        return {pid: each for pid, each in read.items() if each.start_ticks == self.known[pid].start_ticks}

    def _learn(self, pids: Sequence[int], at_s: float) -> None:
        self.searched_s = at_s
        with GuardedReader(TASKS, proc_root=self.proc_root) as reader:
            found = begin(pids, reader, self.proc_root)
            identities = roles.assign(found.group, found.table)
        self.framework = found.group.framework or self.framework
        self.known = {
            pid: Member(
                pid=pid,
                start_ticks=found.table[pid].start_ticks,
                role=identities[pid].role,
                rank=roles.agreed_rank(identities[pid]),
                title=" ".join(found.group.arguments.get(pid, ())) or found.table[pid].comm,
            )
            for pid in found.group.members
            if found.table[pid].state not in "ZX"
        }
