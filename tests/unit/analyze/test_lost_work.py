"""Work of a pool that nobody has any more."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Kind, Part, Role, State
from pyhangtrace.model.open_files import Holder
from pyhangtrace.model.report import Verdict
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

POOL = "/usr/lib/python3.11/multiprocessing/pool.py"
CONNECTION = "/usr/lib/python3.11/multiprocessing/connection.py"
MAIN = b.on_python_lock(
    100,
    frames=(
        b.py("Condition.wait", b.THREADING, 327),
        b.py("ApplyResult.get", POOL),
        b.py("Pool.map", POOL),
        b.py("main"),
    ),
)
TASKS = b.on_python_lock(
    100,
    201,
    frames=(b.native("_queue_SimpleQueue_get", "_queue.so"), b.py("Pool._handle_tasks", POOL)),
)


def reader(pid: int, tid: int, fd: int, *outer: Any) -> ThreadSample:
    return b.on_fd(pid, tid, fd=fd, frames=(b.py("Connection._recv", CONNECTION), *outer))


RESULTS = reader(100, 202, 4, b.py("Pool._handle_results", POOL))
IDLE = reader(101, 101, 3, b.py("worker", POOL))


def judged(*threads: ThreadSample, seconds: float = 60.0) -> Verdict:
    slept = tuple(b.replace(thread, asleep_for_s=seconds) for thread in threads)
    fds = [
        b.pipe(101, 3, 70, Holder(pid=100, mode="w")),
        b.pipe(100, 4, 71, Holder(pid=101, mode="w")),
    ]
    processes = [b.process(100, ppid=1), b.process(101, ppid=100, role=Role.DATA_WORKER)]
    return analyze(b.evidence(processes, b.twice(*slept, fds=fds))).verdict


def test_a_result_that_no_worker_is_at_does_not_come() -> None:
    verdict = judged(MAIN, TASKS, RESULTS, IDLE)
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.WORKER_DEAD)
    assert [(who.pid, who.part) for who in verdict.culprits] == [(100, Part.PARTY)]
    assert "a piece of work that none of its workers is at" in verdict.summary
    assert any("BrokenProcessPool" in step for step in verdict.next_steps)


@pytest.mark.parametrize(
    "threads",
    [
        # A worker is at something.
        (MAIN, TASKS, RESULTS, b.asleep(101, seconds=3600)),
        # The program is still making the next piece of work, or takes a result.
        (MAIN, b.replace(TASKS, frames=(b.py("rows"), *TASKS.frames[1:])), RESULTS, IDLE),
        (MAIN, TASKS, b.replace(RESULTS, frames=(b.py("on_result"), *RESULTS.frames[1:])), IDLE),
        # Whose threads these are is not known, or they are not seen.
        (MAIN, TASKS, b.replace(TASKS, tid=203), RESULTS, IDLE),
        (MAIN, RESULTS, IDLE),
    ],
)
def test_work_that_may_yet_be_done(threads: tuple[ThreadSample, ...]) -> None:
    assert judged(*threads).cause is not Kind.WORKER_DEAD


def test_work_that_was_handed_on_just_now() -> None:
    assert judged(MAIN, TASKS, RESULTS, IDLE, seconds=1.0).cause is not Kind.WORKER_DEAD
