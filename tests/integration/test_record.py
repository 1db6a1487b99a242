"""`hangtrace record` against programs whose waits and faults are known, and what it leaves behind however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gzip
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace.analyze.recording import collective_spans, profile
from pyhangtrace.cli.record import load_recording
from pyhangtrace.model.kinds import FrameKind, SourceState
from pyhangtrace.model.recording import EventKind, Metric, OffState, Recording
from pyhangtrace.probes.capability import probe_capabilities
from pyhangtrace.render.chrome_trace import render_chrome_trace
from tests.unit.render.test_recording import decoded, trace_problems

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("probe_target.c")
PATIENCE_S = 60.0
LONG_S = 600.0  # tests end the window themselves

pytestmark = [pytest.mark.bpf, pytest.mark.root]


@pytest.fixture(scope="module", autouse=True)
def works_here() -> None:
    obstacle = [c for c in probe_capabilities() if c.source == "ebpf" and c.state is not SourceState.USED]
    if obstacle and obstacle[0].state in (SourceState.ABSENT, SourceState.REFUSED):
        pytest.skip(f"{obstacle[0].reason}; {obstacle[0].fix}")


@pytest.fixture(scope="module")
def target_program(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> Path:
    program = tmp_path_factory.mktemp("record") / "probe_target"
    subprocess.run([c_compiler, "-O1", "-g", "-pthread", "-o", program, SOURCE], check=True)
    return program


class Running:
    """A program that says something when it is ready, and does its work when it is written to."""

    def __init__(self, *command: object) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.says = self.line()

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("x")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(timeout=20)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def running(*command: object) -> Iterator[Running]:
    started = Running(*command)
    try:
        yield started
    finally:
        started.end()


class Recorder:
    """`hangtrace record`, which says on standard error when it counts."""

    def __init__(self, pid: int, *options: object, seconds: float) -> None:
        arguments = ["record", str(pid), "-d", str(seconds), *map(str, options)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyhangtrace", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_open(self) -> None:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("recording "), line + self.process.stderr.read()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def done(self) -> str:
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, errors
        return output

    def end(self) -> str:
        """Ends the window as Ctrl-C does: once what is to be seen has been done, whatever time that takes."""
        self.process.send_signal(signal.SIGINT)
        return self.done()

    def probe_children(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if held(int(pid))]


def held(pid: int) -> set[tuple[str, int]]:
    """BPF programs and maps that a process holds by descriptor, as (kind, id), and its perf events."""
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(OSError):
            for line in Path(entry.path).read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("prog_id", "map_id"):
                    found.add((name.removesuffix("_id"), int(value)))
    return found


def all_bpf() -> set[tuple[str, int]]:
    """All BPF programs and maps that the kernel has."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    found = set()
    for kind, command in (("prog", 11), ("map", 12)):  # BPF_PROG_GET_NEXT_ID, BPF_MAP_GET_NEXT_ID
        attributes = (ctypes.c_uint32 * 4)(0, 0, 0, 0)
        while libc.syscall(ctypes.c_long(number), ctypes.c_long(command), attributes, ctypes.c_long(16)) == 0:
            found.add((kind, attributes[1]))
            attributes[0] = attributes[1]
        assert ctypes.get_errno() == errno.ENOENT
    return found


def await_gone(things: set[tuple[str, int]]) -> None:
    deadline = time.monotonic() + 20
    while left := things & all_bpf():
        assert time.monotonic() < deadline, f"stays behind: {left}"


PYTHON = """
import os, queue, sys, threading
queues = queue.Queue(), queue.Queue()
gate = threading.Event()
def consumer():
    while queues[0].get() is not None:
        queues[1].put(1)
def stuck():
    gate.wait()
for function in (consumer, stuck):
    threading.Thread(target=function, name=function.__name__, daemon=True).start()
print("ready", flush=True)
sys.stdin.read(1)
while True:
    queues[0].put(1)
    queues[1].get()
"""


