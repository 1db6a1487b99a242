"""What processes have done so far, in counters that cost next to nothing, and the pace that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Pace(str, Enum):
    """How a process goes on, by its counters alone."""

    WORKING = "working"  # it reads, writes or touches new memory
    SPINNING = "spinning"  # it uses the CPU, and nothing else comes of it
    QUIET = "quiet"  # it uses no more CPU than heartbeats and watchdogs do


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounters:
    """One reading of one process: sums over all its threads since it started.

    `io_bytes` are those that system calls have read and written, None where that may not be seen. `start_ticks` tells
    a process from a later one of the same number.
    """

    pid: int
    start_ticks: int
    state: str
    threads: int
    cpu_s: float
    minor_faults: int
    major_faults: int
    rss: int | None = None
    io_bytes: int | None = None

    @property
    def ended(self) -> bool:
        """A zombie whose threads have all ended counts no further."""
        return self.state in "ZX" and self.threads <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A process and since when it has done no work.

    `anchor` is the reading from which its work is counted, `last` the one before the next, at `last_s`. `cpu_share` is
    a running mean, of a CPU.
    """

    anchor: ProcessCounters
    anchor_s: float
    last: ProcessCounters
    last_s: float
    since_s: float
    pace: Pace
    cpu_share: float = 0.0
