"""What the source around a nap says that a loop looks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyhangtrace.collect import nap_loops
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model import syscalls
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import blocked, program

MACHINE = os.uname().machine


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    with GuardedReader(TASKS) as made:
        yield made


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "while True:\n  try:\n    os.mkdir(p)\n  except FileExistsError:\n    NAP",
            "except FileExistsError",
        ),
        (
            "while True:\n  try:\n    make(p)\n  except (OSError, FileExistsError) as e:\n    NAP",
            "except FileExistsError",
        ),
        ("while os.path.exists(p):\n    # still there\n\n    if x:\n\tNAP", "while exists()"),
        ("while not path.is_file() or not isfile(p):\n    NAP", "while isfile()"),
        ("try:\n  f()\nexcept FileExistsError:\n  g()\nNAP", None),  # beside it, and not inside
        ("while True:\n  NAP", None),
        ("except FileExistsError:\n  def f():\n    NAP", None),  # of somebody else
        ("while exists:\n  NAP", None),
    ],
)
def test_lines_that_enclose_the_nap(source: str, words: str | None) -> None:
    lines = source.split("\n")
    assert nap_loops.around(lines, next(n for n, line in enumerate(lines, 1) if "NAP" in line)) == words


def test_a_line_that_is_not_there() -> None:
    assert nap_loops.around(["x"], 2) is None
    assert nap_loops.around([], 0) is None


def test_source_of_a_program_as_it_was_when_it_began(reader: GuardedReader, tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(
        "while True:\n    try:\n        f()\n    except FileExistsError:\n        time.sleep(9)\n"
    )
    os.utime(file, (1, 1))
    with program("import time; print('ready', flush=True); time.sleep(20)") as child:
        seen = blocked(child.pid, lambda one: syscalls.name(one.syscall, MACHINE) in nap_loops._NAPS)
        frame = Frame(kind=FrameKind.PYTHON, function="main", file=str(file), line=5)
        naps = replace(seen, timeout_s=9.0, frames=(frame,))

        def polls_for(sample: ThreadSample) -> str | None:
            (found,) = nap_loops.collect(reader, [sample], machine=MACHINE, deadline_s=10)
            return found.polls_for

        assert polls_for(naps) == "except FileExistsError"
        assert polls_for(replace(naps, timeout_s=300.0)) is None
        assert polls_for(replace(naps, syscall=0)) is None
        assert polls_for(replace(naps, frames=())) is None
        os.utime(file)  # written after the program began
        assert polls_for(naps) is None
        file.unlink()
        assert polls_for(naps) is None
