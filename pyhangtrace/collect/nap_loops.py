"""Loops of a program's own that ask for something and nap: what its source says around the nap.

Nothing of the source is kept but the words by which it asks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.nap_source import Asked, around
from pyhangtrace.collect.processes import read_uptime
from pyhangtrace.collect.procfs import read_bytes, read_stat
from pyhangtrace.model import syscalls
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import TaskSample, ThreadSample

NAP_LOOPS_TASK = "nap loops"
LONGEST_NAP_S = 30.0
# Before Python 3.11 time.sleep() is a select() of nothing.
_NAPS = frozenset({"nanosleep", "clock_nanosleep", "select", "pselect6"})
_LARGEST_SOURCE = 1 << 20
# In place of a file: what python -c was given, and all that programs give to exec() without a name.
_GIVEN = "<string>"
# As the reader of tasks says it, and the function of asyncio.
_SLEEP = "sleep"
_MOST_PLACES = 200  # of a process

_Sample = TypeVar("_Sample", ThreadSample, TaskSample)
_Answers = Mapping[int, Mapping[tuple[str, int], Asked]]


def nap_loops_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: {(file, line): what is asked} of the places of each pid. Guarded, as a file server may not answer."""
    for pid in pids:
        progress(pid)
        found = {}
        for file, line in argument[pid]:
            asked = _asked_around(state.proc_root, pid, file, line)
            if asked is not None:
                found[(file, line)] = asked
        yield pid, found


def _asked_around(proc_root: str, pid: int, file: str, line: int) -> Asked | None:
    source = _given(proc_root, pid) if file == _GIVEN else written(proc_root, pid, file)
    return around(source.decode(errors="replace").split("\n"), line) if source is not None else None


def _given(proc_root: str, pid: int) -> bytes | None:
    """The program that stands on its command line: `python -c PROGRAM`."""
    words = (read_bytes(f"{proc_root}/{pid}/cmdline", _LARGEST_SOURCE) or b"").split(b"\0")
    at = next((index for index, word in enumerate(words) if word == b"-c"), len(words))
    return words[at + 1] if at + 1 < len(words) else None


def written(proc_root: str, pid: int, file: str) -> bytes | None:
    """What a file says, if nobody has written it since the process began."""
    # Before Python 3.9 the program's own file has the name that it was started by.
    path = f"{proc_root}/{pid}/root{file}" if file.startswith("/") else f"{proc_root}/{pid}/cwd/{file}"
    try:
        about = os.stat(path)
    except OSError:
        return None
    process = read_stat(pid, proc_root)
    uptime_s = read_uptime(proc_root)
    if process is None or uptime_s is None or about.st_size > _LARGEST_SOURCE:
        return None
    age_s = uptime_s - process.start_ticks / os.sysconf("SC_CLK_TCK")
    if about.st_mtime > time.time() - age_s:
        return None
    return read_bytes(path, _LARGEST_SOURCE)


def place(sample: ThreadSample, machine: str) -> tuple[str, int] | None:
    """Where a Python program naps for a short time, None for a thread that does something else."""
    # How short the shortest naps are can often not be read: they are over by then.
    naps = (sample.timeout_s or 0.0) <= LONGEST_NAP_S and not sample.io_fds
    if not naps or syscalls.name(sample.syscall, machine) not in _NAPS:
        return None
    return _place_of(next((each for each in sample.frames if each.kind is FrameKind.PYTHON), None))


def task_place(task: TaskSample) -> tuple[str, int] | None:
    """Where a coroutine of a program awaits `asyncio.sleep` for a short time, None for another task."""
    if task.awaits != _SLEEP or task.done or not 0.0 <= (task.wakes_in_s or 0.0) <= LONGEST_NAP_S:
        return None
    frames = iter(task.frames)
    inner = next(frames, None)
    return _place_of(next(frames, None)) if inner is not None and inner.function == _SLEEP else None


def _place_of(frame: Frame | None) -> tuple[str, int] | None:
    if frame is None or frame.line is None or frame.file is None:
        return None
    if frame.file.startswith("<") and (frame.file != _GIVEN or frame.function != "<module>"):
        return None
    return frame.file, frame.line


def collect(
    reader: GuardedReader,
    samples: Sequence[ThreadSample],
    tasks: Sequence[TaskSample] = (),
    *,
    machine: str,
    deadline_s: float,
) -> tuple[list[ThreadSample], list[TaskSample], str]:
    """The same threads and tasks with `polls_for` and `polled` filled in, in the same order, and why some lack them, ""
    if none do.
    """
    places = [(sample.pid, place(sample, machine)) for sample in samples]
    task_places = [(task.pid, task_place(task)) for task in tasks]
    wanted: dict[int, dict[tuple[str, int], None]] = {}
    for pid, where in (*places, *task_places):
        if where is not None and len(wanted.setdefault(pid, {})) < _MOST_PLACES:
            wanted[pid][where] = None
    if not wanted:
        return list(samples), list(tasks), ""
    asked = {pid: list(of_pid) for pid, of_pid in wanted.items()}
    answers: _Answers = reader.run(NAP_LOOPS_TASK, list(asked), asked, deadline_s=deadline_s).values
    told = [_told(sample, answers, where) for sample, (_, where) in zip(samples, places, strict=True)]
    unread = len(asked.keys() - answers.keys())
    of = f"{unread} process{'es' if unread > 1 else ''}"
    return (
        [
            replace(sample, nap_unread=True) if where is not None and sample.pid not in answers else sample
            for sample, (_, where) in zip(told, places, strict=True)
        ],
        [_told(task, answers, where) for task, (_, where) in zip(tasks, task_places, strict=True)],
        f"what loops of {of} that nap ask for could not be read in time" if unread else "",
    )


def _told(one: _Sample, answers: _Answers, where: tuple[str, int] | None) -> _Sample:
    found = answers.get(one.pid, {}).get(where) if where is not None else None
    return replace(one, polls_for=found.words, polled=found.thing) if found is not None else one
