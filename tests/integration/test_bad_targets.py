"""Bad input and faults: a complete report or one clear sentence, in time, and nobody harmed."""

from __future__ import annotations

import errno
import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace import _native
from tests.hangs.attach import tool
from tests.hangs.processes import in_sessions
from tests.integration.bad_targets import (
    TARGETS,
    assert_complete,
    await_that,
    compile_c,
    frozen_file_system,
    look,
    started,
    status,
    thread_states,
    write_elf32,
)

PROGRAMS = TARGETS.parents[1] / "hangs" / "programs"

#: Moments in the life of one look, in seconds: start-up, first look, window, second look, analysis.
MOMENTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9)

pytestmark = pytest.mark.timeout(120)


def test_no_such_process() -> None:
    # One more than the highest number there can be.
    seen = look(str(int(Path("/proc/sys/kernel/pid_max").read_text()) + 1), "--json")
    assert_complete(seen)
    assert seen.code == 5


def test_a_process_that_has_just_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    seen = look(str(process.pid), "--json")
    assert_complete(seen)
    assert seen.code == 5


@pytest.mark.root
def test_not_permitted() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    # Root without any capability may not look at root with all of them.
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    with started("sleep", "1000") as target:
        await_that("sleeping", lambda: "S" in thread_states(target.pid).values())
        seen = look(str(target.pid), "--json", prefix=without)
        assert_complete(seen)
        assert seen.code in (3, 4)
        if seen.code == 3:
            assert any(source["state"] == "refused" for source in seen.report["coverage"])
            assert seen.report["verdict"]["state"] == "unknown"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_target_that_ends_while_we_look(moment: float) -> None:
    with started("sleep", "1000") as target:
        command = [*tool(), "attach", str(target.pid), "--json", "-d", "0.5"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as looking:
            time.sleep(moment)  # not to be in step with anything: whenever it ends must be fine
            target.kill()
            target.wait()
            out, err = looking.communicate(timeout=30)
        assert b"Traceback" not in err, err
        assert looking.returncode in (0, 3, 5), err
        if looking.returncode != 5:
            assert json.loads(out)["verdict"]["state"]


def test_a_target_that_executes_itself_again_and_again(tmp_path: Path) -> None:
    program = compile_c(TARGETS / "exec_loop.c", tmp_path / "exec_loop")
    with started(program) as target:
        for _ in range(5):
            seen = look(str(target.pid), "--json")
            assert_complete(seen)
            if seen.code in (0, 3):
                assert seen.report["verdict"]["state"] != "hung"
        assert target.poll() is None


def test_threads_that_come_and_go(tmp_path: Path) -> None:
    program = compile_c(TARGETS / "thread_churn.c", tmp_path / "thread_churn")
    with started(program) as target:
        for _ in range(3):
            seen = look(str(target.pid), "--json")
            assert_complete(seen)
            assert seen.code in (0, 3)
            assert seen.report["verdict"]["state"] != "hung"
        assert target.poll() is None


def test_a_zombie() -> None:
    program = "import os, signal\nif os.fork() == 0: os._exit(3)\nsignal.pause()"
    with started(sys.executable, "-c", program) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        await_that("a child", lambda: children.read_text().split())
        zombie = int(children.read_text().split()[0])
        await_that("a zombie", lambda: thread_states(zombie).get(zombie) == "Z")
        seen = look(str(zombie), "--json")
        assert_complete(seen)
        assert seen.code == 0
        assert seen.report["verdict"]["state"] != "hung"
        assert [each["exit_code"] for each in seen.report["processes"] if each["pid"] == zombie] == [3]


def test_a_kernel_thread() -> None:
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text().strip() != "kthreadd":
        pytest.skip("kernel threads cannot be seen from here")
    seen = look("2", "--json")
    assert_complete(seen)
    assert seen.code == 5
    assert "kernel thread" in seen.err


def _await_cycle(pid: int) -> None:
    """Until both threads of mutex_cycle are in the futex that they will not leave."""

    def reached() -> bool:
        states = {tid: state for tid, state in thread_states(pid).items() if tid != pid}
        calls = [Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split() for tid in states]
        # futex(address, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 2): the value of a contended mutex
        there = len(calls) == 2 and all(call[2:4] == ["0x80", "0x2"] for call in calls)
        return there and set(states.values()) == {"S"}

    await_that("a cycle", reached)


def _assert_cycle_of(pid: int, report: dict[str, object]) -> None:
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["state"], verdict["cause"]) == ("hung", "lock.cycle"), verdict
    named = {(culprit["pid"], culprit["tid"]) for culprit in verdict["culprits"]}
    assert named == {(pid, tid) for tid in thread_states(pid) if tid != pid}


