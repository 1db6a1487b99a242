"""Whether a look can be felt inside the process that is looked at: a thread of it ticks, with and without looks."""

from __future__ import annotations

import mmap
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyhangtrace import _native

# As struct Ticks of tests/stacks/programs/waits.cpp.
_HEAD = struct.Struct("<IIQ")
_LAST_US = 20_000
CLEAR_DEADLINE_S = 5.0
RUN_S = 0.5
LOOKS = 5  # in a run with looks


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between two ticks, in microseconds."""

    p999: float
    longest: int
    count: int


@dataclass(frozen=True, slots=True)
class Felt:
    """Alternating runs without and with looks."""

    control: tuple[Gaps, ...]
    looks: tuple[Gaps, ...]

    def quiet(self) -> bool:
        """Whether the runs with looks lie within the spread of those without."""
        return all(
            statistics.median(of(gaps) for gaps in self.looks) <= max(of(gaps) for gaps in self.control)
            for of in (lambda gaps: gaps.p999, lambda gaps: gaps.longest)
        )


class Ticker:
    """The counts a ticking thread leaves in a shared file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def close(self) -> None:
        self._memory.close()

    def clear(self) -> None:
        """Returns when the ticker has begun anew."""
        self._memory[:4] = struct.pack("<I", 1)
        deadline = time.monotonic() + CLEAR_DEADLINE_S
        while self._memory[:4] != b"\0\0\0\0":
            time.sleep(0.001)
            assert time.monotonic() < deadline, "nobody ticks"

    def read(self) -> Gaps:
        _, longest, count = _HEAD.unpack_from(self._memory)
        gaps = struct.unpack_from(f"<{_LAST_US}I", self._memory, _HEAD.size)
        beyond = count // 1000
        for gap in range(_LAST_US - 1, -1, -1):
            beyond -= gaps[gap]
            if beyond < 0:
                return Gaps(float(gap), longest, count)
        return Gaps(0.0, longest, count)


def compare(ticker: Ticker, pids: Sequence[int], *, runs: int) -> Felt:
    """Half of the runs without, half with looks at all of the job, in turn."""
    engine = _native.Engine()
    engine.capture(pids, python=True)
    control, looks = [], []
    for i in range(runs):
        ticker.clear()
        began = time.monotonic()
        for k in range(1, LOOKS + 1):
            if i % 2:
                engine.capture(pids, python=True)
            time.sleep(max(0.0, began + k * RUN_S / LOOKS - time.monotonic()))
        (looks if i % 2 else control).append(ticker.read())
    return Felt(tuple(control), tuple(looks))
