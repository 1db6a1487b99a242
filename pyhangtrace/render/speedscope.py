"""Speedscope's file format (its documented `file-format-spec`): one sampled profile per rank.

A sample is one thread, its weight one: the width of a frame is the number of threads that stand in it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pyhangtrace.model.report import Report
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.stacks import frame_label, process_label, suspended_tasks, task_label, thread_label

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render_speedscope(report: Report) -> bytes:
    """The whole file. Each stack starts with a frame that names its thread."""
    frames: list[dict[str, Any]] = []
    index: dict[tuple[str, str | None, int | None], int] = {}

    def number(name: str, file: str | None, line: int | None) -> int:
        key = (name, file, line)
        if key not in index:
            index[key] = len(frames)
            entry: dict[str, Any] = {"name": name}
            if file is not None:
                entry["file"] = file
            if line is not None:
                entry["line"] = line
            frames.append(entry)
        return index[key]

    profiles: list[dict[str, Any]] = []
    for process in report.processes:
        samples = [
            [
                number(f"thread {thread_label(thread)} ({thread.tid})", None, None),
                *(number(frame_label(frame), _file(frame), frame.line) for frame in reversed(thread.stack)),
            ]
            for thread in process.threads
            if thread.stack
        ]
        samples += [
            [
                number(task_label(task), None, None),
                *(number(frame_label(frame), _file(frame), frame.line) for frame in reversed(task.stack)),
            ]
            for task in suspended_tasks(process)
        ]
        if samples:
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{process_label(process)} (pid {process.pid})",
                    "unit": "none",
                    "startValue": 0,
                    "endValue": len(samples),
                    "samples": samples,
                    "weights": [1] * len(samples),
                }
            )
    document = {
        "$schema": SCHEMA,
        "name": f"hangtrace {report.host} {report.taken_at}",
        "exporter": f"hangtrace {report.tool_version}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _file(frame: Frame) -> str | None:
    return frame.file or frame.module