@pytest.mark.root
def test_a_container_with_files_of_its_own(tmp_path: Path, in_pid_namespace: tuple[str, ...]) -> None:
    """PIDs in its memory are its own, and its program is on a file system that we do not see."""
    program = compile_c(PROGRAMS / "mutex_cycle.c", tmp_path / "mutex_cycle")
    inside = tmp_path / "inside"
    inside.mkdir()
    setup = f"mount -t tmpfs none {inside} && cp {program} {inside}/ && exec {inside}/mutex_cycle"
    environment = {**os.environ, "HANGS_ANNOUNCE": "/dev/null"}
    with started(*in_pid_namespace, "sh", "-c", setup, env=environment) as outside:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")

        def named() -> bool:
            assert outside.poll() is None
            pids = children.read_text().split()
            return bool(pids) and Path(f"/proc/{pids[0]}/comm").read_text().strip() == "mutex_cycle"

        await_that("the program", named)
        pid = int(children.read_text().split()[0])
        assert status(pid, "NSpid").split()[-1] == "1"
        _await_cycle(pid)
        seen = look(str(pid), "--json")
        assert_complete(seen)
        _assert_cycle_of(pid, seen.report)


def test_a_deleted_binary(tmp_path: Path) -> None:
    program = compile_c(PROGRAMS / "mutex_cycle.c", tmp_path / "mutex_cycle")
    with started(program, env={**os.environ, "HANGS_ANNOUNCE": "/dev/null"}) as target:
        _await_cycle(target.pid)
        program.unlink()
        seen = look(str(target.pid), "--json")
        assert_complete(seen)
        _assert_cycle_of(target.pid, seen.report)


def test_a_static_program_without_symbols(tmp_path: Path) -> None:
    try:
        program = compile_c(PROGRAMS / "mutex_cycle.c", tmp_path / "mutex_cycle", "-static", "-s")
    except subprocess.CalledProcessError:
        pytest.skip("cannot link statically here")
    with started(program, env={**os.environ, "HANGS_ANNOUNCE": "/dev/null"}) as target:
        _await_cycle(target.pid)
        seen = look(str(target.pid), "--json")
        assert_complete(seen)
        # The mutexes record their owners, with symbols or without.
        _assert_cycle_of(target.pid, seen.report)


