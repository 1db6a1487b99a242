"""Lines of coverage about what processes did not give."""

from __future__ import annotations

from pyhangtrace.collect.problems import coverage
from pyhangtrace.collect.stacks import ProcessPicture
from pyhangtrace.model.kinds import FrameKind, SourceState
from pyhangtrace.model.processes import PythonFacts
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample


def picture(pid: int, function: str, *, python: PythonFacts | None = None) -> ProcessPicture:
    frames = (
        Frame(kind=FrameKind.NATIVE, function="select"),
        Frame(kind=FrameKind.NATIVE, function=function),
    )
    thread = ThreadSample(pid=pid, tid=pid, comm="x", frames=frames)
    return ProcessPicture(pid, (thread,), python, None, None, {})


def test_an_interpreter_that_is_too_old_is_said_once_for_all_processes() -> None:
    pictures = {pid: picture(pid, "PyEval_EvalFrameEx") for pid in (8, 7)}
    [line] = [line for line in coverage(pictures, ()) if line.source == "python frames"]
    assert line.state is SourceState.ABSENT
    assert line.reason.startswith("of pids 7, 8: ")
    assert "3.8" in line.fix


def test_nothing_is_said_of_programs_in_c_and_of_interpreters_that_are_understood() -> None:
    facts = PythonFacts(version="3.11.7", layout_from="table 3.11")
    pictures = {7: picture(7, "main"), 8: picture(8, "_PyEval_EvalFrameDefault", python=facts)}
    assert [line.source for line in coverage(pictures, ())] == ["stacks"]
