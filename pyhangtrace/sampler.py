"""Follows a job for the live view by what is cheap to read, and counts who wakes whom where eBPF is there.

No memory of the job is read. `beat` only asks whether the threads that matter have moved; `read` gives all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyhangtrace.collect import marks, probes
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.members import Members
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.live import Followed, Reading, ThreadKey, ThreadMark, Woken

_MAX_THREADS = 256
# A window costs half a second of CPU, most of it bcc's compiler.
_WAKERS_S = 300.0
_ANSWER_S = 1.0
_KEPT_PAIRS = 4096


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Close it. `asked` are the processes the user named."""

    asked: tuple[int, ...]
    bpf: bool = True
    proc_root: str = PROC
    members: Members = field(init=False)
    threads: dict[ThreadKey, ThreadMark] = field(default_factory=dict)
    wakers_problem: str | None = None
    _more: tuple[ThreadKey, ...] = ()
    _woken: dict[tuple[int, int], int] = field(default_factory=dict)
    _window: probes.ProbeRun | None = None
    _window_ends_s: float = 0.0
    _windows_over: bool = False

    def start(self, at_s: float) -> None:
        """Finds the job. Raises NoSuchProcess, NotPermitted, UsageError."""
        self.members = Members(asked=self.asked, proc_root=self.proc_root)
        self.members.find(at_s)

    def follow(self, keys: Iterable[ThreadKey]) -> None:
        """Threads to follow beside the main ones; those of before are kept, as long as there is room."""
        self._more = tuple(dict.fromkeys((*keys, *(key for key in self._more if key in self.threads))))[
            :_MAX_THREADS
        ]

    def beat(self, at_s: float) -> None:
        """Asks the threads that are followed whether they have moved."""
        self.threads = marks.moved(self.threads, at_s, self.proc_root)

    def read(self, at_s: float) -> Reading:
        """Everything that is cheap."""
        counters = self.members.read(at_s)
        mains = [(pid, pid) for pid in list(counters)[:_MAX_THREADS]]
        keys = dict.fromkeys((*mains, *(key for key in self._more if key[0] in counters)))
        self.threads = marks.read(keys, self.threads, at_s, self.proc_root)
        workers = self.members.workers or set(counters)
        return Reading(
            at_s=at_s,
            processes={
                pid: Followed(
                    pid=pid,
                    rank=member.rank,
                    role=member.role,
                    title=member.title,
                    works=pid in workers,
                )
                for pid, member in self.members.known.items()
                if pid in counters
            },
            counters=counters,
            threads=dict(self.threads),
        )

    # -- who wakes whom ----------------------------------------------------------------------------------------

    def count_wakers(self, at_s: float) -> None:
        """Goes on counting: takes what a window that is over has counted, and opens the next one."""
        if not self.bpf or self._windows_over:
            return
        if self._window is not None and at_s >= self._window_ends_s:
            self.take_wakers()
        if self._window is None and not self._windows_over:
            pids = sorted(self.members.workers or self.members.known)
            self._window = probes.start(pids, window_s=_WAKERS_S)
            self._window_ends_s = at_s + _WAKERS_S

    def take_wakers(self) -> None:
        """Ends the window and takes what it has counted."""
        window, self._window = self._window, None
        if window is None:
            return
        counted = window.finish(deadline_s=_ANSWER_S, minimum_s=0.0)
        window.close(patience_s=0.0)
        if counted.status.state in (SourceState.ABSENT, SourceState.REFUSED, SourceState.FAILED):
            self._windows_over = True
            self.wakers_problem = counted.status.reason
            return
        for process in counted.processes:
            for waker in process.evidence.wakers:
                if waker.woke is not None:
                    pair = (waker.tid, waker.woke)
                    self._woken[pair] = self._woken.get(pair, 0) + waker.count
        if len(self._woken) > _KEPT_PAIRS:
            most = sorted(self._woken.items(), key=lambda item: -item[1])[:_KEPT_PAIRS]
            self._woken = dict(most)

    def counts_wakers(self) -> bool:
        """Whether wake-ups are counted now."""
        return self._window is not None and self._window.wait_until_open(deadline_s=0.0)

    @property
    def woken(self) -> tuple[Woken, ...]:
        """All that was counted so far, most first."""
        return tuple(
            Woken(waker=waker, woken=woken, count=count)
            for (waker, woken), count in sorted(self._woken.items(), key=lambda item: (-item[1], item[0]))
        )

    def close(self) -> None:
        """Nothing stays attached."""
        if self._window is not None:
            self._window.close(patience_s=0.0)
            self._window = None