def test_waits_wakers_and_faults_of_a_known_program(target_program: Path, tmp_path: Path) -> None:
    with running(target_program, "futex", 200) as target:
        main_tid, worker_tid = map(int, target.says[1:])
        recorder = Recorder(target.pid, "-o", tmp_path / "r.hang", seconds=LONG_S)
        recorder.until_open()
        target.go()
        assert target.line()[0] == "done"
        recorder.end()
    seen = load_recording(str(tmp_path / "r.hang"))
    threads = {thread.tid: thread for thread in seen.threads}
    assert (threads[worker_tid].waits, threads[main_tid].woken) == (200, 200)
    (word,) = [each for each in seen.words if each.tid == worker_tid]
    assert (word.waits, sum(word.slots), word.operation) == (200, 200, "wait_bitset")
    assert word.wait_s == pytest.approx(threads[worker_tid].wait_s)
    assert word.longest_s == threads[worker_tid].longest_wait_s
    (process,) = seen.processes
    assert [(waker.tid, waker.woke, waker.count) for waker in process.wakers] == [(main_tid, worker_tid, 200)]
    long = [event for event in seen.events if event.kind is EventKind.FUTEX_WAIT]
    assert all(event.took_s >= 0.001 and event.waker == main_tid for event in long)
    assert sum(event.took_s for event in long) <= threads[worker_tid].wait_s
    assert seen.lost == ()


def recorded_until_done(program: Path, folder: Path, *arguments: object) -> Recording:
    """What is seen of a program until it says that it is done, when Ctrl-C ends the window."""
    with running(program, *arguments) as target:
        recorder = Recorder(target.pid, "-o", folder / "r.hang", seconds=LONG_S)
        recorder.until_open()
        target.go()
        assert target.line()[0] == "done"
        recorder.end()
    return load_recording(str(folder / "r.hang"))


def test_the_waits_of_each_word_add_up_to_those_of_the_thread(target_program: Path, tmp_path: Path) -> None:
    """Four threads on three words: one word more than a thread's own record has room for."""
    seen = recorded_until_done(target_program, tmp_path, "storm", 2000)
    storming = [thread for thread in seen.threads if thread.waits]
    assert len(storming) == 4
    for thread in storming:
        words = [word for word in seen.words if word.tid == thread.tid]
        assert len({word.address for word in words}) == len(words) == 3
        assert sum(word.waits for word in words) == thread.waits == sum(sum(word.slots) for word in words)
        assert sum(word.wait_s for word in words) == pytest.approx(thread.wait_s)
    assert seen.lost == ()


def test_faults_say_what_is_mapped(target_program: Path, tmp_path: Path) -> None:
    with running(target_program, "minor", 3000) as target:
        recorder = Recorder(target.pid, "--metric", "faults", "-o", tmp_path / "r.hang", seconds=LONG_S)
        recorder.until_open()
        target.go()
        assert target.line()[0] == "done"
        recorder.end()
    seen = load_recording(str(tmp_path / "r.hang"))
    assert 3000 <= sum(thread.minor_faults for thread in seen.threads) <= 3064
    # By pieces of 2 MiB: those at the edges of the pages may have another mapping, too.
    assert sum(place.minor for place in seen.places if place.mapping == "") >= 3000 - 2 * 512
    # By one instruction, in the one loop that touches them (which compilers put into main).
    code: Counter[int | None] = Counter()
    for place in seen.places:
        code[place.code] += place.minor
    ((address, count),) = code.most_common(1)
    assert count >= 3000
    assert {(p.function, p.module) for p in seen.places if p.code == address} <= {
        (function, str(target_program)) for function in ("touch", "main")
    }
    total = sum(thread.minor_faults + thread.major_faults for thread in seen.threads)
    assert profile(seen).total == total


