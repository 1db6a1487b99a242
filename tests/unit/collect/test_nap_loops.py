"""Of which programs the source around a nap is read."""

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
from pyhangtrace.model.kinds import FrameKind, PolledThing
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import TaskSample, ThreadSample
from tests.unit.collect.helpers import blocked, program

MACHINE = os.uname().machine


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    with GuardedReader(TASKS) as made:
        yield made


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
            (found,), _, _ = nap_loops.collect(reader, [sample], machine=MACHINE, deadline_s=10)
            return found.polls_for

        assert polls_for(naps) == "except FileExistsError"
        assert polls_for(replace(naps, timeout_s=300.0)) is None
        assert polls_for(replace(naps, syscall=0)) is None
        assert polls_for(replace(naps, frames=())) is None
        os.utime(file)  # written after the program began
        assert polls_for(naps) is None
        file.unlink()
        assert polls_for(naps) is None


def test_program_on_the_command_line(reader: GuardedReader) -> None:
    text = "import time, threading\nlock = threading.Lock()\nlock.acquire()\nprint('ready', flush=True)\n"
    with program(text + "while not lock.acquire(False):\n    time.sleep(9)") as child:
        naps = blocked(child.pid, lambda one: syscalls.name(one.syscall, MACHINE) in nap_loops._NAPS)
        frame = Frame(kind=FrameKind.PYTHON, function="<module>", file="<string>", line=6)
        naps = replace(naps, timeout_s=9.0, frames=(frame,))
        other = replace(naps, frames=(replace(frame, function="f"),))  # exec() gives no name either
        found, _, _ = nap_loops.collect(reader, [naps, other], machine=MACHINE, deadline_s=10)
        assert [(each.polls_for, each.polled) for each in found] == [
            ("acquire()", PolledThing.LOCK),
            (None, None),
        ]


def test_what_was_not_read_in_time_is_said(reader: GuardedReader) -> None:
    frame = Frame(kind=FrameKind.PYTHON, function="main", file="/job/loop.py", line=5)
    number = next(number for number, name in syscalls.names(MACHINE).items() if name == "clock_nanosleep")
    naps = ThreadSample(pid=os.getpid(), tid=1, comm="python", syscall=number, frames=(frame,))
    works = replace(naps, tid=2, syscall=None)
    found, _, problem = nap_loops.collect(reader, [naps, works], machine=MACHINE, deadline_s=0.0)
    assert [sample.nap_unread for sample in found] == [True, False]
    assert problem == "what loops of 1 process that nap ask for could not be read in time"
    found, _, problem = nap_loops.collect(reader, [naps, works], machine=MACHINE, deadline_s=10.0)
    assert (found, problem) == ([naps, works], "")


def test_coroutine_that_naps(reader: GuardedReader) -> None:
    text = "import time\nprint('ready', flush=True)\ntime.sleep(20)\n"
    with program(
        f"{text}async def f():\n    while not task.done():\n        await asyncio.sleep(1)\n"
    ) as child:
        blocked(child.pid, lambda one: syscalls.name(one.syscall, MACHINE) in nap_loops._NAPS)
        sleep = Frame(kind=FrameKind.PYTHON, function="sleep", file="/lib/asyncio/tasks.py", line=600)
        own = Frame(kind=FrameKind.PYTHON, function="<module>", file="<string>", line=6)
        naps = TaskSample(pid=child.pid, awaits="sleep", wakes_in_s=0.5, frames=(sleep, own))
        others = (
            replace(naps, awaits="Event.wait"),
            replace(naps, wakes_in_s=300.0),
            replace(naps, done=True),
            replace(naps, frames=(own,)),
            replace(naps, frames=()),
        )
        _, found, _ = nap_loops.collect(reader, [], [naps, *others], machine=MACHINE, deadline_s=10)
    assert (found[0].polls_for, found[0].polled) == ("done()", PolledThing.FUTURE)
    assert found[1:] == list(others)
