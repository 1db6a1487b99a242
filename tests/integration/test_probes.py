"""The eBPF window against programs whose numbers of waits, wake-ups and faults are known, and what it leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.collect import probe_child, probes
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.probes import ProbeEvidence, WakerCount
from pyhangtrace.probes.capability import probe_capabilities
from pyhangtrace.probes.result import ProcessProbe
from pyhangtrace.probes.window import ALL_CALLS
from tests.hangs.processes import stat_fields

SOURCE = Path(__file__).with_name("probe_target.c")
ROOT = Path(__file__).parents[2]
LOADING_S = 30.0  # generous: a cold disk, a busy machine
LONG_WINDOW_S = 30.0  # tests end the window themselves

pytestmark = [pytest.mark.bpf, pytest.mark.root]


@pytest.fixture(scope="module", autouse=True)
def works_here() -> None:
    """Skips with the reason that the tool itself gives."""
    obstacle = [c for c in probe_capabilities() if c.source == "ebpf" and c.state is not SourceState.USED]
    # Only what a machine can lack is a reason to skip; a probe that fails is a failure.
    if obstacle and obstacle[0].state in (SourceState.ABSENT, SourceState.REFUSED):
        pytest.skip(f"{obstacle[0].reason}; {obstacle[0].fix}")


@pytest.fixture(scope="module")
def target_program(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> Path:
    program = tmp_path_factory.mktemp("probes") / "probe_target"
    subprocess.run([c_compiler, "-O1", "-pthread", "-o", program, SOURCE], check=True)
    return program


class Target:
    """A running `probe_target`, ready but not started."""

    def __init__(self, program: Path, mode: str, count: int, *more: str) -> None:
        self.process = subprocess.Popen(
            [program, mode, str(count), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.pid = self.process.pid
        self.main_tid, self.worker_tid = (int(part) for part in self._line("ready"))
        self.await_reading()

    def _line(self, word: str) -> list[str]:
        assert self.process.stdout is not None
        first, *rest = self.process.stdout.readline().split() or ["nothing"]
        assert first == word
        return rest

    def await_reading(self) -> None:
        """Until the main thread is blocked in read(0): no fault and no call of it is under way."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            call = Path(f"/proc/{self.pid}/task/{self.main_tid}/syscall").read_text().split()
            if call[0] == "0" and call[1] == "0x0":
                return
        pytest.fail("the target never came to read")

    def work(self) -> list[int]:
        """Lets it do its work; waits, timed out, not slept, wake calls, woken: as its own calls returned."""
        assert self.process.stdin is not None
        self.process.stdin.write("x")
        self.process.stdin.flush()
        done = [int(part) for part in self._line("done")]
        self.await_reading()
        return done

    def faults(self) -> tuple[int, int]:
        """Minor and major faults that the kernel counts for the process."""
        fields = stat_fields(self.pid)
        assert fields is not None
        return int(fields[7]), int(fields[9])

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self.process.stdout.close()


@contextlib.contextmanager
def target(program: Path, mode: str, count: int, *more: str) -> Iterator[Target]:
    running = Target(program, mode, count, *more)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end()


def probe(*targets: Target, calls: tuple[str, ...] = ("futex",)) -> dict[int, ProcessProbe]:
    """What the window counts while all targets do their work, one after the other."""
    with probes.start([t.pid for t in targets], window_s=LONG_WINDOW_S, calls=calls) as run:
        assert run.wait_until_open(deadline_s=LOADING_S), run.finish(deadline_s=0).status
        for each in targets:
            each.work()
        window = run.finish(deadline_s=20, minimum_s=0)
    assert window.status.state is SourceState.USED, window.status
    return {process.pid: process for process in window.processes}


COUNT = 200


@pytest.mark.parametrize("calls", [("futex",), ALL_CALLS], ids=["futex", "all calls"])
def test_waits_and_wakers_are_exact(target_program: Path, calls: tuple[str, ...]) -> None:
    with target(target_program, "futex", COUNT) as t:
        seen = probe(t, calls=calls)[t.pid]
    assert seen.evidence.futex_waits == COUNT
    assert seen.evidence.wakers == (WakerCount(tid=t.main_tid, woke=t.worker_tid, count=COUNT),)
    assert seen.evidence.lost == 0
    threads = {thread.tid: thread for thread in seen.threads}
    assert (threads[t.worker_tid].waits, threads[t.worker_tid].woken) == (COUNT, 0)
    assert (threads[t.main_tid].waits, threads[t.main_tid].wake_calls, threads[t.main_tid].woken) == (
        0,
        COUNT,
        COUNT,
    )
    # All waits of one thread fit into the window, and the longest is one of them.
    assert 0 < seen.evidence.longest_wait_s <= seen.evidence.futex_wait_s <= seen.evidence.window_s
    assert threads[t.worker_tid].longest_uaddr is not None
    assert threads[t.worker_tid].open_wait_s is None


