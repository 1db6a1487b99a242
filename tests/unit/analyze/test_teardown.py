"""Ranks whose program is over, and whose process is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Kind, Part, State
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


def test_who_wants_a_lock_of_nobody_is_no_culprit_where_the_program_is_over() -> None:
    own = b.local("Thread._bootstrap_inner", "_daemonic", 0)
    holder = replace(b.on_python_lock(100, 101, frames=EVENT), named_values=(own,))
    waiter = replace(b.on_python_lock(100, 102), named_values=(own,))
    looks = b.twice(b.on_python_lock(100, frames=JOIN), holder, waiter)
    verdict = analyze(b.evidence([b.process(100)], looks)).verdict
    assert (verdict.state, verdict.symptom, verdict.cause) == (
        State.HUNG,
        Kind.LOCK_TEARDOWN,
        Kind.LOCK_HELD,
    )
    assert [(who.tid, who.part) for who in verdict.culprits] == [(102, Part.PARTY)]
    assert not any("end its threads" in step for step in verdict.next_steps)
