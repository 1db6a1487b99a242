"""What was spent between two looks."""

from __future__ import annotations

from pathlib import Path

from pyhangtrace.collect import spent
from pyhangtrace.collect.spent import Spent
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import write


def look(at_s: float, *run_ns: tuple[int, int, int | None]) -> Look:
    threads = tuple(ThreadSample(pid=pid, tid=tid, comm="x", run_ns=ns) for pid, tid, ns in run_ns)
    return Look(at_s=at_s, threads=threads)


def test_cpu_is_that_of_threads_in_both_looks() -> None:
    first = look(0.0, (7, 7, 1_000), (7, 8, None), (9, 9, 5_000_000))
    last = look(0.1, (7, 7, 2_001_000), (7, 8, 3_000), (7, 10, 9_000_000), (9, 9, 5_000_000))
    assert spent.cpu_between(first, last) == {7: 0.002, 9: 0.0}


def test_reads_and_time_under_a_quota(tmp_path: Path) -> None:
    group = tmp_path / "group"
    processes = [ProcessFacts(pid=7, cpu_cgroup=str(group)), ProcessFacts(pid=8)]
    write(
        tmp_path,
        {"7/io": "read_bytes: 4096\n", "8/io": "read_bytes: 1\n", "group/cpu.stat": "throttled_usec 1000\n"},
    )
    before = spent.counters(processes[:1], str(tmp_path))
    write(tmp_path, {"7/io": "read_bytes: 5000\n", "group/cpu.stat": "throttled_usec 251000\n"})
    looks = [look(0.0), look(0.1)]
    assert spent.since(before, processes, looks[:1], str(tmp_path)) == {}
    found = spent.since(before, processes, looks, str(tmp_path))
    # Of the second one nothing is known from before.
    assert found == {7: Spent(read_bytes=904, throttled_s=0.25)}


def test_what_ended_meanwhile_is_not_known(tmp_path: Path) -> None:
    process = ProcessFacts(pid=7)
    write(tmp_path, {"7/io": "read_bytes: 4096\n"})
    before = spent.counters([process], str(tmp_path))
    (tmp_path / "7" / "io").unlink()
    assert spent.since(before, [process], [look(0.0), look(0.1)], str(tmp_path)) == {7: Spent()}
