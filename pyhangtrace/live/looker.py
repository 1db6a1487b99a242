"""The process that takes whole looks for the live view, so that the view goes on meanwhile (started by `looking`).

It reads one JSON object a line from standard input (`Request`), looks, writes the report as JSON and the evidence as a
bundle into the file whose descriptor it was given, and answers with one line that says how long they are. It ends with
its standard input, and at once when its parent does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

import msgspec

from pyhangtrace.engine import AttachOptions, attach
from pyhangtrace.model.codec import pack
from pyhangtrace.model.errors import HangtraceError
from pyhangtrace.render.result import Result

_PR_SET_PDEATHSIG = 1


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`max_window_s` bounds how long the look waits for somebody who has only just fallen asleep."""

    pids: tuple[int, ...]
    max_window_s: float = 3.0
    bpf: bool = True


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the report and of the bundle behind it, or what went wrong. `cpu_s` of all that the look took."""

    report: int = 0
    bundle: int = 0
    problem: str | None = None
    cpu_s: float = 0.0


def main(arguments: list[str]) -> None:
    """Serves requests. Arguments: the descriptor for results, the pid of the parent."""
    output, parent = int(arguments[0]), int(arguments[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the view to handle
    for line in sys.stdin.buffer:
        answer = _serve(msgspec.json.decode(line, type=Request), output)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def _serve(request: Request, output: int) -> Answer:
    before = _cpu_s()
    try:
        result = attach(request.pids, AttachOptions(max_window_s=request.max_window_s, bpf=request.bpf))
        sizes = _put(result, output)
    except HangtraceError as error:
        return Answer(problem=error.summary, cpu_s=_cpu_s() - before)
    except Exception as error:  # noqa: BLE001 - one look that fails is no end of the view
        problem = f"{type(error).__name__}: {error}"
        return Answer(problem=problem, cpu_s=_cpu_s() - before)
    return Answer(report=sizes[0], bundle=sizes[1], cpu_s=_cpu_s() - before)


def _put(result: Result, output: int) -> tuple[int, int]:
    report, bundle = msgspec.json.encode(result.report), pack(result.evidence)
    os.ftruncate(output, 0)
    os.lseek(output, 0, os.SEEK_SET)
    with os.fdopen(os.dup(output), "wb") as stream:
        stream.write(report)
        stream.write(bundle)
    return len(report), len(bundle)


def _cpu_s() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
