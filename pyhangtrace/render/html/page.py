"""Puts the page together: static parts escaped here, stacks as data for the script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template
from typing import Any

import msgspec

from pyhangtrace.model.kinds import FoundBy, SourceState
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import Report
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import frame_label, process_label, stack_classes
from pyhangtrace.render.text.headline import headline_title
from pyhangtrace.render.text.tasks import task_rows
from pyhangtrace.render.text.words import age, stack_notes, wait_words


def render_html(report: Report) -> str:
    """The whole page as one string; it needs no network and no file beside it."""
    return assemble(
        title=f"hangtrace: {report.verdict.state.value}, {report.host}",
        heading="Stacks of all ranks",
        hint="One column per class of equal stacks, the rarest at the left; in brackets the ranks that stand there.",
        body=_verdict(report),
        more=_more(report),
        data=_stack_data(report),
    )


def assemble(
    *, title: str, heading: str, hint: str, body: Iterable[str], more: Iterable[str], data: object
) -> str:
    """A page around a picture of stacks. `body` and `more` are HTML, all else is text."""
    folder = resources.files("pyhangtrace.render.html")
    script = folder.joinpath("flame.js").read_text(encoding="utf-8")
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    template = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        heading=escape(heading),
        hint=escape(hint),
        script_hash=_hash(script),
        style_hash=_hash(style),
        style=style,
        script=script,
        body="\n".join(body),
        more="\n".join(more),
        data=_embedded(data),
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: object) -> str:
    """JSON that cannot end the script element it stands in, whatever a frame is called."""
    encoded = msgspec.json.encode(data).decode()
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class FrameTable:
    """The frames that a page's stacks have in common, each with its number."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._index: dict[Frame, int] = {}
        self._seen: dict[tuple[object, ...], int] = {}

    def numbers(self, frames: Iterable[Frame]) -> list[int]:
        """The numbers of a stack's frames. Those that look the same are the same."""
        return [self._number(frame) for frame in frames]

    def _number(self, frame: Frame) -> int:
        if frame not in self._index:
            key = (
                frame.kind,
                frame.function,
                frame.file,
                frame.line,
                frame.module,
                frame.found_by is FoundBy.INLINED,
            )
            if key not in self._seen:
                self._seen[key] = len(self.entries)
                self.entries.append(_frame_data(frame))
            self._index[frame] = self._seen[key]
        return self._index[frame]


def _stack_data(report: Report) -> dict[str, Any]:
    waits = {wait.id: wait_words(wait, report) for wait in report.waits}
    wait_of = {
        (process.pid, thread.tid): "; ".join(
            words for words in (waits.get(thread.wait or ""), *stack_notes(thread)) if words
        )
        or None
        for process in report.processes
        for thread in process.threads
    }
    frames = FrameTable()
    classes = []
    for item in stack_classes(report):
        classes.append(
            {
                "frames": frames.numbers(item.frames),
                "service": item.service,
                "members": [
                    {
                        "pid": member.pid,
                        "tid": member.tid,
                        "rank": member.rank,
                        "thread": clean(member.thread),
                        "wait": clean(member.waits)
                        if member.waits
                        else wait_of.get((member.pid, member.tid)),
                    }
                    for member in item.members
                ],
            }
        )
    ranks = sorted({process.rank for process in report.processes if process.rank is not None})
    return {"frames": frames.entries, "classes": classes, "ranks": ranks}


def _frame_data(frame: Frame) -> dict[str, Any]:
    return {
        "kind": frame.kind.value,
        "label": clean(frame_label(frame)),
        "function": clean(frame.function),
        "file": clean(frame.file) if frame.file else None,
        "line": frame.line,
        "module": clean(frame.module) if frame.module else None,
        "found_by": frame.found_by.value,
    }


