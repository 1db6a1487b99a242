"""The guarded reader: what blocks or crashes costs one process its answers, and nobody else."""

from __future__ import annotations

import ctypes
import os
import queue
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.collect import guarded
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress


def task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Does to each pid what `argument` says."""
    for pid in pids:
        progress(pid)
        act = argument.get(pid, "answer")
        if act == "spin":
            while True:
                pass
        if act == "crash":
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        if act == "raise":
            raise ValueError("no good")
        if act == "sleep_in_kernel":  # vfork: this thread is in state D until the child execs or ends
            # Were a thread to ask for the GIL now, the child would wait for it, and has no such thread. From here on
            # nobody asks for so long, and who has asked gets it.
            sys.setswitchinterval(1000)
            time.sleep(0.01)
            libc = ctypes.PyDLL(None)  # keeps the GIL: the child has no other thread that could give it
            # clone(CLONE_VFORK) without CLONE_VM: the waiting side sleeps uninterruptibly, the stack is not shared.
            if libc.syscall(56, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
                libc.prctl(1, signal.SIGKILL, 0, 0, 0)
                signal.pause()
        yield pid, (pid, act, state.kept.setdefault("first", os.getpid()))


def by_threads(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Does to each pid what `argument` says: all at once, each by a thread of its own, unless told not to. "wait" ends
    when all the others have."""
    if state.one_at_a_time:
        yield from task(state, pids, argument, progress)
        return
    waiting = [pid for pid in pids if argument.get(pid) == "wait"]
    others = [pid for pid in pids if pid not in waiting]
    results: queue.Queue[tuple[int, Any] | ValueError] = queue.Queue()
    all_began = threading.Barrier(len(pids))
    others_ended = threading.Semaphore(0)

    def run(pid: int, begun: threading.Event) -> None:
        progress(pid)
        begun.set()
        all_began.wait()
        if pid in waiting and others:
            others_ended.acquire()
        try:
            results.put(next(task(state, [pid], argument, lambda _: None)))
        except ValueError as problem:
            results.put(problem)
        others_ended.release(len(pids))

    for pid in pids:
        begun = threading.Event()
        threading.Thread(target=run, args=(pid, begun), daemon=True).start()
        begun.wait()
    for _ in pids:
        result = results.get()
        if isinstance(result, ValueError):
            raise result
        yield result


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    with GuardedReader({"task": task, "by_threads": by_threads}, stuck_after_s=0.1) as made:
        yield made


def test_answers_come_back_and_state_is_kept(reader: GuardedReader) -> None:
    first = reader.run("task", [1, 2, 2], {}, deadline_s=10)
    again = reader.run("task", [3], {}, deadline_s=10)
    assert list(first.values) == [1, 2]
    assert first.problems == {}
    assert first.values[1][2] == again.values[3][2] != os.getpid()


def test_what_was_asked_ahead_is_asked_once(reader: GuardedReader) -> None:
    reader.prefetch("task", [1], {})
    assert sorted(reader.run("task", [1], {}, deadline_s=10).values) == [1]
    assert sorted(reader.run("task", [2], {}, deadline_s=10).values) == [2]


def test_big_answers_cross_the_pipe() -> None:
    def big(
        state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        for pid in pids:
            yield pid, b"x" * argument

    with GuardedReader({"big": big}) as reader:
        assert len(reader.run("big", [1], 10_000_000, deadline_s=20).values[1]) == 10_000_000


def test_a_crash_gives_up_one_process(reader: GuardedReader) -> None:
    answers = reader.run("task", [1, 2, 3], {2: "crash"}, deadline_s=10)
    assert sorted(answers.values) == [1, 3]
    assert answers.problems == {2: guarded.CRASHED}
    later = reader.run("task", [2, 3], {}, deadline_s=10)
    assert sorted(later.values) == [3]
    assert later.problems == {2: guarded.CRASHED}


def test_an_exception_is_told(reader: GuardedReader) -> None:
    answers = reader.run("task", [1, 2], {1: "raise"}, deadline_s=10)
    assert answers.problems == {1: "reader_failed: ValueError: no good"}
    assert sorted(answers.values) == [2]


def test_the_deadline_holds(reader: GuardedReader) -> None:
    started = time.monotonic()
    answers = reader.run("task", [1, 2, 3], {2: "spin"}, deadline_s=0.5)
    assert time.monotonic() - started < 5
    assert sorted(answers.values) == [1]
    assert answers.problems == {2: guarded.TIMED_OUT, 3: guarded.TIMED_OUT}
    # Whoever was only late because of another one is read next time.
    assert sorted(reader.run("task", [1, 3], {}, deadline_s=10).values) == [1, 3]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="makes a system call by its x86-64 number")