@pytest.mark.parametrize(
    ("mode", "wake_calls"),
    [("shared", COUNT), ("contended", COUNT), ("requeue", 2 * COUNT)],
)
def test_a_pair_that_is_not_certain_is_not_named(target_program: Path, mode: str, wake_calls: int) -> None:
    """A word shared between processes; two threads that wake on it; a waiter moved to another word."""
    with target(target_program, mode, COUNT) as t:
        seen = probe(t)[t.pid]
    assert seen.evidence.futex_waits == COUNT
    assert seen.evidence.wakers == (WakerCount(tid=t.main_tid, woke=None, count=COUNT),)
    assert next(thread for thread in seen.threads if thread.tid == t.main_tid).wake_calls == wake_calls


def test_timeouts_and_calls_that_do_not_sleep(target_program: Path) -> None:
    with target(target_program, "timeout", 50) as t:
        seen = probe(t)[t.pid]
    (thread,) = [thread for thread in seen.threads if thread.waits]
    assert (thread.tid, thread.waits, thread.timed_out, thread.not_slept) == (t.main_tid, 50, 50, 50)
    assert thread.wait_s >= 50 * 0.001
    assert 0.001 <= thread.longest_wait_s <= thread.wait_s
    assert seen.evidence.wakers == ()


@pytest.mark.parametrize("room", [None, 4], ids=["found at once", "found by hashing"])
def test_sums_are_exact_when_all_cpus_count_at_once(
    target_program: Path, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for four, five threads and three words have four slots, so that some of them are elsewhere."""
    if room is not None:
        monkeypatch.setattr(probe_child, "room_for_threads", lambda pids: room)
    with (
        target(target_program, "storm", 5000) as t,
        probes.start([t.pid], window_s=LONG_WINDOW_S) as run,
    ):
        assert run.wait_until_open(deadline_s=LOADING_S)
        waits, timed_out, _, wake_calls, woken = t.work()
        window = run.finish(deadline_s=20, minimum_s=0)
    (seen,) = window.processes
    assert waits + wake_calls == 4 * 5000
    assert woken == waits - timed_out
    assert seen.evidence.futex_waits == waits
    assert sum(thread.timed_out for thread in seen.threads) == timed_out
    assert sum(thread.wake_calls for thread in seen.threads) == wake_calls
    assert sum(thread.woken for thread in seen.threads) == woken
    assert sum(waker.count for waker in seen.evidence.wakers) == woken
    # Words on which several threads wake: most wakers cannot be told, and those that are told woke somebody.
    assert {waker.tid for waker in seen.evidence.wakers} <= {
        thread.tid for thread in seen.threads if thread.woken
    }
    assert seen.evidence.lost == 0


def test_a_wait_that_goes_on_is_told_as_such(target_program: Path) -> None:
    with target(target_program, "stuck", COUNT) as t:
        seen = probe(t)[t.pid]
    threads = {thread.tid: thread for thread in seen.threads}
    worker = threads[t.worker_tid]
    assert worker.waits == seen.evidence.futex_waits == COUNT
    assert worker.open_wait_s is not None
    assert 0 < worker.open_wait_s < seen.evidence.window_s
    assert worker.open_uaddr == worker.longest_uaddr  # it always sleeps on the same word
    assert threads[t.main_tid].open_wait_s is None


def test_minor_faults_are_exact(target_program: Path) -> None:
    pages = 3000
    with target(target_program, "minor", pages) as t:
        before = t.faults()
        seen = probe(t)[t.pid]
        after = t.faults()
    assert seen.evidence.minor_faults == after[0] - before[0]
    # Beside its pages it may fault in a piece of its own code or stack.
    assert pages <= seen.evidence.minor_faults <= pages + 64
    assert seen.evidence.major_faults == after[1] - before[1]


def test_major_faults_are_exact(target_program: Path, tmp_path: Path) -> None:
    pages = 64
    size = os.sysconf("SC_PAGESIZE")
    data = tmp_path / "data"
    with data.open("wb") as file:
        file.write(os.urandom(pages * size))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_pages(data):
        pytest.skip(f"the file system of {tmp_path} keeps its pages in memory")
    with target(target_program, "major", pages, str(data)) as t:
        before = t.faults()
        seen = probe(t)[t.pid]
        after = t.faults()
        (main,) = [thread for thread in seen.threads if thread.tid == t.main_tid]
        assert main.last_major_address is not None
        assert str(data) in mapping_of(t.pid, main.last_major_address)
    assert seen.evidence.major_faults == after[1] - before[1]
    assert seen.evidence.major_faults >= pages
    assert seen.evidence.minor_faults == after[0] - before[0]


def resident_pages(path: Path) -> int:
    """Pages of the file in the page cache, by mincore."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = path.stat().st_size
    count = size // os.sysconf("SC_PAGESIZE")
    vector = (ctypes.c_ubyte * count)()
    with path.open("rb") as file:
        address = libc.mmap(None, ctypes.c_size_t(size), 1, 1, file.fileno(), ctypes.c_long(0))
    assert address != ctypes.c_void_p(-1).value
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) == 0
    assert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0
    return sum(byte & 1 for byte in vector)


