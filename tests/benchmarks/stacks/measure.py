"""What looks at a hung job take: ours, and those of other tools in the same run."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.stacks.peers import Peer, run

FRESH = Path(__file__).parent / "fresh.py"
REPOSITORY = Path(__file__).parents[3]
REPEATS = 5  # later looks of each fresh process
DEADLINE_S = 120.0
SAMPLE_S = 0.0005


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of many runs; the minimum is what it takes, the rest is what else the machine did."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def wall_min(self) -> float:
        return min(self.wall)

    @property
    def cpu_min(self) -> float:
        return min(self.cpu)

    @property
    def wall_median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)


@dataclass(frozen=True, slots=True)
class Looks:
    """Our looks. `seen` holds counts of the last one: threads, complete, moved, frames, python, merged."""

    first: Times
    repeat: Times
    memory: int
    seen: dict[str, int]


@dataclass(frozen=True, slots=True)
class Stops:
    """Longest and summed time in which the main thread of a process was found stopped or traced, in seconds."""

    longest_s: float
    total_s: float
    traced: bool


@dataclass(slots=True)
class _Seen:
    total: float = 0.0
    longest: float = 0.0
    since: dict[int, float] = field(default_factory=dict)
    traced: bool = False


def our_looks(pids: Sequence[int], *, runs: int) -> Looks:
    """First looks by fresh processes, and repeated ones of theirs."""
    results: list[dict[str, Any]] = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, str(FRESH), str(REPEATS), *map(str, pids)],
            env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    first = [result["first"] for result in results]
    repeats = [times for result in results for times in result["repeats"]]
    last = results[-1]
    return Looks(
        first=Times(tuple(wall for wall, _ in first), tuple(cpu for _, cpu in first)),
        repeat=Times(tuple(wall for wall, _ in repeats), tuple(cpu for _, cpu in repeats)),
        memory=max(result["memory"] for result in results),
        seen={name: last[name] for name in ("threads", "complete", "moved", "frames", "python", "merged")},
    )


def peer_looks(peer: Peer, pids: Sequence[int], *, runs: int) -> tuple[Times, int]:
    """One process after the other, `runs` times; and the peak memory of the largest call in bytes."""
    wall, cpu, memory = [], [], 0
    for _ in range(runs):
        calls = [run(peer, pid) for pid in pids]
        wall.append(sum(call.wall_s for call in calls))
        cpu.append(sum(call.cpu_s for call in calls))
        memory = max(memory, *(call.memory for call in calls))
    return Times(tuple(wall), tuple(cpu)), memory


@contextlib.contextmanager
def watched(pids: Sequence[int]) -> Iterator[list[Stops]]:
    """Samples whether the main threads are stopped or traced; the list has the answer once the block is left."""
    seen = _Seen()
    end = threading.Event()
    thread = threading.Thread(target=_watch, args=(pids, seen, end), daemon=True)
    result: list[Stops] = []
    thread.start()
    try:
        yield result
    finally:
        end.set()
        thread.join()
    result.append(Stops(seen.longest, seen.total, seen.traced))


def _watch(pids: Sequence[int], seen: _Seen, end: threading.Event) -> None:
    with contextlib.ExitStack() as stack:
        files = {
            pid: stack.enter_context(Path(f"/proc/{pid}/task/{pid}/status").open("rb", buffering=0))
            for pid in pids
        }
        last = False
        while not last:
            last = end.wait(SAMPLE_S)
            for pid, file in files.items():
                file.seek(0)
                head = file.read(512)
                now = time.perf_counter()
                state = head[head.index(b"State:\t") + 7 : head.index(b"State:\t") + 8]
                tracer = head[head.index(b"TracerPid:\t") + 11 :].split(b"\n", 1)[0]
                seen.traced |= tracer != b"0"
                if state in b"Tt" and not last:
                    seen.since.setdefault(pid, now)
                elif (since := seen.since.pop(pid, None)) is not None:
                    seen.total += now - since
                    seen.longest = max(seen.longest, now - since)
