"""What reading memory takes, beside other ways to read it, and what the target feels. `make bench` prints it."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace import _native
from pyhangtrace.collect import exact_memory, processes
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.procfs import fields, kilobytes, read_text
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.kinds import MemoryMode
from pyhangtrace.model.memory import ExactMemory
from tests.benchmarks.memory.measure import (
    MANY_MAPPINGS,
    MAPS_FILE,
    TORCH_RANK,
    built,
    drainer,
    in_turns,
    program,
    segment,
    started,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

psutil = pytest.importorskip("psutil", reason="psutil, the peer, is not installed")

MIB = 1 << 20
WORKERS = 8
SEGMENT = 4096 * MIB
SMALL_SEGMENT = 1024 * MIB


def said(what: str, ours: float, peer: float, target: float) -> float:
    """Prints a line, and gives how many times longer the peer takes. A busy machine misses targets."""
    ratio = peer / ours
    verdict = "ok" if ratio >= target else "MISS"
    print(
        f"\n{what:52} {ours * 1e3:9.2f} ms  {peer * 1e3:9.2f} ms  {ratio:7.2f}x  (>= {target:g}x: {verdict})",
        flush=True,
    )
    return ratio


@pytest.mark.parametrize(
    ("what", "source", "arguments", "rounds", "least"),
    [
        ("5,000 mappings", MANY_MAPPINGS, ("5000",), 15, 5.0),
        ("50,000 mappings", MANY_MAPPINGS, ("50000",), 5, 5.0),
        ("a torch rank", TORCH_RANK, (), 15, 2.0),
    ],
)
def test_parsing_smaps(
    tmp_path: Path, what: str, source: str, arguments: tuple[str, ...], rounds: int, least: float
) -> None:
    if source is TORCH_RANK:
        pytest.importorskip("torch")
    drain = drainer(tmp_path)
    with program(source, *arguments) as pid:
        process = psutil.Process(pid)
        ways = {
            "read": lambda: drain(f"/proc/{pid}/smaps"),
            "ours": lambda: _native.smaps(pid),
        }
        # By themselves: psutil's many objects come and go, after which the heap has to be faulted in anew.
        alone = in_turns(ways, rounds=2 * rounds)
        taken = in_turns(
            {
                **ways,
                "rollup": lambda: _native.smaps_rollup(pid),
                "psutil": lambda: process.memory_maps(grouped=False),
            },
            rounds=rounds,
        )
    # Both are what the kernel takes, and a little: where that is pages, no reader is faster than another.
    assert said(f"{what}: smaps, beside a plain read", alone["ours"], alone["read"], 1 / 1.10) > 1 / 1.5
    said(f"{what}: a plain read, beside psutil.memory_maps", taken["read"], taken["psutil"], least)
    assert said(f"{what}: smaps, beside psutil.memory_maps", taken["ours"], taken["psutil"], least) > 1
    # What a report reads of a process whose page tables are short.
    said(f"{what}: rollup, beside psutil.memory_maps", taken["rollup"], taken["psutil"], least)


@contextlib.contextmanager
def workers(path: Path) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(program(MAPS_FILE, str(path))) for _ in range(WORKERS)]


@contextlib.contextmanager
def both_cpus() -> Iterator[None]:
    """What starts within runs before everybody else, as on a machine that has its CPUs free: two threads at once take
    no less wall time than one where others have the second CPU.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def walk(pids: list[int], at_a_time: int) -> tuple[ExactMemory, float, float]:
    memories = {
        pid: processes.read_memory(dict(fields(read_text(f"/proc/{pid}/status") or ""))) for pid in pids
    }
    with both_cpus(), GuardedReader(TASKS) as reader:
        reader.run(exact_memory.EXACT_TASK, [os.getpid()], ({}, 1.0, 1), deadline_s=10)  # loads numpy
        began, before = time.perf_counter(), reader.usage().cpu_s
        found, _ = exact_memory.collect(reader, memories, {}, budget_s=60.0, workers=at_a_time)
        return found, time.perf_counter() - began, reader.usage().cpu_s - before


def bracket(pids: list[int], path: Path) -> int:
    """What the O(1) side reads: sizes of each process, of the machine, and of the file that they map."""
    memories = [processes.read_memory(dict(fields(read_text(f"/proc/{pid}/status") or ""))) for pid in pids]
    mapped = dict(fields(read_text("/proc/meminfo") or ""))["Mapped"]
    resident = path.stat().st_blocks * 512
    return sum(memory.anon or 0 for memory in memories) + min(resident, int(mapped.split()[0]) * 1024)


