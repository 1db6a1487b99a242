"""A recording as one page: its table, and a flame graph as wide as what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from pyhangtrace.model.weighted import StackProfile, Unit
from pyhangtrace.render.clean import clean
from pyhangtrace.render.html.page import FrameTable, assemble
from pyhangtrace.render.result import RecordResult
from pyhangtrace.render.stacks import weighted_classes
from pyhangtrace.render.text.recording import table

_HINT = "As wide as what was measured, the heaviest at the left."
_HINT_COMPARED = "Red has grown since the earlier recording, blue has shrunk; as wide as the larger of both."


def render_recording_html(result: RecordResult) -> str:
    """The whole page as one string; it needs no network and no file beside it."""
    recording = result.recording
    return assemble(
        title=f"hangtrace record: {recording.host}",
        heading=result.profile.title[:1].upper() + result.profile.title[1:],
        hint=_HINT_COMPARED if result.profile.compared else _HINT,
        body=_head(result),
        more=_notes(result),
        data=_data(result.profile),
    )


def _head(result: RecordResult) -> Iterable[str]:
    recording = result.recording
    many = len(recording.processes)
    yield f"<h1>{many} {'process' if many == 1 else 'processes'}, recorded for {recording.window_s:.1f} s</h1>"
    yield (
        f'<p class="facts">host {_text(recording.host)} · {_text(recording.taken_at)} · '
        f"{recording.cost.snapshots} snapshots · hangtrace {_text(recording.tool_version)}</p>"
    )
    head, *rows = table(result.summary)
    yield "<table><tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in (*head, "waker", "last collective"))
    yield "</tr>"
    for row, cells in zip(result.summary.rows, rows, strict=True):
        shown = "".join(f"<td class=narrow>{_text(cell)}</td>" for cell in cells)
        yield f"<tr>{shown}<td>{_text(row.waker)}</td><td>{_text(row.last_collective)}</td></tr>"
    yield "</table>"


def _notes(result: RecordResult) -> Iterable[str]:
    if result.summary.notes:
        yield "<h2>Also</h2>"
        yield from (f"<p>{_text(note)}</p>" for note in result.summary.notes)


def _data(profile: StackProfile) -> dict[str, Any]:
    frames = FrameTable()
    classes = [
        {
            "frames": frames.numbers(item.frames),
            "service": item.service,
            "weight": item.weight,
            "before": item.before,
            "members": [
                {
                    "pid": member.pid,
                    "tid": member.tid,
                    "rank": member.rank,
                    "thread": clean(member.thread),
                    "weight": member.weight,
                }
                for member in item.members
            ],
        }
        for item in weighted_classes(profile)
    ]
    ranks = sorted({stack.rank for stack in profile.stacks if stack.rank is not None})
    return {
        "frames": frames.entries,
        "classes": classes,
        "ranks": ranks,
        "unit": profile.unit.value,
        "measure": "waited" if profile.unit is Unit.SECONDS else profile.unit.value,
        "compared": profile.compared,
    }


def _text(text: str) -> str:
    return escape(clean(text))
