"""Loops of a program's own that look for a file and nap: what its source says around the nap.

Only the lines that enclose it by their indentation are looked at, and nothing of them is kept but the words matched.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import read_bytes, read_stat
from pyhangtrace.model import syscalls
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

NAP_LOOPS_TASK = "nap loops"
LONGEST_NAP_S = 30.0
# Before Python 3.11 time.sleep() is a select() of nothing.
_NAPS = frozenset({"nanosleep", "clock_nanosleep", "select", "pselect6"})
_LARGEST_SOURCE = 1 << 20
_FARTHEST = 200  # lines above the nap
# What may enclose the nap of a loop that waits for a file to come or to go.
_LOOKS_FOR_FILE = re.compile(r"except\b.*?\bFileExistsError\b|while\b.*?\b(?:exists|lexists|isfile|isdir)\(")
_WORDS = re.compile(r"FileExistsError|lexists|exists|isfile|isdir")
_NAMES = {"FileExistsError": "except FileExistsError"}


def nap_loops_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: {(file, line): words} of the places each pid asks for. Guarded, as a file server may not answer."""
    for pid in pids:
        progress(pid)
        found = {}
        for file, line in argument[pid]:
            words = _words_around(state.proc_root, pid, file, line)
            if words is not None:
                found[(file, line)] = words
        yield pid, found


def _words_around(proc_root: str, pid: int, file: str, line: int) -> str | None:
    path = f"{proc_root}/{pid}/root{file}"
    try:
        about = os.stat(path)
    except OSError:
        return None
    process = read_stat(pid, proc_root)
    uptime = (read_bytes(f"{proc_root}/uptime") or b"").split()
    if process is None or not uptime or about.st_size > _LARGEST_SOURCE:
        return None
    # A file that was written since may say something else than what runs.
    age_s = float(uptime[0]) - process.start_ticks / os.sysconf("SC_CLK_TCK")
    if about.st_mtime > time.time() - age_s:
        return None
    source = read_bytes(path, _LARGEST_SOURCE) or b""
    return around(source.decode(errors="replace").split("\n"), line)


def around(lines: Sequence[str], line: int) -> str | None:
    """The words by which an enclosing line of this one (counted from 1) looks for a file; None if none does."""
    if not 0 < line <= len(lines):
        return None
    inner = _indent(lines[line - 1])
    for text in reversed(lines[max(0, line - 1 - _FARTHEST) : line - 1]):
        if not text.strip() or text.lstrip().startswith("#") or _indent(text) >= inner:
            continue
        inner = _indent(text)
        head = text.strip()
        if head.startswith(("def ", "async def ", "class ")):
            return None
        if _LOOKS_FOR_FILE.match(head) is not None:
            word = _WORDS.search(head)
            name = word[0] if word is not None else ""
            return _NAMES.get(name, f"while {name}()")
    return None


def _indent(text: str) -> int:
    text = text.expandtabs()
    return len(text) - len(text.lstrip())


def place(sample: ThreadSample, machine: str) -> tuple[str, int] | None:
    """Where a Python program naps for a short time, None for a thread that does something else."""
    # How short the shortest naps are can often not be read: they are over by then.
    naps = (sample.timeout_s or 0.0) <= LONGEST_NAP_S and not sample.io_fds
    if not naps or syscalls.name(sample.syscall, machine) not in _NAPS:
        return None
    frame: Frame | None = next((each for each in sample.frames if each.kind is FrameKind.PYTHON), None)
    if frame is None or frame.line is None or frame.file is None or not frame.file.startswith("/"):
        return None
    return frame.file, frame.line


def collect(
    reader: GuardedReader, samples: Sequence[ThreadSample], *, machine: str, deadline_s: float
) -> list[ThreadSample]:
    """The samples with `polls_for` filled in, in the same order."""
    wanted: dict[int, dict[tuple[str, int], None]] = {}
    for sample in samples:
        where = place(sample, machine)
        if where is not None:
            wanted.setdefault(sample.pid, {})[where] = None
    if not wanted:
        return list(samples)
    asked = {pid: list(places) for pid, places in wanted.items()}
    answers = reader.run(NAP_LOOPS_TASK, list(asked), asked, deadline_s=deadline_s).values
    return [
        replace(sample, polls_for=answers.get(sample.pid, {}).get(where))
        if (where := place(sample, machine)) is not None
        else sample
        for sample in samples
    ]
