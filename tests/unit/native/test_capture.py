"""One look at a process: stacks merged with Python frames, Python locks, and processes that are no use to look at."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.targets import running, until

HERE = Path(__file__).parent
DEADLINE_S = 20.0


def by_name(process: Any) -> dict[str, Any]:
    return {thread["python_name"]: thread for thread in process["threads"] if thread["python_name"]}


def asleep(*names: str) -> Callable[[Any], bool]:
    """All these Python threads sleep in a futex and did not move."""

    def check(process: Any) -> bool:
        threads = by_name(process)
        return all(
            name in threads and threads[name]["lock"] is not None and not threads[name]["moved"]
            for name in names
        )

    return check


WAITERS = ("holder", "wait_with", "wait_reentrant", "wait_taken", "wait_path")


def test_python_locks_and_merged_stacks() -> None:
    with running(sys.executable, HERE / "capture_target.py") as pid:
        process = until(asleep(*WAITERS), pid)
    assert process["error"] is None
    assert process["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    threads = by_name(process)
    holder = threads["holder"]["tid"]

    in_with = threads["wait_with"]["lock"]
    assert in_with["kind"] == "python_lock"
    assert in_with["owner_tid"] == holder
    assert in_with["owner_function"] == "hold"
    assert not in_with["owner_exact"]

    reentrant = threads["wait_reentrant"]["lock"]
    assert reentrant["kind"] == ("python_rlock")
    assert (reentrant["owner_tid"], reentrant["owner_exact"]) == (holder, True)

    taken = threads["wait_taken"]["lock"]
    assert taken["kind"] == "python_lock"
    assert taken["owner_tid"] is None
    assert taken["problem"]

    never = {threads[name]["lock"]["python_lock_address"] for name in ("holder", "wait_path")}
    assert len(never) == 1
    assert None not in never

    for name in WAITERS:
        thread = threads[name]
        assert thread["complete"], thread["stack_problem"]
        assert thread["unmerged_python"] == []
        kinds = [frame[0] for frame in thread["frames"]]
        assert "python" in kinds
        assert "native" in kinds
        python = [frame for frame in thread["frames"] if frame[0] == "python"]
        assert python[0][1] == ("hold" if name == "holder" else name)
        assert Path(python[0][2]).name == "capture_target.py"
        assert python[-1][1].endswith("_bootstrap")
        # The lock is taken by C code that the Python function called.
        assert kinds[0] == "native"
        assert not any(frame[1].startswith("_PyEval_EvalFrameDefault") for frame in thread["frames"])
    assert pickle.loads(pickle.dumps(process)) == process


def test_lines_are_those_of_the_program() -> None:
    source = (HERE / "capture_target.py").read_text().splitlines()
    with running(sys.executable, HERE / "capture_target.py") as pid:
        process = until(asleep(*WAITERS), pid)
    lines = {
        name: source[next(frame[3] for frame in thread["frames"] if frame[0] == "python") - 1].strip()
        for name, thread in by_name(process).items()
        if name in WAITERS
    }
    assert lines == {
        "holder": "never.acquire()",
        "wait_with": "with in_with:",
        "wait_reentrant": "with reentrant:",
        "wait_taken": "taken.acquire()",
        "wait_path": "never.acquire()",
    }


def test_the_holder_of_the_gil() -> None:
    def waits_for_gil(process: Any) -> bool:
        main = by_name(process).get("MainThread")
        holder = by_name(process).get("keep_gil")
        return bool(
            main and main["lock"] and main["lock"]["kind"] == "gil" and holder and holder["state"] == "S"
        )

    with running(sys.executable, "-c", GIL_PROGRAM) as pid:
        process = until(waits_for_gil, pid)
    threads = by_name(process)
    holder = threads["keep_gil"]
    gil = process["python"]["gil"]
    assert holder["holds_gil"]
    assert (gil["locked"], gil["holder_tid"]) == (True, holder["tid"])
    lock = threads["MainThread"]["lock"]
    assert (lock["owner_tid"], lock["owner_exact"], lock["address"]) == (holder["tid"], True, gil["address"])


# The main thread wants the GIL back while the other one sleeps with it.
GIL_PROGRAM = """
import ctypes, threading
def keep_gil():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(1000)
thread = threading.Thread(target=keep_gil, name="keep_gil", daemon=True)
thread.start()
while True:
    pass
