"""Stacks with a weight: what every format that draws stacks is made from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyhangtrace.model.stacks import Frame


class Unit(str, Enum):
    """What weights are."""

    THREADS = "threads"
    SECONDS = "seconds"
    FAULTS = "faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedStack:
    """One stack of one thread, outermost frame first. `before` is its weight in an earlier profile, where two are
    compared.
    """

    pid: int
    tid: int
    rank: int | None
    thread: str
    frames: tuple[Frame, ...]
    weight: float
    before: float | None = None
    service: str | None = None  # the rule that says that the thread only serves


@dataclass(frozen=True, slots=True, kw_only=True)
class StackProfile:
    """All weighted stacks of one picture; `title` says what the weights mean, `compared` that it has two of them."""

    title: str
    unit: Unit
    stacks: tuple[WeightedStack, ...]
    compared: bool = False

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return sum(stack.weight for stack in self.stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """What one process did in the window; None: not known."""

    pid: int
    rank: int | None
    label: str
    futex_waits: int
    futex_wait_s: float
    longest_wait_s: float
    longest_thread: str
    longest_open: bool  # it goes on
    waker: str
    minor_faults: int
    major_faults: int
    cpu_s: float | None
    off_cpu_s: float | None
    io_wait_s: float | None
    block_bytes: int
    collectives_per_s: float | None
    last_collective: str
    calls: str = ""  # of functions watched by uprobes, those with the most time


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSummary:
    """The table of a recording and what has to be said beside it."""

    rows: tuple[SummaryRow, ...]
    notes: tuple[str, ...] = ()