def python_recording(tmp_path: Path, *options: object, seconds: float = 2) -> Recording:
    with running(sys.executable, "-c", PYTHON) as target:
        recorder = Recorder(target.pid, "-o", tmp_path / "r.hang", *options, seconds=seconds)
        recorder.until_open()
        target.go()
        recorder.done()
    return load_recording(str(tmp_path / "r.hang"))


def test_stacks_have_python_and_native_frames(tmp_path: Path) -> None:
    # Long enough for a snapshot to meet each of them asleep, also on a busy machine.
    seen = python_recording(tmp_path, seconds=6)
    by_thread: dict[str, float] = {}
    for stack in profile(seen).stacks:
        if {frame.kind for frame in stack.frames} == {FrameKind.PYTHON, FrameKind.NATIVE}:
            by_thread[stack.thread] = by_thread.get(stack.thread, 0.0) + stack.weight
    assert by_thread.keys() == {"MainThread", "consumer", "stuck"}
    # It waited since before the window; the others hand each other one thing after the other.
    assert by_thread["stuck"] == pytest.approx(seen.window_s, rel=0.2)
    stuck = next(stack for stack in profile(seen).stacks if stack.thread == "stuck")
    assert [frame.function for frame in stuck.frames if frame.kind is FrameKind.PYTHON][-2:] == [
        "Event.wait",
        "Condition.wait",
    ]
    (process,) = seen.processes
    assert any(waker.woke is not None and waker.count > 10 for waker in process.wakers)


def test_time_off_the_cpu_has_kernel_and_user_frames(tmp_path: Path) -> None:
    seen = python_recording(tmp_path, "--metric", "offcpu")
    assert {off.state for off in seen.off_cpu} >= {OffState.SLEEPING}
    assert any("futex" in function for off in seen.off_cpu for function in off.kernel)
    shown = profile(seen)
    both = [
        stack
        for stack in shown.stacks
        if {frame.kind for frame in stack.frames} >= {FrameKind.PYTHON, FrameKind.KERNEL}
    ]
    assert both
    assert all(stack.frames[-1].kind is FrameKind.KERNEL for stack in both)
    # Off the CPU and on it are all the time there was.
    stuck = [stack.weight for stack in shown.stacks if stack.thread == "stuck"]
    assert sum(stuck) == pytest.approx(seen.window_s, rel=0.2)


def test_the_chrome_trace_of_a_real_recording_is_valid(tmp_path: Path) -> None:
    for metric in (Metric.FUTEX, Metric.OFFCPU):
        seen = python_recording(tmp_path, "--metric", metric.value)
        document = json.loads(render_chrome_trace(seen, collective_spans(seen)))
        assert list(trace_problems(document)) == []
        assert any(event["ph"] == "X" for event in document["traceEvents"])


def test_all_files_at_once_and_a_difference(tmp_path: Path) -> None:
    python_recording(tmp_path)
    earlier = tmp_path / "earlier.hang"
    (tmp_path / "r.hang").rename(earlier)
    names = ("d.html", "d.folded", "d.speedscope.json", "d.trace.json", "d.pb.gz", "d.json", "d.txt")
    options = [part for name in names for part in ("-o", tmp_path / name)]
    python_recording(tmp_path, "--diff", earlier, *options)
    assert all((tmp_path / name).stat().st_size for name in names)
    samples = decoded((tmp_path / "d.pb.gz").read_bytes())
    assert any(labels.get("pprof::base") for _, _, labels in samples)
    refused = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyhangtrace",
            "record",
            str(os.getpid()),
            "--metric",
            "faults",
            "--diff",
            earlier,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, "recorded with --metric futex" in refused.stderr) == (2, True)
    again = tmp_path / "again.txt"
    subprocess.run(
        [sys.executable, "-m", "pyhangtrace", "report", tmp_path / "r.hang", "-o", again],
        cwd=ROOT,
        check=True,
    )
    assert again.read_text() == (tmp_path / "d.txt").read_text()
    assert gzip.decompress((tmp_path / "r.hang").read_bytes()).startswith(
        b'{"schema":"hangtrace.recording/1"'
    )