def mapping_of(pid: int, address: int) -> str:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            return line
    return "nothing"


def test_each_target_gets_its_own_and_a_bystander_nothing(target_program: Path) -> None:
    with (
        target(target_program, "futex", 30) as one,
        target(target_program, "futex", 70) as two,
        target(target_program, "futex", 90) as bystander,
        probes.start([one.pid, two.pid], window_s=LONG_WINDOW_S) as run,
    ):
        assert run.wait_until_open(deadline_s=LOADING_S)
        for each in (one, bystander, two):
            each.work()
        window = run.finish(deadline_s=20, minimum_s=0)
    assert [(p.pid, p.evidence.futex_waits) for p in window.processes] == [(one.pid, 30), (two.pid, 70)]
    tids = {thread.tid for process in window.processes for thread in process.threads}
    assert tids == {one.main_tid, one.worker_tid, two.main_tid, two.worker_tid}


def test_what_happens_before_the_window_is_not_in_it(target_program: Path) -> None:
    with target(target_program, "futex", 30) as t:
        t.work()
        with probes.start([t.pid], window_s=0.05) as run:
            window = run.finish(deadline_s=LOADING_S)
    assert window.status.state is SourceState.USED
    assert [p.evidence for p in window.processes] == [ProbeEvidence(window_s=window.window_s)]
    # It ended by itself; a busy machine may close it late, never early.
    assert window.window_s >= 0.05


