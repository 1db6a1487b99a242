"""Ranks whose program is over, and whose process is not."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Kind, State
from pyhangtrace.model.report import Report
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

AT_END = b.native("Py_FinalizeEx", "libpython3.11.so")
EVENT = (
    b.py("Condition.wait", b.THREADING, 327),
    b.py("Event.wait", b.THREADING, 629),
    b.py("upload", line=5),
)
JOIN = (b.py("_shutdown", b.THREADING, 1590), AT_END)


def judged(*threads: ThreadSample) -> Report:
    looks = b.twice(b.in_collective(100), *threads)
    return analyze(b.evidence(b.ranks(2), looks))


def waits(tid: int, *frames: Frame) -> ThreadSample:
    return b.on_python_lock(101, tid, frames=frames)


@pytest.mark.parametrize("frames", [JOIN, (*EVENT, AT_END)])
def test_a_rank_whose_program_is_over_never_comes(frames: tuple[Frame, ...]) -> None:
    verdict = judged(waits(101, *frames), waits(201, *EVENT)).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.LOCK_TEARDOWN)
    assert [who.rank for who in verdict.culprits] == [1]
    assert "has come to the end of its program" in verdict.summary
    assert any("in the log of rank 1" in step for step in verdict.next_steps)


@pytest.mark.parametrize(
    "other",
    [
        b.running(101, 201),
        b.asleep(101, 201, seconds=2),
    ],
)
def test_a_thread_that_goes_on_may_yet_come(other: ThreadSample) -> None:
    verdict = judged(waits(101, *JOIN), other).verdict
    assert verdict.state is not State.HUNG


def test_who_has_a_program_left_is_not_at_its_end() -> None:
    verdict = judged(waits(101, b.py("main")), waits(201, *JOIN)).verdict
    assert verdict.cause is not Kind.LOCK_TEARDOWN