def test_eight_workers_of_one_segment() -> None:
    available = kilobytes(dict(fields(read_text("/proc/meminfo") or ""))["MemAvailable"]) or 0
    if available < 2 * SEGMENT:
        pytest.skip(f"needs {2 * SEGMENT >> 30} GiB of memory")
    with segment(SEGMENT) as path, workers(path) as pids:
        big = psutil.Process(pids[0])
        taken = in_turns(
            {
                "read": lambda: Path(f"/proc/{pids[0]}/smaps").read_bytes(),
                "ours": lambda: _native.smaps(pids[0]),
                "psutil": lambda: big.memory_maps(grouped=False),
            },
            rounds=7,
        )
        few = said(
            f"{SEGMENT >> 20} MiB in one mapping: smaps, beside psutil", taken["ours"], taken["psutil"], 0.95
        )
        times: dict[int, list[float]] = {1: [], 2: []}
        spent: dict[int, list[float]] = {1: [], 2: []}
        exact = None
        for _ in range(5):
            for at_a_time in times:
                exact, wall, cpu = walk(pids, at_a_time)
                times[at_a_time].append(wall)
                spent[at_a_time].append(cpu)
        assert exact is not None
        said("8 walks, 2 at a time, beside one after the other", min(times[2]), min(times[1]), 1.6)
        said("the CPU time of that", min(spent[2]), min(spent[1]), 0.9)
        cheap = in_turns(
            {
                "bracket": lambda: bracket(pids, path),
                "pss": lambda: sum(_native.smaps_rollup(pid)["pss"] for pid in pids),
            },
            rounds=7,
        )
        quick = said(
            f"8 x {SEGMENT >> 20} MiB: bracket, beside the sum of PSS", cheap["bracket"], cheap["pss"], 100
        )
        low = bracket(pids, path)
        pss = sum(_native.smaps_rollup(pid)["pss"] for pid in pids)
    assert few >= 0.8
    assert quick >= 50
    assert low == pytest.approx(pss, rel=0.06)
    if exact.mode is MemoryMode.PFN_UNION and exact.frames is not None:
        outsiders = exact.frames - pss
        print(
            f"\nframes {exact.frames / MIB:.1f} MiB, PSS {pss / MIB:.1f} MiB, outsiders {outsiders / MIB:.1f} MiB, "
            f"segment {SEGMENT / MIB:.0f} MiB"
        )
        assert 0 <= outsiders < 40 * MIB


IDLE = """
    import sys
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_the_target_feels(tmp_path: Path) -> None:
    """Beside the same look at another process, which takes the same CPU time."""
    mapper = built("mapper", tmp_path)
    figures: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    ways = {
        "memory": ("memory", "-d", "0.3"),
        "memory --exact": ("memory", "-d", "0.3", "--exact"),
        "attach": ("attach", "-d", "0.3"),
    }
    with segment(SMALL_SEGMENT) as path, started([str(mapper), str(path)]) as target, program(IDLE) as other:
        assert target.stdin is not None
        assert target.stdout is not None
        for _ in range(7):
            for name, (command, *options) in ways.items():
                for whose, pid in (("another process", other), ("the target", target.pid)):
                    target.stdin.write("go 1.5\n")
                    target.stdin.flush()
                    subprocess.run(
                        [sys.executable, "-m", "pyhangtrace", command, str(pid), *options],
                        check=command == "memory",
                        capture_output=True,
                        timeout=60,
                    )
                    words = target.stdout.readline().split()
                    figures.setdefault((name, whose), []).append(
                        tuple(float(word) / 1e3 for word in words[1:])
                    )
    for (name, whose), rounds in figures.items():
        p50, p999, longest = (statistics.median(column) for column in zip(*rounds, strict=True))
        control = [one[1] for one in figures[name, "another process"]]
        beside = f"the control's: {'ok' if p999 <= max(control) else 'MISS'}" if whose == "the target" else ""
        least, most = min(one[1] for one in rounds), max(one[1] for one in rounds)
        print(
            f"\nmmap+munmap, {name:15} of {whose:15} p50 {p50:6.1f} us  p99.9 {p999:7.1f} us "
            f"({least:.1f} to {most:.1f})  longest {longest:8.1f} us  {beside}"
        )
    for name in ("memory", "attach"):
        spread = [one[1] for one in figures[name, "another process"]]
        assert statistics.median(one[1] for one in figures[name, "the target"]) <= 1.2 * max(spread), name