def test_signals_and_exits_are_told(target_program: Path, tmp_path: Path) -> None:
    program = "import signal,sys; signal.signal(10, lambda *_: print('got', flush=True)); print('ready', flush=True)"
    with running(sys.executable, "-c", program + "; sys.stdin.read(1)") as target:
        recorder = Recorder(target.pid, "-o", tmp_path / "r.hang", "-o", tmp_path / "r.txt", seconds=LONG_S)
        recorder.until_open()
        os.kill(target.pid, signal.SIGUSR1)
        assert target.line() == ["got"]
        target.go()
        target.process.wait(timeout=20)
        recorder.end()
    seen = load_recording(str(tmp_path / "r.hang"))
    kinds = {(event.kind, event.text) for event in seen.events if event.tid == target.pid}
    assert {(EventKind.SIGNAL, "SIGUSR1"), (EventKind.EXIT, "")} <= kinds
    text = (tmp_path / "r.txt").read_text()
    assert f"pid {target.pid} ended after" in text
    assert f"pid {target.pid} was sent SIGUSR1" in text


def test_ctrl_c_ends_the_window_and_what_was_seen_is_shown(target_program: Path, tmp_path: Path) -> None:
    seen = recorded_until_done(target_program, tmp_path, "futex", 50)
    assert sum(thread.waits for thread in seen.threads) == 50
    assert seen.window_s < PATIENCE_S


MUTEX = """
import sys
from ctypes import CDLL, byref, create_string_buffer
libc = CDLL("libc.so.6")
mutex = create_string_buffer(64)
print("ready", flush=True)
sys.stdin.read(1)
for _ in range(int(sys.argv[1])):
    assert not libc.pthread_mutex_lock(byref(mutex)) and not libc.pthread_mutex_unlock(byref(mutex))
print("done", flush=True)
sys.stdin.read(1)
"""


def test_calls_are_counted_on_request(tmp_path: Path) -> None:
    with (
        running(sys.executable, "-c", MUTEX, 300) as target,
        running(sys.executable, "-c", MUTEX, 300) as bystander,
    ):
        recorder = Recorder(target.pid, "--uprobes", "mutex", "-o", tmp_path / "r.hang", seconds=LONG_S)
        recorder.until_open()
        for each in (target, bystander):
            each.go()
            assert each.line() == ["done"]
        recorder.end()
    seen = load_recording(str(tmp_path / "r.hang"))
    ours = [each for each in seen.calls if each.calls == 300]
    assert sorted(each.function for each in ours) == ["pthread_mutex_lock", "pthread_mutex_unlock"]
    assert len({each.object for each in ours}) == 1
    assert {each.pid for each in seen.calls} == {target.pid}
    assert all(0 < each.longest_s <= each.call_s for each in ours)


# What a collective looks like from outside: a library of NCCL's name with functions of its names, one within the other.
NCCL = """
#include <stddef.h>
#include <unistd.h>
int ncclGroupEnd(void) { usleep(1000); return 0; }
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* comm, void* stream) {
  (void)from, (void)to, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return ncclGroupEnd() + 3;
}
"""
CALLER = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
pointer = ctypes.c_void_p
nccl.ncclAllReduce.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer]
print("ready", flush=True)
sys.stdin.read(1)
for _ in range(40):
    nccl.ncclAllReduce(1, 2, 1 << 33, 9, 2, 0x1234, 0)
