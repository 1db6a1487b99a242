"""Programs that wait for each other in a ring: the same is said of them whichever of them is asked for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from pyhangtrace.collect.procfs import read_table
from pyhangtrace.collect.threads import read_thread
from pyhangtrace.engine import AttachOptions, attach
from pyhangtrace.model import syscalls
from pyhangtrace.model.kinds import Confidence, Kind, State
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import DEADLINE_S

MEMBER = Path(__file__).parent / "targets" / "ring_member.py"
FIRST_READ, FIRST_WRITE = 100, 200
QUICK = AttachOptions(bpf=False)


@contextmanager
def ring(kind: str, letters: str, folder: Path) -> Iterator[list[int]]:
    """The pids of a ring of programs that know nothing of each other, each in a session of its own."""
    with ExitStack() as stack:
        fds = _pipes(stack, len(letters)) if kind == "pipes" else ()
        programs = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(MEMBER), kind, letter, letters, str(folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=fds,
                    start_new_session=True,
                )
            )
            for letter in letters
        ]
        pids: list[int] = []
        stack.callback(lambda: [program.kill() for program in programs])
        stack.callback(lambda: [_kill(pid) for pid in pids])
        for program in programs:
            assert program.stdout is not None
            word, *found = program.stdout.readline().split()
            assert word == "ready"
            pids += map(int, found)
        for fd in fds:
            os.close(fd)
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        asleep(pids, threads=2 if kind == "threads" else 1)
        yield pids


def _pipes(stack: ExitStack, count: int) -> tuple[int, ...]:
    """Descriptors from `FIRST_READ` on to read from pipes, from `FIRST_WRITE` on to write to them."""
    kept = []
    for index in range(count):
        for end, place in zip(os.pipe(), (FIRST_READ + index, FIRST_WRITE + index), strict=True):
            if os.path.exists(f"/proc/self/fd/{place}"):
                pytest.skip("the descriptors that are to be the pipes' are taken")
            kept.append(os.dup2(end, place))
            os.close(end)
    return tuple(kept)


def _kill(pid: int) -> None:
    if os.path.exists(f"/proc/{pid}"):
        os.kill(pid, 9)


def asleep(pids: Sequence[int], *, threads: int) -> None:
    """Waits until all of their threads are in a call for what another one has to do."""
    until = time.monotonic() + DEADLINE_S
    while not all(stands(pid, threads) for pid in pids):
        assert time.monotonic() < until, [stands(pid, threads) for pid in pids]
        os.sched_yield()


def stands(pid: int, threads: int) -> bool:
    found = [read_thread(pid, int(tid)) for tid in os.listdir(f"/proc/{pid}/task")]
    return len(found) == threads and all(one is not None and waits(one) for one in found)


def waits(sample: ThreadSample) -> bool:
    call = syscalls.name(sample.syscall, os.uname().machine)
    if call == "read":
        return FIRST_READ <= sample.args[0] < FIRST_WRITE
    return call in ("flock", "fcntl", "futex", "wait4")


def told(report: Report) -> tuple[object, ...]:
    verdict = report.verdict
    named = tuple(sorted((who.pid, who.tid, who.part) for who in verdict.culprits))
    return (verdict.state, verdict.symptom, verdict.cause, verdict.confidence, named)


@pytest.mark.parametrize("kind", ["flock", "threads", "children", "mutex", "pipes"])
@pytest.mark.parametrize("letters", ["ab", "abcde"])
def test_a_ring_is_the_same_from_each_of_its_members(kind: str, letters: str, tmp_path: Path) -> None:
    with ring(kind, letters, tmp_path) as pids:
        reports = [attach([pid], QUICK).report for pid in pids]
    first, *others = map(told, reports)
    assert reports[0].verdict.state is State.HUNG
    assert reports[0].verdict.cause is (Kind.IPC_CYCLE if kind == "pipes" else Kind.LOCK_CYCLE)
    assert {who.pid for who in reports[0].verdict.culprits} == set(pids)
    assert others == [first] * len(others)


def test_the_ring_of_a_pipeline_of_commands(tmp_path: Path) -> None:
    """What each has its children have as well, by the same open file, and it waits for them."""
    if shutil.which("flock") is None:
        pytest.skip("needs flock of util-linux")
    # Each takes its file, waits until the other one has its own, and asks for that.
    step = "touch {0}.has; until [ -e {1}.has ]; do sleep 0.01; done; exec 0<&-; flock {1} true; :"
    parts = [f"flock {one} sh -c '{step.format(one, other)}'" for one, other in ("AB", "BA")]
    with subprocess.Popen(
        ["bash", "-c", f"{parts[0]} & {parts[1]} & wait"], cwd=tmp_path, start_new_session=True
    ) as shell:
        try:
            pids = tree(shell.pid, count=7)
            reports = [attach([pid], QUICK).report for pid in pids]
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    first, *others = map(told, reports)
    assert reports[0].verdict.state is State.HUNG
    assert reports[0].verdict.confidence is not Confidence.POSSIBLE
    assert {who.pid for who in reports[0].verdict.culprits} == set(pids) - {shell.pid}
    assert others == [first] * len(others)


def tree(root: int, *, count: int) -> list[int]:
    """A process with all below it, once there are so many and all are in a call that only another one ends."""
    until = time.monotonic() + DEADLINE_S
    while True:
        table = read_table()
        found = [root, *table.descendants(root)]
        with suppress(OSError):
            if len(found) == count and all(stands(pid, 1) for pid in found):
                return found
        assert time.monotonic() < until, found
        os.sched_yield()
