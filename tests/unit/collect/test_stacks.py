"""Native captures as evidence, with an engine that is a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from pyhangtrace.collect import stacks
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.kinds import FoundBy, FrameKind, PolledThing, SourceState, StackFrom
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import NamedValue

LOCK = {
    "kind": "mutex_normal",
    "address": 4096,
    "uaddr": 4096,
    "op": 0,
    "value": 2,
    "expected": 2,
    "timeout": False,
    "owner_tid": 8,
    "owner_from": "pthread_mutex_t.__owner",
    "owner_exact": True,
    "readers": None,
    "mutex": None,
    "shared_key": (65024, 12, 64),
    "shared_file": "/dev/shm/lock",
    "owner_age_s": 12.5,
    "unseen_owner": None,
    "python_lock_address": None,
    "owner_function": None,
    "problem": None,
}
THREAD = {
    "tid": 7,
    "comm": "py\nthon",
    "state": "D",
    "wchan": "futex_do_wait",
    "syscall": 202,
    "args": (1, 2, 3, 4, 5, 6),
    "sp": 1,
    "pc": 2,
    "run_ns": 100,
    "slices": 5,
    "start_ticks": 1,
    "cpu": 1,
    "utime": 3,
    "stime": 4,
    "minflt": 5,
    "majflt": 6,
    "moved": False,
    "running": False,
    "frames": [
        ("native", "pthread_mutex_lock", None, None, "libc.so.6", 77, "leaf"),
        ("python", "train", "train.py", 12, None, None, "python"),
    ],
    "unmerged_python": [],
    "samples": None,
    "stack_from": "pc_sp",
    "complete": True,
    "stack_problem": None,
    "python_problem": None,
    "python_name": "MainThread",
    "ident": 9,
    "holds_gil": True,
    "lock": LOCK,
    "kernel_stack": ["futex_do_wait+0x12/0x40", "do_futex"],
    "named_values": [("FileBaton.wait", "self.lock_file_path", "/tmp/x"), ("recv", "src", 3)],
    "nap_loop": [],
    "lets_go": None,
}
PYTHON = {
    "version": "3.11.7",
    "layout_from": "table 3.11",
    "free_threaded": False,
    "gil": {"address": 5, "locked": True, "holder_tid": 7},
    "problem": None,
    "thread_count": 1,
}


def captured(pid: int, **more: Any) -> dict[str, Any]:
    whole = {"pid": pid, "error": None, "error_tid": None, "exec_changed": False, "threads": [THREAD]}
    whole |= {"tasks": [], "tasks_left_out": 0, "rungs": [], "stopped_us": 0}
    return {**whole, "python": PYTHON, "notes": ["a note"], **more}


def test_a_capture_becomes_evidence() -> None:
    picture = stacks.picture(captured(7))  # type: ignore[arg-type]
    (thread,) = picture.threads
    assert (thread.pid, thread.tid, thread.comm, thread.name) == (
        7,
        7,
        "py\N{REPLACEMENT CHARACTER}thon",
        "MainThread",
    )
    assert thread.frames == (
        Frame(kind=FrameKind.KERNEL, function="futex_do_wait"),
        Frame(kind=FrameKind.KERNEL, function="do_futex"),
        Frame(
            kind=FrameKind.NATIVE,
            function="pthread_mutex_lock",
            module="libc.so.6",
            address=77,
            found_by=FoundBy.LEAF,
        ),
        Frame(kind=FrameKind.PYTHON, function="train", file="train.py", line=12, found_by=FoundBy.PYTHON),
    )
    assert thread.lock is not None
    assert (thread.lock.owner_tid, thread.lock.shared_key, thread.lock.expected) == (8, (65024, 12, 64), 2)
    assert thread.named_values == (
        NamedValue(function="FileBaton.wait", name="lock_file_path", value="/tmp/x"),
        NamedValue(function="recv", name="src", value=3),
    )
    assert (thread.stack_from, thread.stack_complete) == (StackFrom.PC_SP, True)
    assert picture.python is not None
    assert (picture.python.gil_holder_tid, picture.python.gil_locked) == (7, True)
    assert picture.cpus == {7: 1}
    assert picture.notes == ("a note",)


@pytest.mark.parametrize(
    ("called", "words"),
    [
        (["pthread_mutex_trylock", "nanosleep"], "pthread_mutex_trylock()"),
        (["usleep", "__pthread_rwlock_trywrlock"], "__pthread_rwlock_trywrlock()"),
        (["std::shared_mutex::try_lock_shared()"], "std::shared_mutex::try_lock_shared()"),
        (["pthread_mutex_trylock", "pthread_mutex_unlock"], None),  # gets it, works, and gives it back
        (["usleep", "entrylock", "try_lockdown", "pthread_mutex_lock"], None),
        ([], None),
    ],
)
def test_loops_in_c_that_ask_for_a_lock_between_naps(called: list[str], words: str | None) -> None:
    (thread,) = stacks.picture(captured(7, threads=[{**THREAD, "nap_loop": called}])).threads  # type: ignore[arg-type]
    assert thread.polls_for == words
    assert thread.polled is (PolledThing.LOCK if words is not None else None)


@pytest.mark.parametrize(
    ("called", "words"),
    [
        (["MPI_Test", "usleep"], "MPI_Test()"),
        (["PMPI_Testall", "__nanosleep", "sched_yield"], "PMPI_Testall()"),
        # It does something else meanwhile, or serves whoever comes first.
        (["MPI_Test", "usleep", "step"], None),
        (["MPI_Testany", "usleep"], None),
        (["usleep"], None),
    ],
)
def test_a_loop_that_does_nothing_but_ask_mpi(called: list[str], words: str | None) -> None:
    (thread,) = stacks.picture(captured(7, threads=[{**THREAD, "nap_loop": called}])).threads  # type: ignore[arg-type]
    assert thread.polls_for == words
    assert thread.polled is (PolledThing.MPI_REQUEST if words is not None else None)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"error": "mmap_lock_held", "error_tid": 9}, "mmap_lock_held"),
        ({"exec_changed": True}, "exec_changed"),
        ({"error": "gone", "threads": [], "python": None}, "gone"),
    ],
)
def test_problems(more: Mapping[str, Any], problem: str) -> None:
    picture = stacks.picture(captured(7, **more))  # type: ignore[arg-type]
    assert picture.problem == problem
    assert picture.problem_tid == more.get("error_tid")


class Engine:
    """Gives one capture per process; dies at process 13."""

    def capture(
        self,
        pids: Sequence[int],
        *,
        named_locals: Mapping[str, Sequence[str]],
        bpf: bool,
        running: bool,
        stop: Sequence[int],
        on_process: Callable[[int], None],
        budget_s: float,
        workers: int,
    ) -> list[dict[str, Any]]:
        found = []
        for pid in pids:
            on_process(pid)
            if pid == 13:
                import os

                os.abort()
            assert 0 < budget_s < 20
            found.append(captured(pid, notes=[f"{sorted(named_locals)}"]))
        return found

    def python_environ(self, pid: int, names: Sequence[str]) -> dict[str, str]:
        return {"RANK": f"{pid}\x1b"} if "RANK" in names and pid == 7 else {}


def with_engine(task: Callable[..., Iterator[tuple[int, Any]]]) -> Callable[..., Iterator[tuple[int, Any]]]:
    def run(
        state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        state.kept.setdefault("engine", Engine())
        yield from task(state, pids, argument, progress)

    return run


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    tasks = {
        stacks.CAPTURE_TASK: with_engine(stacks.capture_task),
        stacks.PROGRAM_ENVIRON_TASK: with_engine(stacks.program_environ_task),
    }
    with GuardedReader(tasks) as made:
        yield made


def test_a_crash_of_native_code_costs_one_process(reader: GuardedReader) -> None:
    options = stacks.CaptureOptions(named_locals={"f": ("x",)})
    pictures = stacks.collect(reader, [7, 13, 8], options=options, deadline_s=20, proc_root="/nonexistent")
    assert list(pictures) == [7, 13, 8]
    assert pictures[7].problem is None
    assert pictures[8].notes == ("['f']",)
    assert pictures[13].threads == ()
    assert pictures[13].problem == "gone"  # there is no such process in this tree


def test_environment_from_memory(reader: GuardedReader) -> None:
    found = stacks.program_environs(reader, [7, 8], ["RANK"], deadline_s=10)
    assert found == {7: {"RANK": "7\N{REPLACEMENT CHARACTER}"}}


def test_ways_that_were_needed_become_coverage() -> None:
    refused = ("ebpf registers", "refused", "loading a program: Operation not permitted")
    picture = stacks.picture(captured(7, rungs=[refused]))  # type: ignore[arg-type]
    (line,) = picture.rungs
    assert (line.source, line.state, line.reason) == ("ebpf registers", SourceState.REFUSED, refused[2])
    assert "CAP_BPF" in line.fix
