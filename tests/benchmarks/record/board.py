"""What `record` costs the program it watches, and everybody else, beside other tracers in the same run.

Costs are medians of CPU time per operation over many short pieces of work, untraced ones before and after each traced
one, since a busy machine stretches wall time and changes over minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("load.c")
ROOT = Path(__file__).parents[3]
PIECES = 15
_READY_S = 60
_LONG_S = 120
BPFTRACE = """
tracepoint:syscalls:sys_enter_futex /pid == {pid}/ {{ @since[tid] = nsecs; }}
tracepoint:syscalls:sys_exit_futex /@since[tid]/ {{ @took[tid] = hist(nsecs - @since[tid]); delete(@since[tid]); }}
"""


# As on a machine that has its CPUs free, where others want this one's: each switch to them, and what they leave in the
# caches, would be counted as the cost of an operation.
FREE = ["chrt", "-r", "1"] if shutil.which("chrt") and os.geteuid() == 0 else []


class Load:
    """A program that does one kind of work on demand."""

    def __init__(self, program: Path, mode: str) -> None:
        self.process = subprocess.Popen(
            [*FREE, program, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline().split()[1])

    def cost_ns(self, pieces: int = PIECES) -> float:
        """Median of the nanoseconds of CPU time that one operation takes. `operations` counts them, `wall_ns` is the
        shortest wall time of one.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{pieces}\n")
        self.process.stdin.flush()
        costs = []
        walls = []
        self.operations = 0
        while (line := self.process.stdout.readline().split()) != ["done"]:
            costs.append(float(line[0]))
            walls.append(float(line[1]))
            self.operations += int(line[2])
        self.wall_ns = min(walls)
        return statistics.median(costs)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def load(program: Path, mode: str) -> Iterator[Load]:
    running = Load(program, mode)
    try:
        running.cost_ns(3)
        yield running
    finally:
        running.end()


@contextlib.contextmanager
def tracer(command: Sequence[str], ready: str | None, pid: int) -> Iterator[int]:
    """Runs a tracer, from when it is attached on; yields its process id. `ready`: the beginning of what it says on
    standard error then, None: it holds perf events, or traces the process with ptrace.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*FREE, *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if ready else output,
            text=True,
        )
        try:
            if ready is not None:
                assert process.stderr is not None
                line = process.stderr.readline()
                assert line.startswith(ready), line + process.stderr.read()
            else:
                while not _attached(process.pid, pid):
                    if process.poll() is not None or time.monotonic() > began + _READY_S:
                        output.seek(0)
                        raise RuntimeError(output.read().decode(errors="replace").strip()[-300:])
                    time.sleep(0.01)
            yield process.pid
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _attached(tracer_pid: int, pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    if "TracerPid:\t0\n" not in status:
        return all(
            "TracerPid:\t0\n" not in (task / "status").read_text()
            for task in Path(f"/proc/{pid}/task").iterdir()
        )
    events = 0
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{tracer_pid}/fd"):
            with contextlib.suppress(OSError):
                events += "perf_event" in os.readlink(descriptor.path)
    return events >= 2


def cpu_s(pid: int) -> float:
    """CPU time of a process and its living descendants so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(int(child)) for child in children)


def record(pid: int, *options: str) -> tuple[list[str], str]:
    """The command line of `record`, and what it says when it counts."""
    command = [sys.executable, "-m", "pyhangtrace", "record", str(pid), "-d", str(_LONG_S), *options]
    return command, "recording "


def peers(pid: int) -> dict[str, list[str]]:
    """Command lines of other tracers, of those that are installed."""
    # Some of them look for tracefs where it need not be mounted: in a mount namespace of their own it is.
    mounted = ["unshare", "-m", "sh", "-c"]
    script = "".join(
        f"mount -t {kind} nodev {folder} 2>/dev/null; "
        for kind, folder in (("tracefs", "/sys/kernel/tracing"), ("debugfs", "/sys/kernel/debug"))
    )
    found: dict[str, list[str]] = {}
    if shutil.which("strace"):
        found["strace -c -f"] = ["strace", "-c", "-f", "-p", str(pid)]
    if shutil.which("perf"):
        found["perf trace -s"] = [*mounted, f"{script} exec perf trace -s -p {pid}"]
    if shutil.which("bpftrace"):
        found["bpftrace"] = [*mounted, f"{script} exec bpftrace -e '{BPFTRACE.format(pid=pid)}'"]
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds an operation takes while traced, and without, before and after; and what it costs the tracer."""

    traced: float
    before: float
    after: float
    tracers: float
    waited: float  # wall time that an operation takes longer

    @property
    def plain(self) -> float:
        return min(self.before, self.after)

    @property
    def ratio(self) -> float:
        return self.traced / self.plain

    @property
    def added(self) -> float:
        return self.traced - self.plain

    @property
    def whole(self) -> float:
        """What the machine spends more for an operation, the tracer's own work included."""
        return self.added + self.tracers


