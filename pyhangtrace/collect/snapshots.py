"""Pictures of all threads again and again within a window, as far apart as their cost allows, kept small."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyhangtrace.collect import stacks
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.collect.stacks import CaptureOptions
from pyhangtrace.model.kinds import StackFrom
from pyhangtrace.model.recording import FaultCount, StackSample
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

_SHARE = 10  # at most one part in so many of the time is spent on pictures
_CLOSEST_S = 0.05
_DEADLINE_S = 1.0
MAX_SAMPLES = 200_000


@dataclass(slots=True, kw_only=True)
class Snapshots:
    """What was seen so far. `first` and `last` are when each thread was seen, with its scheduler's counters then.

    Without `running`, threads that run have no stack: to sample one costs it, and all switches of threads for a second
    more, some hundred nanoseconds each.
    """

    reader: GuardedReader
    pids: Sequence[int]
    opened_at: float  # time.monotonic() at which the probes began to count
    running: bool = False
    proc_root: str = PROC
    taken: int = 0
    samples: list[StackSample] = field(default_factory=list)
    fault_counts: list[FaultCount] = field(default_factory=list)
    first: dict[tuple[int, int], tuple[float, ThreadSample]] = field(default_factory=dict)
    last: dict[tuple[int, int], tuple[float, ThreadSample]] = field(default_factory=dict)
    _known: dict[tuple[Frame, ...], int] = field(default_factory=dict)
    left_out: int = 0

    @property
    def stacks(self) -> tuple[tuple[Frame, ...], ...]:
        """All different stacks, by the numbers that samples have."""
        return tuple(self._known)

    def until(self, end: float, *, stop: threading.Event) -> None:
        """Takes pictures until `end` (time.monotonic()), or until `stop` is set: one at once, and one as late as
        possible.
        """
        cost = self.take()
        while not stop.is_set():
            left = end - time.monotonic()
            pause = max(_CLOSEST_S, (_SHARE - 1) * cost)
            if left <= cost:
                break
            stop.wait(min(pause, max(left - cost, 0.0)))
            cost = max(self.take(), 0.5 * cost)

    def take(self) -> float:
        """One picture; the seconds it took."""
        began = time.monotonic()
        pictures = stacks.collect(
            self.reader,
            self.pids,
            options=CaptureOptions(running=self.running),
            deadline_s=_DEADLINE_S,
            proc_root=self.proc_root,
        )
        at_s = round(began - self.opened_at, 6)
        self.taken += 1
        for pid, shown in pictures.items():
            self._count_faults(at_s, pid, shown.threads)
            for thread in shown.threads:
                self.first.setdefault((pid, thread.tid), (at_s, thread))
                self.last[pid, thread.tid] = (at_s, thread)
                self._keep(at_s, thread)
        return time.monotonic() - began

    def _count_faults(self, at_s: float, pid: int, threads: Sequence[ThreadSample]) -> None:
        if threads:
            self.fault_counts.append(
                FaultCount(
                    at_s=at_s,
                    pid=pid,
                    minor=sum(thread.minor_faults for thread in threads),
                    major=sum(thread.major_faults for thread in threads),
                )
            )

    def _keep(self, at_s: float, thread: ThreadSample) -> None:
        if len(self.samples) >= MAX_SAMPLES:
            self.left_out += 1
            return
        frames = thread.frames or thread.unmerged_native
        # A program counter on its way differs from picture to picture, the place in the program does not.
        number = self._known.setdefault(frames, len(self._known))
        self.samples.append(
            StackSample(
                at_s=at_s,
                pid=thread.pid,
                tid=thread.tid,
                stack=number,
                state="R" if thread.running else thread.state,
                syscall=thread.syscall,
                wchan=thread.wchan,
                address=thread.lock.uaddr if thread.lock is not None else None,
                slices=thread.slices,
                whole=thread.stack_complete and not thread.moved and not thread.unmerged_python,
                # Any other rung reads a thread that has lost the CPU since, and may sleep by then.
                on_cpu=thread.running and thread.stack_from is StackFrom.PERF,
            )
        )
