"""The reader of CPython processes against what real interpreters say about themselves."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.versions.interpreters import EVERY, interpreter, version_of

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("HT_NATIVE_BUILD", HERE.parents[2] / "build" / "native" / "native"))
TOOL = BUILD / "python" / "ht_python_state"
FUTEX = "202"  # x86-64
DEADLINE = 60.0  # seconds

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="needs the native tests built (make native-test)")

Report = dict[str, Any]


@pytest.fixture(params=EVERY)
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


@contextlib.contextmanager
def running(python: str, program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program and its first line of output; it is asked to end by closing its standard input."""
    process = subprocess.Popen(
        [python, str(HERE / program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HT_FROM_START": "given", "PYTHONUTF8": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"{program} ended with {process.wait(timeout=DEADLINE)}"
        yield process, line
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=DEADLINE)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def look(pid: int, *options: str) -> Report:
    done = subprocess.run([TOOL, str(pid), *options], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    report: Report = json.loads(done.stdout)
    return report


def free_threaded(python: str) -> bool:
    return (version_of(Path(python)) or "").endswith("t")


def by_tid(report: Report) -> dict[int, Report]:
    return {thread["tid"]: thread for thread in report["threads"]}


def syscall(pid: int, tid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()


def eventually(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not reached():
        assert time.monotonic() < deadline, f"not reached in time: {what}"
        time.sleep(0.001)


def futex_of(pid: int, tid: int) -> str:
    """Address the thread sleeps on, once it does."""
    addresses: list[str] = []

    def sleeping() -> bool:
        number, *arguments = syscall(pid, tid)
        if number == FUTEX:
            addresses.append(arguments[0])
        return number == FUTEX

    eventually(sleeping, f"thread {tid} sleeps in a futex call")
    return addresses[0]


def test_frames_are_those_of_the_interpreter(python: str) -> None:
    with running(python, "python_target.py", "one", "zwö") as (process, line):
        said = json.loads(line)
        seen = look(process.pid, "--argv")
    assert seen["version"] == said["version"]
    assert seen["problem"] == ""
    assert seen["argv"] == said["argv"]
    assert len(seen["threads"]) == len(said["threads"]) + 1
    threads = by_tid(seen)
    for thread in said["threads"]:
        found = threads[thread["tid"]]
        assert found["problem"] == ""
        assert found["name"] == thread["name"]
        assert found["ident"] == thread["ident"]
        frames = [[frame["function"], frame["file"], frame["line"]] for frame in found["frames"]]
        assert frames == thread["frames"], thread["name"]
    main = threads[said["main"]["tid"]]
    assert main["name"] == "MainThread"
    assert [frame["function"] for frame in main["frames"]] == ["main", "<module>"]


def test_frames_tell_how_they_were_entered(python: str) -> None:
    with running(python, "python_target.py") as (process, line):
        said = json.loads(line)
        seen = by_tid(look(process.pid))
    roles = {thread["role"]: seen[thread["tid"]]["frames"] for thread in said["threads"]}
    for frames in roles.values():
        assert frames[-1]["entry"], "threads start in C"
    old = tuple(map(int, said["version"].split("."))) < (3, 11)
    if old:
        assert all(frame["entry"] for frames in roles.values() for frame in frames)
        return
    called_by_sort = [frame["entry"] for frame in roles["callback"] if frame["function"] == "Compared.__lt__"]
    assert called_by_sort == [True]
    nested = [frame["entry"] for frame in roles["nested"] if frame["function"] == "nested"]
    assert nested == [False, False, False, True] or nested == [False] * 4
    generators = {frame["function"] for frame in roles["generator"] if frame["generator"]}
    assert generators == {"generator"}
    coroutines = {frame["function"] for frame in roles["asyncio"] if frame["generator"]}
    assert coroutines == {"inner", "outer"}


WAITS_FOR = {
    # waiter: (owner, how it is known, type of the lock)
    "with waiter": ("with holder", "with_block", "_thread.lock"),
    "with waiter by with": ("with holder", "with_block", "_thread.lock"),
    "condition waiter": ("condition holder", "with_block", "_thread.lock"),
    "itself": ("itself", "with_block", "_thread.lock"),
    "cycle 0": ("cycle 1", "with_block", "_thread.lock"),
    "cycle 1": ("cycle 0", "with_block", "_thread.lock"),
    "rlock waiter": ("rlock holder", "rlock_owner", "_thread.RLock"),
    "joiner": ("joined", "joined_thread", "Thread"),
    # Nothing records who holds these, so nobody may be named.
    "plain waiter": (None, "nowhere", "_thread.lock"),
    "left waiter": (None, "nowhere", "_thread.lock"),
    "released waiter": (None, "nowhere", "_thread.lock"),
    "handed waiter": (None, "nowhere", "_thread.lock"),
    "notified waiter": (None, "nowhere", "_thread.lock"),
    "queue waiter": (None, "nowhere", "_thread.lock"),
}


def test_owners_of_locks(python: str) -> None:
    with running(python, "python_target.py") as (process, line):
        said = json.loads(line)
        waiters = [thread for thread in said["threads"] if thread["role"] in WAITS_FOR]
        options: list[str] = []
        for waiter in waiters:
            options += ["--lock", str(waiter["tid"]), futex_of(process.pid, waiter["tid"])]
        locks = look(process.pid, *options)["locks"]
    roles = {thread["tid"]: thread["role"] for thread in said["threads"]}
    idents = {thread["ident"]: thread["role"] for thread in said["threads"]}
    assert {waiter["role"] for waiter in waiters} == set(WAITS_FOR)
    for waiter, lock in zip(waiters, locks, strict=True):
        owner, source, kind = WAITS_FOR[waiter["role"]]
        found = (roles.get(lock["owner_tid"]), lock["owner_from"], lock["type"])
        assert found == (owner, source, kind), (waiter["role"], lock)
        assert idents.get(lock["owner_ident"]) == owner
        assert (lock["problem"] == "") == (owner is not None)
        if waiter["role"] == "rlock waiter":
            assert lock["count"] == 2
        if source == "with_block":
            assert lock["owner_function"]
            assert lock["owner_line"] > 0


def test_owner_of_an_import(python: str) -> None:
    with running(python, "import_target.py") as (process, line):
        tids = json.loads(line)

        def lock() -> Report:
            futex = futex_of(process.pid, tids["second"])
            found: Report = look(process.pid, "--lock", str(tids["second"]), futex)["locks"][0]
            return found

        eventually(lambda: lock()["type"] == "_ModuleLock", "the second thread waits for the import")
        found = lock()
    assert found["owner_from"] == "module_lock"
    assert found["owner_tid"] == tids["first"]
    assert found["module"] == "slow_module"


def test_values_of_locals(python: str) -> None:
    names = {
        "local_text": {"found": True, "value": "hällo ✓ 𝄞"},
        "local_number": {"found": True, "value": -(2**40)},
        "local_none": {"found": True, "value": None},
        "local_real": {"found": True, "value": 0.5},
        "local_bytes": {"found": True, "bytes": "raw"},
        "local_flag": {"found": True, "value": True},
        "role": {"found": True, "value": "nested"},
        "no_such_name": {"found": False},
    }
    with running(python, "python_target.py") as (process, line):
        said = json.loads(line)
        threads = {thread["role"]: thread for thread in said["threads"]}

        def frame_of(role: str, function: str) -> int:
            frames = [frame[0].rpartition(".")[2] for frame in threads[role]["frames"]]
            return frames.index(function)

        options: list[str] = []
        nested = str(threads["nested"]["tid"]), str(frame_of("nested", "nested"))
        for name in [*names, "local_list", "local_huge"]:
            options += ["--local", *nested, name]
        method = "method worker-label"
        closure = str(threads[method]["tid"]), str(frame_of(method, "closure"))
        options += ["--local", *closure, "self", "--local", *closure[:1], "999", "self"]
        values = look(process.pid, *options)["locals"]
    assert dict(zip(names, values, strict=False)) == names
    assert [value.get("type") for value in values[len(names) :]] == ["list", "int", "Worker", None]


def test_environment_and_modules(python: str) -> None:
    with running(python, "python_target.py") as (process, _):
        seen = look(
            process.pid,
            *("--environ", "HT_SET_BY_PROGRAM", "--environ", "HT_FROM_START", "--environ", "HT_NEVER_SET"),
            *("--imported", "threading", "--imported", "asyncio", "--imported", "no_such_module"),
            *("--global", "sys", "byteorder", "--global", "threading", "_no_such", "--global", "no", "no"),
        )
    assert seen["environ"] == {"HT_SET_BY_PROGRAM": "set late ✓", "HT_FROM_START": "given"}
    assert seen["imported"] == ["threading", "asyncio"]
    assert seen["globals"] == [{"found": True, "value": sys.byteorder}, {"found": False}, {"found": False}]


def test_holder_of_the_gil(python: str) -> None:
    with_gil = ["-X", "gil=1"] if free_threaded(python) else []
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    try:
        # The program keeps the GIL until the pipe closes, so it cannot see its standard input close.
        process = subprocess.Popen(
            [python, *with_gil, str(HERE / "gil_target.py"), str(read_end)],
            stdout=subprocess.PIPE,
            pass_fds=[read_end],
        )
        try:
            assert process.stdout is not None
            waiter = int(process.stdout.readline())
            eventually(
                lambda: syscall(process.pid, process.pid)[:2] == ["0", hex(read_end)],
                "the main thread reads the pipe",
            )
            futex = int(futex_of(process.pid, waiter), 16)
            seen = look(process.pid)
        finally:
            os.close(write_end)
            write_end = -1
            process.wait(timeout=DEADLINE)
            assert process.stdout is not None
            process.stdout.close()
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)
    assert len(seen["gils"]) == 1
    gil = seen["gils"][0]
    assert gil["locked"]
    assert gil["holder_tid"] == process.pid
    assert gil["address"] <= futex < gil["address"] + gil["size"]
    assert [thread["tid"] for thread in seen["threads"] if thread["holds_gil"]] == [process.pid]
    assert by_tid(seen)[process.pid]["frames"][0]["function"] == "hold"


def test_a_free_threaded_build_has_no_gil(python: str) -> None:
    if not free_threaded(python):
        pytest.skip("not a free-threaded build")
    with running(python, "python_target.py") as (process, _):
        seen = look(process.pid)
    assert seen["free_threaded"]
    assert seen["gils"] == []
    assert not any(thread["holds_gil"] for thread in seen["threads"])
    assert seen["problem"] == ""


def test_thread_ids_after_a_fork(python: str) -> None:
    with running(python, "fork_target.py") as (_, line):
        pid, tid = map(int, line.split())
        threads = by_tid(look(pid))
    assert set(threads) == {pid, tid}
    assert threads[tid]["name"] == "of-child"


def test_a_thread_in_another_interpreter_is_there_once(python: str) -> None:
    with running(python, "subinterpreter_target.py") as (process, line):
        tids = json.loads(line)
        for tid in tids.values():
            eventually(
                lambda tid=tid: syscall(process.pid, tid)[0] == "0", "a thread of an interpreter reads"
            )
        seen = look(process.pid)
    assert seen["problem"] == ""
    assert len(seen["threads"]) == 5
    threads = by_tid(seen)
    stacks = {
        role: [frame["function"].rpartition(".")[2] for frame in threads[tid]["frames"]]
        for role, tid in tids.items()
    }
    # Innermost the interpreter that the thread runs in, further out the one it came from.
    assert stacks["caller of second"] == ["in_sub", "<module>", "enter", "<module>"]
    assert stacks["caller of third"] == [
        "in_sub",
        "<module>",
        "enter",
        "run",
        "_bootstrap_inner",
        "_bootstrap",
    ]
    for name in ("second", "third"):
        own = stacks[f"thread of {name}"]
        assert own == ["in_thread", "run", "_bootstrap_inner", "_bootstrap"]
        assert threads[tids[f"thread of {name}"]]["name"] == f"thread of {name}"
    assert threads[tids["caller of second"]]["name"] == "MainThread"
    # Which it is called in the interpreter that it came from, not in the one where threading was imported by it.
    assert threads[tids["caller of third"]]["name"] == "enterer"
    numbers = [
        threads[tids[f"{kind} of {name}"]]["interpreter"]
        for name in ("second", "third")
        for kind in ("caller", "thread")
    ]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert 0 not in numbers


def test_a_running_process_is_never_misread(python: str) -> None:
    known = {"busy_leaf", "busy_generator", "busy_deep", "busy_loop", "busy_loop.<locals>", "<module>"}
    library = {"threading.py", "<made>", "busy_target.py"}
    seen = 0
    with running(python, "busy_target.py") as (process, _):
        for _ in range(25):
            for thread in look(process.pid)["threads"]:
                for frame in thread["frames"]:
                    seen += 1
                    assert Path(frame["file"]).name in library, frame
                    if Path(frame["file"]).name == "busy_target.py":
                        assert frame["function"] in known, frame
                        assert 0 <= frame["line"] <= 60
    assert seen


def test_a_process_that_ends_while_it_is_read(python: str) -> None:
    for _ in range(5):
        process = subprocess.Popen([python, "-c", "import threading"], stdin=subprocess.DEVNULL)
        codes = set()
        while process.poll() is None:
            done = subprocess.run([TOOL, str(process.pid)], capture_output=True, timeout=DEADLINE)
            codes.add(done.returncode)
        # 2 to 4: no maps, no runtime yet or no more, no interpreter. Never ended by a signal.
        assert codes <= {0, 2, 3, 4}


def test_not_a_python_process() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        eventually(lambda: syscall(process.pid, process.pid)[0] == "0", "cat reads")
        done = subprocess.run([TOOL, str(process.pid)], capture_output=True, text=True, timeout=DEADLINE)
    finally:
        process.stdin.close()
        process.wait(timeout=DEADLINE)
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"problem": "no Python runtime"}
