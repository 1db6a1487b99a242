"""What the user wants run when a report is there: a notification, an upload, the end of the job."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from pyhangtrace.model.report import Report

_LIMIT_S = 60.0
_END_S = 5.0
_POLL_S = 0.1


def environment(report: Report, files: Mapping[str, Path]) -> dict[str, str]:
    """What the command is told beside its argument."""
    told = {
        "HANGTRACE_STATE": report.verdict.state.value,
        "HANGTRACE_CAUSE": report.verdict.cause.value if report.verdict.cause else "",
        "HANGTRACE_CONFIDENCE": report.verdict.confidence.value,
        "HANGTRACE_SUMMARY": report.verdict.summary,
        "HANGTRACE_PID": str(report.attached_to[0]) if report.attached_to else "",
    }
    names = {".hang": "BUNDLE", ".json": "JSON", ".html": "HTML", ".txt": "TEXT"}
    return told | {f"HANGTRACE_{names[suffix]}": str(path) for suffix, path in files.items()}


def run(
    command: str,
    argument: Path,
    told: Mapping[str, str],
    *,
    stop: threading.Event,
    limit_s: float = _LIMIT_S,
) -> str | None:
    """Runs a command of the shell with the report as `$1`; what went wrong, None if nothing did.

    It has `limit_s`, and ends when `stop` is set, with all that it has started.
    """
    try:
        # A session of its own, so that it can be ended as a whole, and Ctrl-C is ours to handle.
        child = subprocess.Popen(
            ["/bin/sh", "-c", command, "hangtrace", str(argument)],
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"the command cannot be run: {error}"
    until = time.monotonic() + limit_s
    while child.poll() is None:
        if stop.is_set() or time.monotonic() > until:
            _end(child)
            return f"the command was ended {'with the watch' if stop.is_set() else f'after {limit_s:g} s'}"
        stop.wait(_POLL_S)
    return f"the command has returned {child.returncode}" if child.returncode else None


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        try:
            child.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            continue
        return