def measure(running: Load, command: Sequence[str], ready: str | None, pid: int) -> Cost:
    before = running.cost_ns()
    wall = running.wall_ns
    with tracer(command, ready, pid) as tracing:
        running.cost_ns(2)
        spent = cpu_s(tracing)
        traced = running.cost_ns()
        waited = running.wall_ns
        tracers = (cpu_s(tracing) - spent) * 1e9 / running.operations
    running.cost_ns(2)
    after = running.cost_ns()
    return Cost(traced, before, after, tracers, waited - min(wall, running.wall_ns))


def row(what: str, cost: Cost, most: float | None = None) -> str:
    said = (
        f"{what:44} {cost.plain:8.0f} -> {cost.traced:8.0f} ns  {cost.ratio:6.2f}x  +{cost.added:.0f} ns, "
        f"tracer {cost.tracers:.0f} ns"
    )
    return said if most is None else f"{said}   {'ok' if cost.ratio <= most else 'MISS'} (at most {most}x)"


def board() -> Iterator[str]:
    """Lines with all figures, those with a target saying `ok` or `MISS`."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "load"
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, SOURCE], check=True)
        yield from _pingpong(program)
        yield from _others(program)
        yield from _ready(program)


def _pingpong(program: Path) -> Iterator[str]:
    with load(program, "pingpong") as running:
        own = measure(running, *record(running.pid), running.pid)
        yield row("futex ping-pong, record", own, 1.6)
        yield row(
            "futex ping-pong, record --metric offcpu",
            measure(running, *record(running.pid, "--metric", "offcpu"), running.pid),
            3.0,
        )
        for name, command in peers(running.pid).items():
            try:
                cost = measure(running, command, None, running.pid)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                yield f"futex ping-pong, {name}: {error}"
                continue
            times = cost.whole / max(own.whole, 1.0)
            verdict = "" if name == "bpftrace" else f"   {'ok' if times >= 20 else 'MISS'} (at least 20x)"
            yield row(f"futex ping-pong, {name}", cost)
            yield (
                f"{'':44} adds {cost.whole:.0f} ns of CPU time in all, {times:.1f} times what record adds{verdict}; "
                f"{cost.waited:.0f} ns of wall time, {cost.waited / max(own.waited, 1.0):.1f} times"
            )


def _others(program: Path) -> Iterator[str]:
    with load(program, "fault") as running:
        yield row("page fault, record", measure(running, *record(running.pid), running.pid), 1.15)
        cost = measure(running, *record(running.pid, "--metric", "faults"), running.pid)
        yield row("page fault, record --metric faults", cost)
    with load(program, "lock") as running:
        cost = measure(running, *record(running.pid, "--uprobes", "mutex"), running.pid)
        yield row("pthread_mutex_lock, record --uprobes mutex", cost)
    with load(program, "pingpong") as target:
        for mode, most in (("syscall", 1.65), ("wake", None), ("fault", None)):
            with load(program, mode) as bystander:
                cost = measure(bystander, *record(target.pid), target.pid)
                yield row(f"a bystander's {mode}, record", cost, most)
                if mode == "syscall":
                    afterwards = cost.after / cost.before
                    verdict = "ok" if afterwards <= 1.05 else "MISS"
                    yield f"{'a bystander afterwards':44} {afterwards:.2f}x   {verdict} (at most 1.05x)"


def _ready(program: Path) -> Iterator[str]:
    walls, own = [], []
    with load(program, "pingpong") as running:
        for _ in range(5):
            began = time.monotonic()
            command, ready = record(running.pid, "--json")
            command[command.index("-d") + 1] = "0.2"
            process = subprocess.Popen(
                [*FREE, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            assert process.stderr is not None
            assert process.stderr.readline().startswith(ready)
            walls.append(time.monotonic() - began)
            output, _ = process.communicate(timeout=60)
            own.append(json.loads(output)["cost"])
    best = min(cost["ready_s"] for cost in own)
    yield (
        f"ready, best of 5: {best:.2f} s ({min(walls):.2f} s from the start of the program), "
        f"{min(cost['cpu_s'] for cost in own):.2f} s of CPU   {'ok' if best <= 0.5 else 'MISS'} (at most 0.5 s)"
    )
