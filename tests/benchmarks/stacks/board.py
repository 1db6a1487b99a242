"""The benchmark of looks as a printed table: figures, targets, and other tools beside them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.benchmarks.stacks.measure import Looks, Times, our_looks, peer_looks, watched
from tests.benchmarks.stacks.ticker import Gaps, Ticker, compare
from tests.stacks.job import hung_job
from tests.stacks.peers import GDB, PEERS, PY_SPY, PYSTACK

FIRST_WALL_MS, FIRST_CPU_MS, REPEAT_MS, MEMORY_MB, MANY_MS = 30.0, 40.0, 8.0, 60.0, 80.0
LESS_CPU = 100.0
MANY_THREADS = 200
TICKER_RUNS = 40  # half of them with looks
WATCHED_RUNS = 3  # watching takes a CPU, so these are not the ones measured


def board(*, runs: int = 20, peer_runs: int = 3) -> Iterator[str]:
    """Lines of the whole benchmark, as they come."""
    with hung_job() as job:
        ours = our_looks(job.pids, runs=runs)
        with watched(job.pids) as stops:
            our_looks(job.pids, runs=WATCHED_RUNS)
        yield f"8 gloo ranks, {ours.seen['threads']} threads, {ours.seen['frames']} frames: native, Python, merged"
        yield _times("hangtrace, first look", ours.first, ours.memory, stops[0].total_s)
        yield _times("hangtrace, repeated", ours.repeat, ours.memory, stops[0].total_s)
        yield from _targets(ours, stopped=stops[0].total_s > 0 or stops[0].traced)
        for peer in PEERS:
            if (why := peer.missing()) is not None:
                yield f"{peer.name:28} not measured: {why}"
                continue
            with watched(job.pids) as stops:
                times, memory = peer_looks(peer, job.pids, runs=1 if peer is GDB else peer_runs)
            less = times.cpu_min / ours.first.cpu_min
            yield _times(peer.name, times, memory, stops[0].longest_s) + f"  {less:6.0f} x our CPU"
            if peer in (PY_SPY, PYSTACK):
                yield _target(f"a look takes less CPU than {peer.name}", less, "x", LESS_CPU, at_least=True)
    yield from many_threads(runs=runs)
    yield from ticker()


def many_threads(*, runs: int = 20) -> Iterator[str]:
    """Lines about 8 ranks with 200 threads each."""
    with hung_job(further=MANY_THREADS - 47) as job:
        ours = our_looks(job.pids, runs=runs)
    yield f"8 gloo ranks, {ours.seen['threads']} threads, {ours.seen['frames']} frames"
    yield _times("hangtrace, first look", ours.first, ours.memory, 0.0)
    yield _times("hangtrace, repeated", ours.repeat, ours.memory, 0.0)
    yield _target("first look, wall", ours.first.wall_min * 1e3, "ms", MANY_MS)
    yield from _complete(ours)


def ticker(*, runs: int = TICKER_RUNS) -> Iterator[str]:
    """Lines about a thread that ticks in a process that is looked at."""
    with hung_job(ticking=True) as job:
        assert job.ticks is not None
        ticks = Ticker(job.ticks)
        try:
            felt = compare(ticks, job.pids, runs=runs)
        finally:
            ticks.close()
    yield f"a thread of rank 0 that ticks every 50 us, {len(felt.looks)} runs each"
    yield _gaps("without looks", felt.control)
    yield _gaps("with 5 looks", felt.looks)
    yield f"  {'ok' if felt.quiet() else 'MISS':4} looks are within the spread of the runs without"


def _targets(ours: Looks, *, stopped: bool) -> Iterator[str]:
    yield _target("first look, wall", ours.first.wall_min * 1e3, "ms", FIRST_WALL_MS)
    yield _target("first look, CPU", ours.first.cpu_min * 1e3, "ms", FIRST_CPU_MS)
    yield _target("repeated look, wall", ours.repeat.wall_min * 1e3, "ms", REPEAT_MS)
    yield _target("peak memory", ours.memory / 1e6, "MB", MEMORY_MB)
    yield _target("stops seen", float(stopped), "", 0.0)
    yield from _complete(ours)


def _complete(ours: Looks) -> Iterator[str]:
    share = 100 * ours.seen["complete"] / ours.seen["threads"]
    yield _target("complete stacks", share, "%", 99.5, at_least=True)
    merged = 100 * ours.seen["merged"] / ours.seen["python"]
    yield _target("Python frames merged", merged, "%", 99.5, at_least=True)


def _target(what: str, value: float, unit: str, limit: float, *, at_least: bool = False) -> str:
    reached = value >= limit if at_least else value <= limit
    sign = ">=" if at_least else "<="
    return f"  {'ok' if reached else 'MISS':4} {what:44} {value:8.1f} {sign} {limit:g} {unit}"


def _times(what: str, times: Times, memory: int, stopped_s: float) -> str:
    return (
        f"{what:28} wall {times.wall_min * 1e3:8.1f} ({times.wall_median * 1e3:8.1f})"
        f"  CPU {times.cpu_min * 1e3:8.1f} ({times.cpu_median * 1e3:8.1f}) ms"
        f"  {memory / 1e6:5.0f} MB  stop {stopped_s * 1e3:6.1f} ms  n={len(times.wall)}"
    )


def _gaps(what: str, gaps: tuple[Gaps, ...]) -> str:
    p999 = sorted(gap.p999 for gap in gaps)
    longest = sorted(gap.longest for gap in gaps)
    return (
        f"  {what:16} p99.9 {p999[0]:6.0f} .. {statistics.median(p999):6.0f} .. {p999[-1]:6.0f} us"
        f"   longest {longest[0]:6d} .. {statistics.median(longest):6.0f} .. {longest[-1]:6d} us"
    )