def test_what_finds_no_room_is_told(target_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the two threads of the first to act: they keep exact numbers, what the others did is counted as lost."""
    monkeypatch.setattr(probe_child, "room_for_threads", lambda pids: 1)
    with target(target_program, "futex", COUNT) as first, target(target_program, "futex", COUNT) as second:
        seen = probe(first, second)
    assert {thread.tid: (thread.waits, thread.woken) for thread in seen[first.pid].threads} == {
        first.main_tid: (0, COUNT),
        first.worker_tid: (COUNT, 0),
    }
    assert seen[second.pid].threads == ()
    assert seen[second.pid].evidence.lost >= 2 * COUNT


# What stays behind


def held_programs(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds by descriptor."""
    ids = set()
    for entry in os.scandir(f"/proc/{pid}/fdinfo"):
        for line in Path(entry.path).read_text().splitlines():
            if line.startswith("prog_id:"):
                ids.add(int(line.split()[1]))
    return ids


def program_exists(number: int) -> bool:
    """Whether the kernel still has the program: attached ones count, whoever held them."""
    attributes = (ctypes.c_uint32 * 4)(number, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    bpf = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    fd = libc.syscall(ctypes.c_long(bpf), ctypes.c_long(13), attributes, ctypes.c_long(16))
    if fd >= 0:
        os.close(fd)
        return True
    assert ctypes.get_errno() == errno.ENOENT
    return False


def await_gone(programs: set[int]) -> None:
    """The kernel frees programs a moment after their last holder."""
    deadline = time.monotonic() + 20
    while any(program_exists(number) for number in programs):
        assert time.monotonic() < deadline, "BPF programs stay behind"


def await_end(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(20_000), "the probe process does not end"
    os.close(pidfd)


def test_nothing_stays_attached(target_program: Path) -> None:
    with target(target_program, "futex", 5) as t:
        with probes.start([t.pid], window_s=LONG_WINDOW_S) as run:
            assert run.wait_until_open(deadline_s=LOADING_S)
            assert run.child_pid is not None
            programs = held_programs(run.child_pid)
            assert len(programs) == 4  # entry, exit, minor, major
            assert all(program_exists(number) for number in programs)
            t.work()
            window = run.finish(deadline_s=20, minimum_s=0)
            attached_s = run.close()
        await_gone(programs)
        assert run.child_pid is None
    assert attached_s > window.attached_s >= window.window_s


def test_a_killed_child_is_a_failure_and_leaves_nothing() -> None:
    with probes.start([os.getpid()], window_s=LONG_WINDOW_S) as run:
        assert run.wait_until_open(deadline_s=LOADING_S)
        assert run.child_pid is not None
        programs = held_programs(run.child_pid)
        os.kill(run.child_pid, signal.SIGKILL)
        window = run.finish(deadline_s=20)
    assert window.status.state is SourceState.FAILED
    assert "status -9" in window.status.reason
    await_gone(programs)


PARENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pyhangtrace.collect import probe_child, probes
run = probes.start([os.getpid()], window_s=30)
if sys.argv[3] == "sibling":
    # A forked process inherits the pipe to the probes, so that its end never shows there.
    sibling = os.fork()
    if not sibling:
        os.read(0, 1)
        os._exit(0)
if sys.argv[2] == "open":
    assert run.wait_until_open(deadline_s=30)
os.write(1, f"{run.child_pid}\\n".encode())
os.read(0, 1)
"""


@pytest.mark.parametrize("sibling", ["alone", "sibling"])
@pytest.mark.parametrize("moment", ["loading", "open"])
def test_the_child_dies_with_its_parent(moment: str, sibling: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(ROOT), moment, sibling],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        child = int(parent.stdout.readline())
        pidfd = os.pidfd_open(child)
        programs = held_programs(child) if moment == "open" else set()
        parent.kill()
        await_end(pidfd)
        await_gone(programs)
        assert bool(programs) == (moment == "open")
    finally:
        parent.kill()
        parent.stdin.close()
        parent.wait(timeout=20)
        parent.stdout.close()


def test_a_deadline_is_kept_and_said() -> None:
    began = time.monotonic()
    with probes.start([os.getpid()]) as run:
        window = run.finish(deadline_s=0)
        programs_holder = run.child_pid
        assert programs_holder is not None
        pidfd = os.pidfd_open(programs_holder)
    await_end(pidfd)
    assert window.status.state is SourceState.TIMED_OUT
    assert window.processes == ()
    assert time.monotonic() - began < 20


def without_rights(program: str) -> Any:
    """What a Python program prints as JSON that has the root of this tree as its argument, and no capability."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv (util-linux)")
    done = subprocess.run(
        [setpriv, "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", program, str(ROOT)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_without_rights_it_says_what_is_needed() -> None:
    program = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pyhangtrace.collect import probes\n"
        "with probes.start([os.getpid()]) as run: status = run.finish(deadline_s=30).status\n"
        "os.write(1, json.dumps([status.state.value, status.reason, status.fix]).encode())\n"
    )
    state, reason, fix = without_rights(program)
    assert state == "refused"
    assert reason.startswith("the kernel refuses BPF programs to this user")
    assert "run as root" in fix


def test_everything_works_for_root() -> None:
    states = {c.source: c.state for c in probe_capabilities()}
    # Type information is nice to have, and older kernels come without.
    assert states.pop("btf") in (SourceState.USED, SourceState.ABSENT)
    assert states == dict.fromkeys(
        ("bpf", "tracefs", "perf events", "lockdown", "bcc", "ebpf"), SourceState.USED
    )


def test_each_missing_right_comes_with_its_fix() -> None:
    program = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pyhangtrace.probes.capability import probe_capabilities\n"
        "answers = {c.source: [c.state.value, c.fix] for c in probe_capabilities()}\n"
        "os.write(1, json.dumps(answers).encode())\n"
    )
    answers = without_rights(program)
    for source in ("bpf", "perf events", "ebpf"):
        state, fix = answers[source]
        assert state == "refused", source
        assert "run as root" in fix
    assert answers["bcc"][0] == "used"


def test_ids_are_those_of_our_pid_namespace(target_program: Path, in_pid_namespace: tuple[str, ...]) -> None:
    """As in a container: the tool and its target see other numbers than the kernel's first namespace."""
    program = (
        "import json, os, subprocess, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pyhangtrace.collect import probes\n"
        "t = subprocess.Popen([sys.argv[2], 'futex', '25'], stdin=-1, stdout=-1, text=True)\n"
        "tids = [int(x) for x in t.stdout.readline().split()[1:]]\n"
        "with probes.start([t.pid], window_s=30) as run:\n"
        "    opened = run.wait_until_open(deadline_s=30)\n"
        "    t.stdin.write('x'); t.stdin.flush(); t.stdout.readline()\n"
        "    w = run.finish(deadline_s=20, minimum_s=0)\n"
        "t.stdin.close(); t.wait()\n"
        "e = w.processes[0].evidence if w.processes else None\n"
        "os.write(1, json.dumps([w.status.reason, t.pid, tids, e and e.futex_waits,"
        " e and [[k.tid, k.woke, k.count] for k in e.wakers]]).encode())\n"
    )
    inside = [sys.executable, "-W", "ignore", "-c", program, str(ROOT), str(target_program)]
    done = subprocess.run([*in_pid_namespace, *inside], stdout=subprocess.PIPE, timeout=90, check=True)
    reason, pid, tids, waits, wakers = json.loads(done.stdout)
    assert pid < 50, "the numbers would not tell the namespaces apart"
    assert (waits, wakers) == (25, [[tids[0], tids[1], 25]]), reason