def test_a_32_bit_program(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the program is for x86")
    program = write_elf32(tmp_path / "pause32")
    try:
        with started(program) as target:
            await_that("pausing", lambda: "S" in thread_states(target.pid).values())
            seen = look(str(target.pid), "--json")
            assert_complete(seen)
            assert target.poll() is None
    except OSError as problem:
        if problem.errno != errno.ENOEXEC:
            raise
        pytest.skip("this kernel runs no 32-bit programs")


def test_names_that_are_meant_to_confuse() -> None:
    """Control characters, line breaks and broken UTF-8 in a command line and a thread name."""
    program = (
        "import ctypes, signal; ctypes.CDLL(None).prctl(15, b') R \\x1b[2J\\xff\\n', 0, 0, 0); signal.pause()"
    )
    argv = [sys.executable.encode(), b"-c", program.encode(), b"\x1b]0;owned\x07", b"a\nb", b"\xff\xfe"]
    target = subprocess.Popen(argv, start_new_session=True)
    try:
        comm = Path(f"/proc/{target.pid}/comm")
        await_that("the name", lambda: comm.read_bytes().startswith(b") R"))
        await_that("pausing", lambda: "S" in status(target.pid, "State"))
        assert_complete(look(str(target.pid), "--json"))
        text = look(str(target.pid))
        assert text.code in (0, 3), text.err
        assert "\x1b" not in text.out + text.err
        assert "\x07" not in text.out + text.err
    finally:
        target.kill()
        target.wait()


@pytest.mark.root
def test_a_mmap_lock_that_is_held_for_ever(tmp_path: Path) -> None:
    program = compile_c(TARGETS / "stuck_mmap_lock.c", tmp_path / "stuck_mmap_lock")
    with frozen_file_system(tmp_path) as (mounted, freeze):
        data = mounted / "data"
        data.write_bytes(bytes(8 << 20))
        os.sync()
        with subprocess.Popen([program, data], stdout=subprocess.PIPE, start_new_session=True) as target:
            try:
                assert target.stdout is not None
                assert target.stdout.readline() == b"ready\n"
                freeze()
                target.send_signal(signal.SIGUSR1)
                await_that(
                    "a held mmap lock",
                    lambda: sorted(thread_states(target.pid).values()) == ["D", "D", "S"],
                )
                seen = look(str(target.pid), "--json")
                assert_complete(seen)
                assert seen.code in (0, 3)
                assert seen.wall_s < 20
                states = [
                    thread["state"]
                    for process in seen.report["processes"]
                    if process["pid"] == target.pid
                    for thread in process["threads"]
                ]
                assert sorted(states) == ["D", "D", "S"]
                writers = _native.mmap_lock_writers()
                if writers:  # where programs may be loaded, the kernel says itself who has the lock
                    (wait,) = (w for w in seen.report["waits"] if w["tid"] == writers[target.pid])
                    assert any(line.startswith("has the lock of its memory map") for line in wait["evidence"])
            finally:
                subprocess.run(["fsfreeze", "-u", str(mounted)], check=True, timeout=30)
                target.kill()


# -- nobody is harmed ----------------------------------------------------------------------------------------

_WORKER = """
import mmap, os, sys, threading
with open(sys.argv[1], "r+b") as file:
    counter = mmap.mmap(file.fileno(), 8)
lock = threading.Lock()
def work():
    while True:
        with lock:
            counter[:8] = (int.from_bytes(counter[:8], "little") + 1).to_bytes(8, "little")
        held.wait(0.001)
held = threading.Event()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
held.wait()
"""


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """Jobs in the background of a script ignore SIGINT, and so would all that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_killing_us_leaves_the_target_as_it_was(
    tmp_path: Path, how: signal.Signals, heeded_interrupts: None
) -> None:
    shared = tmp_path / "counter"
    shared.write_bytes(bytes(8))
    with (
        started(sys.executable, "-c", _WORKER, shared) as target,
        shared.open("rb") as file,
        mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ) as counter,
    ):

        def count() -> int:
            return int.from_bytes(counter[:8], "little")

        await_that("work", count)
        for moment in MOMENTS:
            looking = subprocess.Popen(
                [*tool(), "attach", str(target.pid), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            time.sleep(moment)  # whenever it comes must be fine
            looking.send_signal(how)
            _out, err = looking.communicate(timeout=30)
            if how is signal.SIGINT and moment >= 0.3:
                # Earlier the interpreter may not even have started.
                assert looking.returncode in (0, 3, 130), err
                assert b"Traceback" not in err
            await_that("our own children are gone", lambda one=looking: not in_sessions({one.pid}))
            before = count()
            await_that("progress", lambda before=before: count() > before)
            assert status(target.pid, "TracerPid") == "0"
            assert not set(thread_states(target.pid).values()) & {"T", "t"}
            assert target.poll() is None