def _verdict(report: Report) -> Iterable[str]:
    verdict = report.verdict
    state = verdict.state.value
    yield f'<h1><span class="state {state}">{state.upper()}</span> {_text(headline_title(report))}</h1>'
    yield (
        f'<p class="facts">{_text(verdict.confidence.value)} · host {_text(report.host)} · '
        f"{_text(report.taken_at)} · looked for {report.window_s:.1f} s · "
        f"hangtrace {_text(report.tool_version)}</p>"
    )
    if verdict.summary:
        yield f"<p>{_text(verdict.summary)}</p>"
    yield from _chain(report)
    yield from _list("Not the cause", [(item.suspect, item.because) for item in verdict.cleared])
    yield from _list("Next", [("", step) for step in verdict.next_steps])


def _more(report: Report) -> Iterable[str]:
    yield from _processes(report)
    yield from _list("Tasks", [(row.label, "\n".join(row.lines)) for row in task_rows(report)])
    yield from _list("Memory", [(report.memory.verdict.value, report.memory.summary)])
    hidden = (SourceState.USED, SourceState.SKIPPED)
    yield from _list(
        "Could not see",
        [
            (item.source, item.reason + (f" — fix: {item.fix}" if item.fix else ""))
            for item in report.coverage
            if item.state not in hidden
        ],
    )


def _chain(report: Report) -> Iterable[str]:
    wanted = report.verdict.chain or report.verdict.cycle
    waits = {wait.id: wait for wait in report.waits}
    processes = {process.pid: process for process in report.processes}
    listed = [waits[name] for name in wanted if name in waits]
    if not listed:
        return
    yield "<h2>Who waits for whom</h2><table><tr><th>who</th><th>what</th><th>since</th><th>seen in</th></tr>"
    for wait in listed:
        process = processes.get(wait.pid)
        thread = next((t for t in process.threads if t.tid == wait.tid), None) if process else None
        who = process_label(process) if process else f"pid {wait.pid}"
        name = f"{thread.name or thread.comm} ({wait.tid})" if thread else str(wait.tid)
        yield (
            f"<tr><td>{_text(who)}<br><span class=soft>{_text(name)}</span></td>"
            f"<td>{_text(wait_words(wait, report))}</td><td class=narrow>{_text(age(wait.since_s))}</td>"
            f'<td class="mono">{"<br>".join(_text(item) for item in wait.evidence)}</td></tr>'
        )
    yield "</table>"


def _processes(report: Report) -> Iterable[str]:
    waits = {wait.id: wait for wait in report.waits}
    yield "<h2>Processes</h2><table><tr><th>rank</th><th>pid</th><th>role</th><th>what its main thread does</th>"
    yield "<th>asleep</th><th>RSS</th><th>PSS</th><th>title</th></tr>"
    for process in report.processes:
        main = next((t for t in process.threads if t.tid == process.pid), None)
        wait = waits.get(main.wait or "") if main else None
        rank = "" if process.rank is None else str(process.rank)
        doing = wait_words(wait, report) if wait else f"state {process.state}"
        yield (
            f"<tr><td>{rank}</td><td>{process.pid}</td><td>{_text(process.role.value)}</td>"
            f"<td>{_text(doing)}</td><td class=narrow>{_text(age(process.asleep_for_s))}</td>"
            f"<td class=narrow>{_text(_size(process.memory.rss))}</td>"
            f"<td class=narrow>{_text(_size(process.memory.pss))}</td>"
            f'<td class="mono">{_text(process.title[:160])}</td></tr>'
        )
    yield "</table>"


def _list(title: str, entries: list[tuple[str, str]]) -> Iterable[str]:
    shown = [(name, text) for name, text in entries if text]
    if not shown:
        return
    yield f"<h2>{_text(title)}</h2><table>"
    for name, text in shown:
        head = f"<th>{_text(name)}</th>" if name else ""
        yield f"<tr>{head}<td>{_text(text)}</td></tr>"
    yield "</table>"


def _size(amount: int | None) -> str:
    return "" if amount is None else size(amount)


def _text(text: str) -> str:
    return escape(clean(text))
