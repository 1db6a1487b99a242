"""Readings made by hand, of the job of `tests/unit/render/sample.py`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pyhangtrace.live import ticks
from pyhangtrace.live.looking import Looked
from pyhangtrace.live.ticks import Held
from pyhangtrace.model.codec import pack
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.live import Followed, Reading, ThreadMark, Tick, Woken
from pyhangtrace.model.pace import ProcessCounters
from tests.unit.render import sample

PIDS = tuple(4240 + rank for rank in range(8))
LOOKED_S = 100.0


def counters(pid: int, *, cpu_s: float = 0.0, faults: int = 0, state: str = "S") -> ProcessCounters:
    return ProcessCounters(
        pid=pid,
        start_ticks=1,
        state=state,
        threads=2,
        cpu_s=cpu_s,
        minor_faults=faults,
        major_faults=0,
        rss=3 << 30,
    )


def mark(moved_s: float = 20.0, *, state: str = "S", syscall: str | None = "futex") -> ThreadMark:
    return ThreadMark(
        state=state, slices=5, run_ns=5, moved_s=moved_s, seen_s=0.0, syscall=syscall, wchan=None
    )


def reading(
    at_s: float, *, moved: Collection[int] = (), gone: Collection[int] = (), cpu_s: float = 0.0
) -> Reading:
    """All ranks rest since 20 s but those who moved just now."""
    here = [pid for pid in PIDS if pid not in gone]
    return Reading(
        at_s=at_s,
        processes={
            pid: Followed(pid=pid, rank=pid - 4240, role=Role.RANK, title=f"rank {pid}", works=True)
            for pid in here
        },
        counters={pid: counters(pid, cpu_s=cpu_s if pid in moved else 0.0) for pid in here},
        threads={(pid, pid): mark(at_s if pid in moved else 20.0) for pid in here},
    )


def held() -> Held:
    return ticks.hold(sample.report(), at_s=LOOKED_S, settled=True)


def tick(
    now: Reading, before: Reading | None = None, *, woken: tuple[Woken, ...] = (), number: int = 1
) -> Tick:
    look = held()
    return Tick(
        number=number,
        at="2026-01-02T03:04:05+00:00",
        framework="sglang",
        rows=ticks.rows(before, now, look),
        verdict=ticks.verdict(now, look),
        looking=False,
        still_s=None,
        wakers=ticks.waker_notes(look, list(now.threads), woken),
    )


@dataclass
class MadeFollower:
    """Stands for a follower: always the same tick, or those that are put into `coming`."""

    shown: Tick
    held: Held | None = field(default_factory=held)
    coming: list[Tick] = field(default_factory=list)
    looks: int = 0
    last: Looked | None = field(
        default_factory=lambda: Looked(
            report=sample.report(), bundle=pack(sample.result().evidence), problem=None, cpu_s=0.0
        )
    )

    def show(self) -> Tick:
        return self.shown

    def tick(self) -> Tick:
        if self.coming:
            self.shown = self.coming.pop(0)
        return self.shown

    def beat(self) -> None:
        pass

    def take(self) -> None:
        return None

    def look(self) -> None:
        self.looks += 1
