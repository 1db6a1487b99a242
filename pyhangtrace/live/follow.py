"""The order of the live view: read what is cheap, look when somebody stands still, and make ticks of both."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from pyhangtrace.live import suspicion, ticks
from pyhangtrace.live.looking import Looked, Looking
from pyhangtrace.live.suspicion import Suspicion
from pyhangtrace.live.ticks import Held
from pyhangtrace.model.kinds import WELL, State
from pyhangtrace.model.live import Reading, ThreadKey, Tick
from pyhangtrace.sampler import Sampler

BEAT_S = 0.25
TICK_S = 1.0
# A straggler is given three seconds before it is called what it seems to be; the first word on a hang comes before.
_FIRST_WORD_S = 2.0
_LEAST_WINDOW_S = 0.3
_SETTLED_S = 3.0
_CONFIRM_S = 1.0
_LONGEST_S = 60.0
_UNSURE = frozenset({State.BUSY, State.SLOW, State.UNKNOWN})


@dataclass(slots=True, kw_only=True)
class Follower:
    """Follows the job of some processes. `start` it, then `beat`, `tick` and `take` from one loop, and close it."""

    asked: tuple[int, ...]
    bpf: bool = True
    sampler: Sampler = field(init=False)
    looking: Looking = field(init=False)
    held: Held | None = None
    last: Looked | None = None
    readings: tuple[Reading | None, Reading | None] = (None, None)
    problem: str | None = None
    _suspicion: Suspicion = field(default_factory=Suspicion)
    _wanted: bool = True
    _quick: bool = False
    _began_s: float = 0.0
    _confirm_s: float | None = None
    _number: int = 0
    _patience_s: float = _CONFIRM_S

    def start(self) -> None:
        """Finds the job and takes the first reading. Raises NoSuchProcess, NotPermitted, UsageError."""
        now_s = time.monotonic()
        self.sampler = Sampler(asked=self.asked, bpf=self.bpf)
        self.sampler.start(now_s)
        self.looking = Looking()
        self.readings = (None, self.sampler.read(now_s))

    def look(self) -> None:
        """Wants a whole look as soon as one can be had."""
        self._wanted = True

    def beat(self) -> None:
        """A few times a second: has anybody stopped to move?"""
        now_s = time.monotonic()
        self.sampler.beat(now_s)
        self._suspicion = suspicion.observe(self._suspicion, self.sampler.threads, now_s)
        reading = self.readings[1]
        if self.looking.busy() or reading is None or not reading.processes:
            return
        workers = {pid for pid, process in reading.processes.items() if process.works}
        resting = suspicion.suspects(self._suspicion, workers)
        # A first word is settled in any case. What stays unsure may be so because the machine is busy: looks that cost
        # more than others, and give no more each time.
        confirms = (
            self._confirm_s is not None
            and now_s >= self._confirm_s
            and (not self._settled() or suspicion.can_pay(self._suspicion, workers))
        )
        if self._wanted or confirms:
            self._begin(now_s, max_window_s=_SETTLED_S)
        elif suspicion.wants_look(self._suspicion, workers):
            quick_s = max(_LEAST_WINDOW_S, _FIRST_WORD_S - max(resting.values())) if resting else _SETTLED_S
            self._begin(now_s, max_window_s=quick_s, quick=bool(resting))
        if self.looking.busy() and resting:
            # Who woke whom until now is what counts; the look goes on beside.
            self.sampler.take_wakers()
        elif self.held is not None and self._somebody_moves(workers, now_s):
            self.sampler.count_wakers(now_s)

    def _begin(self, now_s: float, *, max_window_s: float, quick: bool = False) -> None:
        reading = self.readings[1]
        assert reading is not None
        pids = tuple(pid for pid in self.asked if pid in reading.processes) or (min(reading.processes),)
        self._wanted, self._quick, self._began_s, self._confirm_s = False, quick, now_s, None
        self._suspicion = suspicion.begun(self._suspicion)
        self.looking.begin(pids, max_window_s=max_window_s, bpf=self.bpf and not quick)

    def take(self) -> Looked | None:
        """The look that is done by now, if any; call it when `looking.fd` is readable."""
        looked = self.looking.take()
        if looked is None:
            return None
        now_s = time.monotonic()
        self._suspicion = suspicion.paid(self._suspicion, looked.cpu_s)
        self.problem = looked.problem
        if looked.report is not None:
            state = looked.report.verdict.state
            settled = not self._quick or state in WELL or looked.report.window_s >= _SETTLED_S
            self.held = ticks.hold(looked.report, at_s=now_s, settled=settled)
            self.last = looked
            self.sampler.follow(ticks.threads_that_matter(looked.report))
            # Those that are new to us have to be met once, so that it shows when they move.
            self.readings = (self.readings[0], self.sampler.read(now_s))
            self._confirm_s = self._next_look_s(state, now_s, settled=settled)
        return looked

    def _next_look_s(self, state: State, now_s: float, *, settled: bool) -> float | None:
        """When to look again though nobody has moved: what is not sure yet may become so."""
        if not settled:
            return now_s + _CONFIRM_S
        if state not in _UNSURE:
            self._patience_s = _CONFIRM_S
            return None
        self._patience_s = min(_LONGEST_S, 2 * self._patience_s)
        return now_s + self._patience_s

    def _settled(self) -> bool:
        return self.held is not None and self.held.settled

    def tick(self) -> Tick:
        """Once a second: everything that is cheap, and what follows from it."""
        now_s = time.monotonic()
        reading = self.sampler.read(now_s)
        self.readings = (self.readings[1], reading)
        self._number += 1
        return self.show()

    def show(self) -> Tick:
        """The same again, with a look that came meanwhile."""
        before, now = self.readings
        assert now is not None
        workers = {pid for pid, process in now.processes.items() if process.works}
        resting = suspicion.suspects(self._suspicion, workers)
        verdict = ticks.verdict(now, self.held)
        if (
            verdict is not None
            and verdict.moved_on
            and not self.looking.busy()
            and self._suspicion.credit_s > 0
        ):
            self._wanted = True
        return Tick(
            number=self._number,
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            framework=self.sampler.members.framework,
            rows=ticks.rows(before, now, self.held),
            verdict=verdict,
            looking=self.looking.busy(),
            still_s=round(max(resting.values()), 1) if resting else None,
            counts_wakers=self.sampler.counts_wakers(),
            wakers=ticks.waker_notes(self.held, self._resting(now), self.sampler.woken),
            notes=self._notes(),
        )

    def _somebody_moves(self, workers: Collection[int], now_s: float) -> bool:
        return any(
            key[0] in workers and now_s - mark.moved_s < TICK_S for key, mark in self.sampler.threads.items()
        )

    def _resting(self, now: Reading) -> list[ThreadKey]:
        """Threads that have rested since before the last look, for which its waits hold."""
        return [key for key, mark in now.threads.items() if mark.moved_s < self._began_s]

    def _notes(self) -> tuple[str, ...]:
        found: Sequence[str | None] = (
            f"the last look failed: {self.problem}" if self.problem else None,
            f"who wakes whom is not counted: {self.sampler.wakers_problem}"
            if self.sampler.wakers_problem
            else None,
        )
        return tuple(each for each in found if each is not None)

    @property
    def ended(self) -> bool:
        """Whether nobody of the job is left."""
        return self.readings[1] is not None and not self.readings[1].processes

    def close(self) -> None:
        """Ends what was started; nothing stays attached."""
        self.looking.close()
        self.sampler.close()