print("done", flush=True)
sys.stdin.read(1)
"""


def test_collectives_are_told_with_what_they_are_given(tmp_path: Path, c_compiler: str) -> None:
    (tmp_path / "nccl.c").write_text(NCCL)
    library = tmp_path / "libnccl.so.2"
    # No call of the one by the other is to be made a part of it.
    build = [c_compiler, "-O1", "-shared", "-fPIC", "-fno-inline", "-o", library, tmp_path / "nccl.c"]
    subprocess.run(build, check=True)
    with running(sys.executable, "-c", CALLER, library) as target:
        recorder = Recorder(target.pid, "--uprobes", "collectives", "-o", tmp_path / "r.hang", seconds=LONG_S)
        recorder.until_open()
        target.go()
        assert target.line() == ["done"]
        recorder.end()
    seen = load_recording(str(tmp_path / "r.hang"))
    sums = {each.function: each for each in seen.calls}
    assert {name: each.calls for name, each in sums.items()} == {"ncclAllReduce": 40, "ncclGroupEnd": 40}
    assert sums["ncclAllReduce"].object == 0x1234
    # The inner call is a part of the outer one.
    assert 40 * 0.001 <= sums["ncclGroupEnd"].call_s <= sums["ncclAllReduce"].call_s
    calls = [event for event in seen.events if event.kind is EventKind.CALL]
    outer = [event for event in calls if event.text == "ncclAllReduce 8589934592 x bf16 max"]
    assert (len(outer), {event.number for event in outer}) == (40, {3})
    document = json.loads(render_chrome_trace(seen, collective_spans(seen)))
    assert list(trace_problems(document)) == []


def test_what_has_no_such_function_is_said(target_program: Path, tmp_path: Path) -> None:
    with running(target_program, "futex", 5) as target:
        recorder = Recorder(target.pid, "--uprobes", "collectives", seconds=0.5)
        recorder.until_open()
        assert "uprobes: no process has a function of: collectives" in recorder.done()


# -- what stays behind ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_nothing_stays_behind_whatever_ends_it(target_program: Path, how: signal.Signals) -> None:
    options = ("--metric", "offcpu", "--uprobes", "mutex")
    with (
        running(target_program, "futex", 5) as target,
        Recorder(target.pid, *options, seconds=60) as recorder,
    ):
        recorder.until_open()
        children = recorder.probe_children()
        # Three hold probes; the reader of stacks has an iterator over tasks.
        assert len(children) >= 3
        things = set().union(*map(held, children))
        # The window's and the activity's programs, and their tables.
        assert {kind for kind, _ in things} == {"prog", "map"}
        assert things <= all_bpf()
        ends = [os.pidfd_open(child) for child in children]
        recorder.process.send_signal(how)
        recorder.process.wait(timeout=20)
        for end in ends:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            assert poll.poll(20_000), "a probe process does not end"
            os.close(end)
        await_gone(things)
        # The target is as it was.
        target.go()
        assert target.line()[0] == "done"


def test_two_recordings_do_not_disturb_each_other(target_program: Path, tmp_path: Path) -> None:
    with running(target_program, "futex", 150) as target:
        main_tid, worker_tid = map(int, target.says[1:])
        first = Recorder(target.pid, "-o", tmp_path / "1.hang", seconds=LONG_S)
        second = Recorder(target.pid, "-o", tmp_path / "2.hang", seconds=LONG_S)
        # One that dies takes nothing of the others with it.
        with Recorder(target.pid, seconds=LONG_S) as third:
            for each in (first, second, third):
                each.until_open()
        target.go()
        assert target.line()[0] == "done"
        for each in (first, second):
            each.end()
    for name in ("1.hang", "2.hang"):
        seen = load_recording(str(tmp_path / name))
        threads = {thread.tid: thread for thread in seen.threads}
        assert (threads[worker_tid].waits, threads[main_tid].woken) == (150, 150)
        assert seen.lost == ()


def test_without_rights_it_says_what_is_needed() -> None:
    done = subprocess.run(
        [
            "setpriv",
            "--bounding-set=-all",
            "--inh-caps=-all",
            sys.executable,
            "-m",
            "pyhangtrace",
            "record",
            str(os.getpid()),
            "-d",
            "1",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (4, 6)
    assert "run as root" in done.stderr or "sudo" in done.stderr