def test_uninterruptible_sleep_is_noticed_long_before_the_deadline(reader: GuardedReader) -> None:
    started = time.monotonic()
    answers = reader.run("task", [1, 2], {1: "sleep_in_kernel"}, deadline_s=60)
    assert time.monotonic() - started < 30
    assert answers.problems == {1: guarded.TIMED_OUT}
    assert sorted(answers.values) == [2]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="makes a system call by its x86-64 number")
@pytest.mark.parametrize("stuck", [1, 2, 3])
def test_of_several_at_once_the_one_that_is_stuck_is_given_up(reader: GuardedReader, stuck: int) -> None:
    others = [pid for pid in (1, 2, 3) if pid != stuck]
    acts = dict.fromkeys(others, "wait") | {stuck: "sleep_in_kernel"}
    answers = reader.run("by_threads", [1, 2, 3], acts, deadline_s=60)
    assert answers.problems == {stuck: guarded.TIMED_OUT}
    assert {pid: act for pid, (_, act, _) in answers.values.items()} == dict.fromkeys(others, "wait")


@pytest.mark.parametrize("broken", [1, 2, 3])
@pytest.mark.parametrize(("act", "problem"), [("crash", guarded.CRASHED), ("raise", "reader_failed")])
def test_of_several_at_once_the_one_that_ends_the_helper_is_given_up(
    reader: GuardedReader, broken: int, act: str, problem: str
) -> None:
    answers = reader.run("by_threads", [1, 2, 3], {broken: act}, deadline_s=60)
    assert sorted(answers.values) == [pid for pid in (1, 2, 3) if pid != broken]
    assert {pid: why.partition(":")[0] for pid, why in answers.problems.items()} == {broken: problem}


def test_usage_counts_all_threads_of_a_helper() -> None:
    def spin_a_while(
        state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        def spin() -> None:
            while time.thread_time() < argument:
                pass

        thread = threading.Thread(target=spin)
        thread.start()
        thread.join()
        yield 1, None

    with GuardedReader({"spin": spin_a_while}) as reader:
        reader.run("spin", [1], 0.2, deadline_s=60)
        assert reader.usage().cpu_s >= 0.2


def test_usage_counts_helpers_that_ended(reader: GuardedReader) -> None:
    reader.run("task", [1], {1: "spin"}, deadline_s=1.5)
    reader.run("task", [2], {}, deadline_s=10)
    usage = reader.usage()
    assert usage.cpu_s > 0.05
    assert usage.unkillable == ()


def test_no_descriptor_reaches_the_helper(tmp_path: Path) -> None:
    def listing(
        state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        links = []
        for name in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue
        yield 1, links

    with (tmp_path / "open").open("w"), GuardedReader({"listing": listing}) as reader:
        links = reader.run("listing", [1], deadline_s=10).values[1]
    assert str(tmp_path / "open") not in links
    assert sum(link.startswith("pipe:") for link in links) == 2


def test_the_helper_dies_with_its_parent() -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pyhangtrace.collect.guarded import GuardedReader
        def where(state, pids, argument, progress):
            yield 1, os.getpid()
        reader = GuardedReader({"where": where})
        print(reader.run("where", [1], deadline_s=10).values[1], flush=True)
        signal.pause()
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    helper = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    ready = select.select([helper], [], [], 20)[0]
    os.close(helper)
    assert ready, "the helper outlived its parent"


@pytest.mark.parametrize(
    ("wchan", "reason"),
    [
        ("rwsem_down_read_slowpath", guarded.MMAP_LOCK_HELD),
        ("__access_remote_vm", guarded.MMAP_LOCK_HELD),
        ("access_remote_vm", guarded.MMAP_LOCK_HELD),
        ("m_start", guarded.MMAP_LOCK_HELD),
        ("process_vm_rw_core.constprop.0", guarded.MMAP_LOCK_HELD),
        ("folio_wait_bit_common", guarded.TIMED_OUT),
        ("rpc_wait_bit_killable", guarded.TIMED_OUT),
        ("request_wait_answer", guarded.TIMED_OUT),
    ],
)
def test_what_a_stuck_reader_waits_for(wchan: str, reason: str) -> None:
    assert guarded.reason_of(wchan) == reason
