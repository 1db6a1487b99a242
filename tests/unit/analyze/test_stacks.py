"""What the report says of stacks themselves."""

from __future__ import annotations

from typing import Any

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import StackFrom
from pyhangtrace.model.report import ReportThread
from pyhangtrace.render.text.words import stack_notes
from tests.unit.analyze import builders as b


def reported(**changes: Any) -> ReportThread:
    [process] = analyze(b.evidence([b.rank(100, 0, 1)], [b.look(b.sleeper(100, **changes))])).processes
    [thread] = process.threads
    return thread


def test_a_stack_that_ends_early_says_why() -> None:
    thread = reported(
        frames=(b.native("read"), b.native("generated")),
        stack_from=StackFrom.PC_SP,
        stack_complete=False,
        stack_problem="code without unwind table",
    )
    assert thread.stack_problem == "code without unwind table"


def test_a_whole_stack_has_no_problem() -> None:
    thread = reported(
        frames=(b.native("read"), b.native("main")), stack_from=StackFrom.PC_SP, stack_complete=True
    )
    assert (thread.stack_problem, thread.unmerged_from) == (None, None)


def test_python_frames_alone_are_no_cut_stack() -> None:
    thread = reported(frames=(b.py("step"),), stack_problem="machine not supported")
    assert thread.stack_problem is None


def test_stacks_that_do_not_fit_together_are_told_apart() -> None:
    thread = reported(
        frames=(b.native("read"), b.native("main")), unmerged_python=(b.py("step"), b.py("<module>"))
    )
    assert [frame.function for frame in thread.stack] == ["read", "main", "step", "<module>"]
    assert thread.unmerged_from == 2


def test_python_frames_that_are_left_out_are_told_in_the_report_and_in_words() -> None:
    problem = "9000 frames left out between the innermost and the outermost ones"
    thread = reported(frames=(b.py("step"),), python_problem=problem)
    assert thread.python_problem == problem
    assert stack_notes(thread) == (f"({problem})",)
    assert stack_notes(reported(frames=(b.py("step"),))) == ()
