"""How far a job has come by its own log, where standard output or standard error leads to a file or to the journal.

Only the end of the file is read, and of it only what the patterns below find is kept: logs hold what users asked.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyhangtrace.collect import journal
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.logs import SHUTDOWN, LogMark

LOG_MARKS_TASK = "log_marks"
_TAIL = 64 << 10
_MOST_PROCESSES = 64
_LONGEST_LINE = 2000
_MOST_DETAIL = 9  # digits
_CLOCK_S = 1.0  # by which starts of programs and times of files may be off


@dataclass(frozen=True, slots=True)
class _Pattern:
    """`detail` takes the pattern's groups, which are numbers."""

    phase: str
    pattern: str
    ended: bool = False
    detail: str = ""


# SGLang 0.4 to 0.5 (srt/model_executor, srt/managers), vLLM 0.8 to 0.32 (v1/worker, v1/engine, model_loader); the bars
# of both are tqdm's.
# Of one line the last pattern that fits is meant.
PATTERNS = (
    _Pattern("rendezvous", r"Init (?:parallel|torch distributed) begin"),
    _Pattern("rendezvous", r"Init (?:parallel|torch distributed) ends", ended=True),
    _Pattern("weight_loading", r"Load weight begin|Starting to load model "),
    _Pattern(
        "weight_loading",
        r"checkpoint shards: +\d+% Completed \| (\d+)/(\d+)",
        detail="{0} of {1} shards",
    ),
    _Pattern(
        "weight_loading",
        r"checkpoint shards: +\d+%\|[^|]{0,200}\| (\d+)/(\d+)",  # of transformers
        detail="{0} of {1} shards",
    ),
    _Pattern("weight_loading", r"Load weight end|Loading weights took|Model loading took", ended=True),
    _Pattern("draft_loading", r"Loading drafter model"),
    _Pattern("memory_setup", r"KV Cache is allocated|Memory pool end|Available KV cache memory", ended=True),
    _Pattern("warm_up", r"Warming up model"),
    _Pattern(
        "warm_up",
        r"Warming up model done|init engine \(profile, create kv cache, warmup model\) took",
        ended=True,
    ),
    _Pattern("compile", r"Start compiling function|Dynamo bytecode transform time"),
    _Pattern("compile", r"torch\.compile takes|torch\.compile took", ended=True),
    _Pattern("graph_capture", r"Capture (?:\w+ ){0,3}(?:cuda|CUDA) graph begin"),
    _Pattern("graph_capture", r"Capturing batches \(bs=(\d+)", detail="batch size {0}"),
    _Pattern(
        "graph_capture",
        r"Capturing CUDA graphs?[^:\n]{0,40}: +\d+%\|[^|]{0,200}\| (\d+)/(\d+)",
        detail="{0} of {1} sizes",
    ),
    _Pattern(
        "graph_capture", r"Capture (?:\w+ ){0,3}(?:cuda|CUDA) graph end|Graph capturing finished", ended=True
    ),
    _Pattern(
        "serving",
        r"The server is fired up and ready to roll|EngineCore waiting for work|Application startup complete",
    ),
    _Pattern(SHUTDOWN, r"EngineCore encountered a fatal error|Received sigquit from a child process"),
    _Pattern(SHUTDOWN, r"Worker proc \S* died unexpectedly"),
    _Pattern(
        SHUTDOWN,
        r"Subprocess \S+ \(pid=(\d+)\) crashed with exit code (-?\d+)",
        detail="pid {0} has died, exit code {1}",
    ),
    _Pattern(
        SHUTDOWN,
        r"Worker proc \S*-(\d+) died unexpectedly \(exit code: (-?\d+)\)",
        detail="worker {0} has died, exit code {1}",
    ),
)
_COMPILED = tuple((each, re.compile(each.pattern)) for each in PATTERNS)


def log_marks_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: of each log of each pid (device and inode, last mark or None); `argument` is how long each has run."""
    for pid in pids:
        progress(pid)
        folder = f"{state.proc_root}/{pid}"
        logs = log_tails(folder, argument[pid])
        written = journal.run_of(folder) if not logs else None
        if written is not None:
            stream, run = written
            text = state.keep(f"journal of {run}", partial(journal.tail, run))
            logs = [Log(stream, 0.0, text)]
        yield pid, tuple({log.file: last_mark(log.text) for log in logs}.items())


def log_tails(folder: str, running_s: float) -> list[Log]:
    """The ends of the files that standard output and error of a process lead to, which has run for so long."""
    found = {}
    for descriptor in (1, 2):
        log = _tail(f"{folder}/fd/{descriptor}")
        # What was last written before the program began is of another run.
        if log is not None and log.written_s_ago <= running_s + _CLOCK_S:
            found[log.file] = log
    return list(found.values())


def collect(
    reader: GuardedReader, running_s: Mapping[int, float], *, deadline_s: float
) -> tuple[LogMark, ...]:
    """The last mark of each log that these processes write, which run for so many seconds."""
    pids = sorted(running_s)[:_MOST_PROCESSES]
    answers = reader.run(LOG_MARKS_TASK, pids, dict(running_s), deadline_s=deadline_s)
    writers: dict[tuple[int, int], list[int]] = {}
    marks: dict[tuple[int, int], tuple[str, bool, str | None]] = {}
    for pid in sorted(answers.values):
        for log, mark in answers.values[pid]:
            writers.setdefault(log, []).append(pid)
            if mark is not None:
                marks[log] = mark
    return tuple(
        LogMark(pids=tuple(writers[log]), phase=phase, ended=ended, detail=detail)
        for log, (phase, ended, detail) in sorted(marks.items(), key=lambda each: writers[each[0]])
    )


def last_mark(text: str) -> tuple[str, bool, str | None] | None:
    """(phase, whether it has ended, how far it was) by the last line that tells one; bars are drawn on one line."""
    for line in reversed(re.split(r"[\r\n]", text)):
        for each, pattern in reversed(_COMPILED):
            match = pattern.search(line[:_LONGEST_LINE])
            if match is not None:
                numbers = [group[:_MOST_DETAIL] for group in match.groups()]
                return each.phase, each.ended, each.detail.format(*numbers) or None
    return None


@dataclass(frozen=True, slots=True)
class Log:
    """`file`: device and inode; `text`: its last lines."""

    file: tuple[int, int]
    written_s_ago: float
    text: str


def _tail(link: str) -> Log | None:
    """The end of a regular file; nothing else is opened, which could wake somebody."""
    try:
        path = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(path)
        if not stat.S_ISREG(facts.st_mode):
            return None
        file = os.open(
            f"/proc/self/fd/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | _no_access_time()
        )
        try:
            begin = max(0, facts.st_size - _TAIL)
            text = os.pread(file, _TAIL, begin).decode("utf-8", "replace")
        finally:
            os.close(file)
    except OSError:
        return None
    finally:
        os.close(path)
    # The first line may be half of one.
    text = text if begin == 0 else text.partition("\n")[2] or text
    return Log((facts.st_dev, facts.st_ino), time.time() - facts.st_mtime, text)


def _no_access_time() -> int:
    """A look leaves no trace, where we are root; others may not ask for it of somebody else's file."""
    return os.O_NOATIME if os.geteuid() == 0 else 0