"""


def test_named_locals_are_read_and_no_others() -> None:
    with running(sys.executable, HERE / "capture_target.py") as pid:
        process = until(
            asleep(*WAITERS),
            pid,
            named_locals={"wait_path": ["lock_path", "attempts", "not_there"], "nobody": ["x"]},
        )
    assert by_name(process)["wait_path"]["named_values"] == [
        ("wait_path", "lock_path", "/tmp/some lock ✓"),
        ("wait_path", "attempts", 3),
        ("wait_path", "not_there", None),
    ]
    assert by_name(process)["holder"]["named_values"] == []


STARTS_THREADS = """
import sys, threading
for line in sys.stdin:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_later_looks_know_the_stacks_of_new_threads_and_of_those_that_slept_on() -> None:
    engine = _native.Engine()
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_THREADS], stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        try:
            for count in (1, 2, 3):

                def all_complete(found: Any, count: int = count) -> bool:
                    threads = found["threads"]
                    return len(threads) == count and all(
                        thread["complete"] and not thread["moved"] for thread in threads
                    )

                until(all_complete, process.pid, engine)
                until(all_complete, process.pid, engine)  # nobody ran since
                process.stdin.write("one more\n")
                process.stdin.flush()
        finally:
            process.kill()


LOADS_LATER = """
import sys
sys.stdin.readline()
assert "select" not in sys.modules
import select
select.poll().poll()
"""


def test_a_later_look_knows_code_that_was_loaded_since() -> None:
    engine = _native.Engine()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", LOADS_LATER], stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None

        def waits(found: Any) -> bool:
            [thread] = found["threads"]
            return thread["complete"] and not thread["moved"] and not thread["unmerged_python"]

        try:
            [reading] = until(waits, process.pid, engine)["threads"]
            until(waits, process.pid, engine)  # it has not run since
            process.stdin.write("go on\n")
            process.stdin.flush()

            def goes_on(found: Any) -> bool:
                return waits(found) and found["threads"][0]["slices"] > reading["slices"]

            found = until(
                lambda found: goes_on(found) and "poll" in str(found["threads"][0]["frames"][:4]),
                process.pid,
                engine,
            )
            [fresh] = until(waits, process.pid)["threads"]
            assert found["threads"][0]["frames"] == fresh["frames"]
        finally:
            process.kill()


WAITS_IN_TURNS = """
import sys, threading
held = threading.Lock()
held.acquire()
def waits_for_ever():
    with held:
        pass
threading.Thread(target=waits_for_ever, name="asleep", daemon=True).start()
def reads(depth):
    return reads(depth - 1) if depth else sys.stdin.readline()
for depth in (1, 5, 2):
    reads(depth)
"""


