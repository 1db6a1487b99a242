"""Speedscope's file format (its documented `file-format-spec`): one sampled profile per rank.

A sample is one stack of one thread. In a report its weight is one: the width of a frame is the number of threads that
stand in it. In a recording it is what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pyhangtrace.model.recording import Recording
from pyhangtrace.model.report import Report
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.weighted import StackProfile, Unit, WeightedStack
from pyhangtrace.render.stacks import frame_label, process_label, suspended_tasks, task_label, thread_label

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


_UNITS = {Unit.THREADS: "none", Unit.SECONDS: "seconds", Unit.FAULTS: "none"}


class _Frames:
    """The table of frames that all profiles of a file share."""

    def __init__(self) -> None:
        self.table: list[dict[str, Any]] = []
        self._index: dict[tuple[str, str | None, int | None], int] = {}

    def number(self, name: str, file: str | None = None, line: int | None = None) -> int:
        """The number of a frame, given to it when it comes first."""
        key = (name, file, line)
        if key not in self._index:
            self._index[key] = len(self.table)
            entry: dict[str, Any] = {"name": name}
            if file is not None:
                entry["file"] = file
            if line is not None:
                entry["line"] = line
            self.table.append(entry)
        return self._index[key]

    def stack(self, owner: str, frames: Iterable[Frame]) -> list[int]:
        """A sample: who it is of, and its frames, outermost first."""
        return [
            self.number(owner),
            *(self.number(frame_label(frame), frame.file or frame.module, frame.line) for frame in frames),
        ]


def render_speedscope(report: Report) -> bytes:
    """The whole file. Each stack starts with a frame that names its thread."""
    frames = _Frames()
    profiles: list[dict[str, Any]] = []
    for process in report.processes:
        samples = [
            frames.stack(f"thread {thread_label(thread)} ({thread.tid})", reversed(thread.stack))
            for thread in process.threads
            if thread.stack
        ]
        samples += [frames.stack(task_label(task), reversed(task.stack)) for task in suspended_tasks(process)]
        if samples:
            name = f"{process_label(process)} (pid {process.pid})"
            profiles.append(_profile(name, Unit.THREADS, samples, [1] * len(samples)))
    return _document(f"hangtrace {report.host} {report.taken_at}", report.tool_version, frames, profiles)


def speedscope_of_profile(profile: StackProfile, recording: Recording) -> bytes:
    """The whole file of a recording. A comparison has each process twice, before and after: the format knows no
    difference.
    """
    frames = _Frames()
    profiles: list[dict[str, Any]] = []
    by_process: dict[tuple[int | None, int], list[WeightedStack]] = {}
    for stack in profile.stacks:
        by_process.setdefault((stack.rank, stack.pid), []).append(stack)
    for (rank, pid), stacks in sorted(
        by_process.items(), key=lambda entry: (entry[0][0] is None, entry[0][0] or 0, entry[0][1])
    ):
        name = f"rank {rank} (pid {pid})" if rank is not None else f"pid {pid}"
        samples = [frames.stack(f"thread {stack.thread} ({stack.tid})", stack.frames) for stack in stacks]
        weights = [stack.weight for stack in stacks]
        if not profile.compared:
            profiles.append(_profile(f"{name}: {profile.title}", profile.unit, samples, weights))
            continue
        earlier = [stack.before or 0.0 for stack in stacks]
        profiles.append(_profile(f"{name}: now", profile.unit, samples, weights))
        profiles.append(_profile(f"{name}: before", profile.unit, samples, earlier))
    title = f"hangtrace record {recording.host} {recording.taken_at}"
    return _document(title, recording.tool_version, frames, profiles)


def _profile(name: str, unit: Unit, samples: Sequence[list[int]], weights: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": _UNITS[unit],
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _document(name: str, version: str, frames: _Frames, profiles: list[dict[str, Any]]) -> bytes:
    document = {
        "$schema": SCHEMA,
        "name": name,
        "exporter": f"hangtrace {version}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.table},
        "profiles": profiles,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