def test_who_slept_on_keeps_its_stack_and_who_ran_has_another() -> None:
    engine = _native.Engine()
    with subprocess.Popen(
        [sys.executable, "-c", WAITS_IN_TURNS], stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        try:
            for depth in (1, 5, 2):

                def in_turn(found: Any, calls: int = depth + 1) -> bool:
                    main = found["threads"][0]
                    functions = [function for _, function, *_ in main["frames"]]
                    return asleep("asleep")(found) and not main["moved"] and functions.count("reads") == calls

                found = until(in_turn, process.pid, engine)
                again = until(in_turn, process.pid, engine)
                fresh = until(in_turn, process.pid)
                for later in (again, fresh):
                    for name in ("frames", "complete", "lock", "stack_from"):
                        assert [t[name] for t in later["threads"]] == [t[name] for t in found["threads"]]
                process.stdin.write("next\n")
                process.stdin.flush()
        finally:
            process.kill()


def test_without_a_free_descriptor_nobody_is_called_gone() -> None:
    few = "import json, resource, sys; from pyhangtrace import _native; engine = _native.Engine(); "
    few += "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2); "
    few += "print(json.dumps(engine.capture([int(sys.argv[1])])))"
    with running("cat", ready=False) as pid:
        errors = []
        for limit in (3, 4, 5, 12, 40):
            command = (sys.executable, "-c", few, str(pid), str(limit))
            [process] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            errors.append(process["error"])
    assert errors[0] == "unreadable"
    assert errors[-1] is None
    assert set(errors) == {"unreadable", None}


def test_environment_and_arguments_of_the_program() -> None:
    with running(sys.executable, HERE / "capture_target.py", "one argument") as pid:
        engine = _native.Engine()
        environ = engine.python_environ(pid, ["HT_SET_BY_PROGRAM", "HT_NOT_SET"])
        argv = engine.python_argv(pid)
        assert engine.python_environ(2**30, ["PATH"]) == {}
        assert engine.python_argv(2**30) == []
    assert environ == {"HT_SET_BY_PROGRAM": "value ✓"}
    assert argv == [str(HERE / "capture_target.py"), "one argument"]


def test_a_running_thread_is_said_to_run_and_shows_its_python_frames() -> None:
    def spins(process: Any) -> bool:
        thread = by_name(process).get("spin")
        python = [*thread["frames"], *thread["unmerged_python"]] if thread else []
        return bool(thread and thread["running"] and any(frame[1] == "spin" for frame in python))

    with running(sys.executable, HERE / "capture_target.py", "spin") as pid:
        thread = by_name(until(spins, pid))["spin"]
    assert thread["moved"]
    assert thread["syscall"] is None
    # Where the kernel lets us sample it, it has a native stack, too; or by eBPF while others have the CPUs.
    assert thread["stack_from"] in (("none",) if thread["samples"] is None else ("perf", "bpf"))


def test_a_running_thread_is_not_sampled_where_that_is_not_wanted() -> None:
    def spins(process: Any) -> bool:
        return bool(by_name(process).get("spin", {}).get("running"))

    with running(sys.executable, HERE / "capture_target.py", "spin") as pid:
        process = until(spins, pid, running=False)
    assert by_name(process)["spin"]["samples"] is None
    assert "perf samples" not in {rung[0] for rung in process["rungs"]}
    # Those that wait are seen as ever.
    assert by_name(process)["wait_taken"]["complete"]


def test_without_stacks_no_memory_is_read() -> None:
    with running(sys.executable, HERE / "capture_target.py") as pid:
        [process] = _native.Engine().capture([pid], stacks=False)
    assert process["python"] is None
    assert process["threads"]
    for thread in process["threads"]:
        assert thread["frames"] == []
        assert thread["lock"] is None
        assert thread["run_ns"] is not None


def test_processes_come_in_the_order_asked_for_and_are_announced() -> None:
    announced: list[int] = []
    with running("cat", ready=False) as first, running("cat", ready=False) as second:
        pids = [second, 2**30, first, second]
        processes = _native.Engine().capture(pids, on_process=announced.append)
    assert [process["pid"] for process in processes] == pids
    assert announced == pids
    assert [process["error"] for process in processes] == [None, "gone", None, None]


def test_without_time_threads_are_listed_and_no_memory_is_read() -> None:
    with running(sys.executable, HERE / "capture_target.py") as pid:
        [process] = _native.Engine().capture([pid], budget_s=0)
        [whole] = _native.Engine().capture([pid], budget_s=DEADLINE_S)
    assert (process["error"], whole["error"]) == ("no_time", None)
    assert process["python"] is None
    assert len(process["threads"]) > 1
    for thread in process["threads"]:
        assert (thread["frames"], thread["lock"]) == ([], None)
        assert (thread["stack_from"], thread["stack_problem"]) == ("none", "no time was left")
        assert thread["run_ns"] is not None


def test_who_had_a_turn_before_the_time_was_over_is_kept() -> None:
    budget_s = 1.0
    with running("cat", ready=False) as first, running("cat", ready=False) as second:
        engine = _native.Engine()
        # Blocked in its read, and known: the next time takes no more than a moment.
        until(lambda process: process["threads"][0]["moved"] is False, first, engine)
        began = time.monotonic()

        def use_up(pid: int) -> None:
            while pid == second and time.monotonic() <= began + budget_s:
                os.sched_yield()

        processes = engine.capture([first, second, 2**30], budget_s=budget_s, on_process=use_up)
    assert [process["error"] for process in processes] == [None, "no_time", "gone"]
    assert [bool(thread["frames"]) for process in processes for thread in process["threads"]] == [True, False]


def test_an_exception_in_the_announcement_passes_through() -> None:
    def refuse(pid: int) -> None:
        raise ValueError(f"no more after {pid}")

    engine = _native.Engine()
    with pytest.raises(ValueError, match="no more"):
        engine.capture([1], on_process=refuse)
    assert engine.capture([2**30])[0]["error"] == "gone"


def test_a_zombie() -> None:
    process = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        [captured] = _native.Engine().capture([process.pid])
    finally:
        process.wait()
    assert captured["error"] == "zombie"
    assert captured["threads"][0]["state"] == "Z"
    assert captured["threads"][0]["frames"] == []


def test_a_kernel_thread() -> None:
    if not Path("/proc/2/stat").exists():
        pytest.skip("kernel threads are not visible in this pid namespace")
    [captured] = _native.Engine().capture([2])
    assert captured["error"] == "kernel_thread"
    assert captured["threads"][0]["syscall"] is None


def test_a_stopped_process_is_looked_at_and_left_stopped() -> None:
    with running("cat", ready=False) as pid:
        # Stopped while it starts, it would have no stack yet.
        started = "__libc_start_main"
        until(lambda process: any(frame[1] == started for frame in process["threads"][0]["frames"]), pid)
        os.kill(pid, signal.SIGSTOP)
        process = until(lambda process: process["threads"][0]["state"] == "T", pid)
        assert process["error"] is None
        assert process["threads"][0]["frames"]
        assert until(lambda process: True, pid)["threads"][0]["state"] == "T"


def test_a_process_that_execs_again_and_again(tmp_path: Path) -> None:
    script = tmp_path / "again"
    script.write_text(f"#!/bin/sh\nexec {script}\n")
    script.chmod(0o755)
    with running(script, ready=False) as pid:
        process = until(lambda process: process["exec_changed"], pid)
    for thread in process["threads"]:
        assert thread["frames"] == []
        assert thread["lock"] is None
    assert process["notes"]


def test_processes_that_end_while_they_are_looked_at() -> None:
    with running("sh", "-c", "while :; do (:) & (:) & wait; done", ready=False) as pid:
        engine = _native.Engine()
        seen = set()
        children = Path(f"/proc/{pid}/task/{pid}/children")
        end = time.monotonic() + DEADLINE_S
        while seen & {"gone", "zombie"} == set() and time.monotonic() < end:
            pids = [int(child) for child in children.read_text().split()]
            seen |= {process["error"] for process in engine.capture(pids)}
    assert seen & {"gone", "zombie"}
    assert seen <= {None, "gone", "zombie"}


def test_nothing_stays_open_for_processes_that_have_ended() -> None:
    engine = _native.Engine()
    left = []
    with running("cat", ready=False) as stays:
        for _ in range(10):
            with running("cat", ready=False) as ends:
                engine.capture([stays, ends])
            [process] = engine.capture([stays])
            assert process["error"] is None
            left.append(len(os.listdir("/proc/self/fd")))
    # A few libraries and their debug files are opened on the way, and stay; each process had several of its own.
    assert left[-1] < left[0] + len(left)


@pytest.mark.root
def test_a_process_of_another_user_is_not_permitted() -> None:
    with running("cat", ready=False) as pid:
        output = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(pid), _native.__file__],
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
    [captured] = pickle.loads(output)
    assert captured["error"] == "not_permitted"
    assert captured["threads"][0]["frames"] == []
    assert captured["threads"][0]["state"] in "SR"


# The extension may lie where only root can read, so it is loaded before the rights are dropped.
AS_NOBODY = """
import importlib.util, os, pickle, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[2])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
os.setgid(65534)
os.setuid(65534)
sys.stdout.buffer.write(pickle.dumps(native.Engine().capture([int(sys.argv[1])])))
"""


def test_a_32bit_program(tmp_path: Path, c_compiler: str) -> None:
    source = tmp_path / "small.c"
    source.write_text('int main(void) { for (;;) __asm__ volatile("int $0x80" : : "a"(29)); }\n')  # pause
    program = tmp_path / "small"
    built = subprocess.run(
        [c_compiler, "-m32", "-nostdlib", "-static", "-Wl,-emain", source, "-o", program],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if built.returncode != 0:
        pytest.skip("the compiler makes no 32-bit x86 programs")
    with running(program, ready=False) as pid:
        process = until(lambda process: process["error"] == "32bit", pid)
    assert process["threads"][0]["frames"] == []


def record(root: Path, tid: int, *, state: str, wchan: str, syscall: str, comm: str = "a b") -> None:
    """Writes what /proc shows of thread `tid` of process 7, and the process with it."""
    task = root / f"7/task/{tid}"
    task.mkdir(parents=True)
    stat = f"{tid} ({comm}) {state} 1 7 7 0 -1 0 5 0 6 0 1 2 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0\n"
    (task / "stat").write_text(stat)
    (task / "wchan").write_text(wchan)
    (task / "schedstat").write_text("10 0 4\n")
    (task / "syscall").write_text(syscall + "\n")
    (task / "stack").write_text("[<0>] inner+0x1/0x2\n[<0>] outer+0x1/0x2\n")
    if tid == 7:
        (root / "7/stat").write_text(stat)
        (root / "7/exe").symlink_to(sys.executable)
        (root / "7/maps").write_text("4000-5000 r-xp 00000000 00:00 0 \n")


READ_CALL = "0 0x3 0x1 0x2 0x0 0x0 0x0 0x7ffe 0x4000"
MUNMAP_CALL = "11 0x7000 0x1000 0x0 0x0 0x0 0x0 0x7ffe 0x4000"
PAGE_FAULT = "-1 0x7ffe 0x4000"


def test_a_recorded_tree_of_another_root(tmp_path: Path) -> None:
    record(tmp_path, 7, state="S", wchan="do_nothing", syscall=READ_CALL)
    [process] = _native.Engine(str(tmp_path)).capture([7])
    [thread] = process["threads"]
    assert process["error"] is None
    assert (thread["comm"], thread["state"], thread["wchan"]) == ("a b", "S", "do_nothing")
    assert (thread["run_ns"], thread["slices"], thread["cpu"]) == (10, 4, 3)
    assert (thread["syscall"], thread["args"]) == (0, (3, 1, 2, 0, 0, 0))
    assert (thread["minflt"], thread["majflt"], thread["utime"], thread["stime"]) == (5, 6, 1, 2)
    assert thread["kernel_stack"] == []
    assert not thread["complete"]
    assert not thread["moved"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
@pytest.mark.parametrize(
    ("state", "wchan", "syscall", "held"),
    [
        ("D", "__vma_start_write", MUNMAP_CALL, True),
        ("D", "rwsem_down_write_slowpath", PAGE_FAULT, True),
        ("D", "request_wait_answer", MUNMAP_CALL, True),
        ("D", "folio_wait_bit_common", PAGE_FAULT, False),
        ("D", "folio_wait_bit_common", READ_CALL, False),
        ("S", "futex_do_wait", MUNMAP_CALL, False),
    ],
)
def test_memory_is_left_alone_while_the_mmap_lock_is_held(
    tmp_path: Path, state: str, wchan: str, syscall: str, *, held: bool
) -> None:
    record(tmp_path, 7, state="S", wchan="do_nothing", syscall=READ_CALL)
    record(tmp_path, 9, state=state, wchan=wchan, syscall=syscall, comm="sleeper")
    [process] = _native.Engine(str(tmp_path)).capture([7])
    assert process["error"] == ("mmap_lock_held" if held else None)
    assert process["error_tid"] == (9 if held else None)
    sleeper = process["threads"][1]
    assert (sleeper["comm"], sleeper["state"], sleeper["wchan"]) == ("sleeper", state, wchan)
    assert sleeper["kernel_stack"] == (["inner", "outer"] if state == "D" else [])
    # What takes no lock is there in either case.
    assert [thread["syscall"] for thread in process["threads"]] == [0, int(syscall.split()[0])]
    # Frames would have been looked for, had memory been touched.
    assert all((thread["stack_problem"] is None) == held for thread in process["threads"])
