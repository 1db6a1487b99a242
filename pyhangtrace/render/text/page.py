"""The page a person reads first: verdict, who waits and why, what is not the cause, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from pyhangtrace.model.kinds import Part, Role, SourceState, State
from pyhangtrace.model.report import Culprit, Report, ReportProcess, ReportThread, Wait
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.layout import WIDTH, Row, Style, paragraph, rows
from pyhangtrace.render.text.words import (
    age,
    frame_words,
    numbers,
    plural,
    process_name,
    process_title,
    since,
    wait_words,
)

_STATE_COLORS = {
    State.HUNG: "1;31",
    State.BUSY: "1;33",
    State.SLOW: "1;33",
    State.RUNNING: "1;32",
    State.IDLE: "1;32",
    State.ENDED: "1;35",
    State.UNKNOWN: "1;36",
}
_SHOWN_FRAMES = 4


def render_text(report: Report, *, color: bool) -> str:
    """The whole page, 80 columns wide, a newline at the end."""
    style = Style(color)
    lines = [*_header(report), "", *_headline(report, style), *_summary(report)]
    lines += rows(_who(report), style)
    for title, block in (
        ("not the cause", _cleared(report)),
        ("memory", _memory(report)),
        ("next", [Row(label="-", lines=(clean(step),)) for step in report.verdict.next_steps]),
        ("could not see", _coverage(report)),
    ):
        if block:
            lines += [style.bold(title), *rows(block, style)]
    return "\n".join(lines) + "\n"


def _header(report: Report) -> list[str]:
    members = [process for process in report.processes if process.role is not Role.OUTSIDER]
    parts = []
    workload = report.workload
    name = workload.framework or "processes"
    if workload.ranks_seen:
        name += f", {numbers(workload.ranks_seen, 'rank')}"
        if workload.world_size is not None:
            name += f" of {workload.world_size}"
    parts.append(f"{name} ({numbers([process.pid for process in members], 'pid')})" if members else name)
    if workload.phase is not None:
        detail = f", {workload.phase.detail}" if workload.phase.detail else ""
        parts.append(clean(workload.phase.name.replace("_", " ") + detail))
    parts.append(f"host {clean(report.host)}")
    parts.append(f"looked for {report.window_s:.1f} s")
    stopped = sum(report.cost.stopped_us.values())
    parts.append("nobody was stopped" if not stopped else f"stopped for {stopped} µs in all")
    return paragraph(", ".join(parts), indent=0)


def _headline(report: Report, style: Style) -> list[str]:
    verdict = report.verdict
    state = verdict.state.value.upper()
    title = headline_title(report)
    right = verdict.confidence.value
    oldest = _oldest(report)
    if verdict.state in (State.HUNG, State.BUSY, State.SLOW) and oldest:
        right += f", {age(oldest)}"
    room = WIDTH - len(state) - 2 - len(right) - 2
    if len(title) > room:
        return [style.paint(state, _STATE_COLORS[verdict.state]) + "  " + style.bold(title), " " * 2 + right]
    gap = " " * (WIDTH - len(state) - 2 - len(title) - len(right))
    return [
        style.paint(state, _STATE_COLORS[verdict.state]) + "  " + style.bold(title) + gap + style.dim(right)
    ]


def headline_title(report: Report) -> str:
    """The verdict in half a line: `rank 3 keeps 7 ranks waiting`."""
    verdict = report.verdict
    absent = [item.rank for item in verdict.culprits if item.part is Part.ABSENT and item.rank is not None]
    parties = [item for item in verdict.culprits if item.part is Part.PARTY]
    named = [item for item in verdict.culprits if item.part is Part.CULPRIT]
    what = verdict.cause or verdict.symptom
    kind = what.value if what else ""
    waiting = len({victim.pid for victim in verdict.victims})
    ranked = all(victim.rank is not None for victim in verdict.victims)
    who = plural(waiting, "rank" if ranked else "process")
    if absent:
        return f"{numbers(absent, 'rank')} never came, {who} waiting"
    if named:
        first = _culprit_name(named[0])
        return f"{first} keeps {who} waiting" if waiting else f"{first}: {kind}"
    if parties:
        names = [_culprit_name(item) for item in parties]
        shown = ", ".join(dict.fromkeys(names[:4])) + (", …" if len(names) > 4 else "")
        return f"{kind}: {shown}"
    words = {
        State.RUNNING: "everything moves",
        State.IDLE: "everybody waits for work from outside",
        State.ENDED: "the job or a part of it has ended",
        State.UNKNOWN: "the evidence does not decide",
    }
    return words.get(verdict.state, kind or verdict.state.value)


def _culprit_name(culprit: Culprit) -> str:
    if culprit.rank is not None:
        return f"rank {culprit.rank}"
    if culprit.thread and culprit.tid is not None and culprit.tid != culprit.pid:
        return f"thread {clean(culprit.thread)} of pid {culprit.pid}"
    return f"pid {culprit.pid}"


def _oldest(report: Report) -> float | None:
    """Since when somebody waits in vain: the oldest victim, without victims the oldest wait of those named."""
    verdict = report.verdict
    victims = {item.wait for item in verdict.victims}
    named = {item.wait for item in verdict.culprits} | set(verdict.chain) | set(verdict.cycle)
    for group in (victims, named):
        ages = [wait.since_s for wait in report.waits if wait.id in group and wait.since_s is not None]
        if ages:
            return max(ages)
    return None


def _summary(report: Report) -> list[str]:
    return [*paragraph(clean(report.verdict.summary))] if report.verdict.summary else []


def _who(report: Report) -> list[Row]:
    return [*_victim_rows(report), *_culprit_rows(report), *_further_rows(report)]


def _victim_rows(report: Report) -> Iterator[Row]:
    """Victims that wait for the same thing share a row."""
    waits = {wait.id: wait for wait in report.waits}
    groups: dict[str, list[tuple[int | None, int, Wait | None]]] = {}
    for victim in report.verdict.victims:
        wait = waits.get(victim.wait or "")
        words = wait_words(wait, report) if wait else "waits"
        groups.setdefault(words, []).append((victim.rank, victim.pid, wait))
    for words, members in groups.items():
        ranks = [rank for rank, _, _ in members if rank is not None]
        label = (
            numbers(ranks, "rank") if len(ranks) == len(members) else numbers([m[1] for m in members], "pid")
        )
        text = words if len(members) == 1 else _plural_verb(words)
        ages = [wait.since_s for _, _, wait in members if wait is not None and wait.since_s is not None]
        yield Row(label=label, lines=(text,), right=since(max(ages, default=None)))


def _plural_verb(words: str) -> str:
    verb, _, rest = words.partition(" ")
    plurals = {"waits": "wait", "sleeps": "sleep", "polls": "poll", "is": "are"}
    return f"{plurals.get(verb, verb)} {rest}"


def _culprit_rows(report: Report) -> Iterator[Row]:
    waits = {wait.id: wait for wait in report.waits}
    for culprit in report.verdict.culprits:
        if culprit.pid is None:
            yield Row(label=f"rank {culprit.rank}", lines=("no process of this rank is here",))
            continue
        process = _process(report, culprit.pid)
        thread = _thread(process, culprit.tid)
        wait = waits.get(culprit.wait or "")
        lines = []
        name = clean((thread.name or thread.comm) if thread else (culprit.thread or "?"))
        place = f"pid {culprit.pid}" + (f", thread {name} ({culprit.tid})" if culprit.tid is not None else "")
        if process is not None and (culprit.rank is None or process.role is Role.OUTSIDER):
            place = process_title(process)
        lines.append(f"{place} {wait_words(wait, report)}" if wait else place)
        lines += _stack_lines(thread)
        yield Row(
            label=_culprit_label(culprit), lines=tuple(lines), right=since(wait.since_s if wait else None)
        )


def _culprit_label(culprit: Culprit) -> str:
    return f"rank {culprit.rank}" if culprit.rank is not None else f"pid {culprit.pid}"


def _further_rows(report: Report) -> Iterator[Row]:
    """Waits of the chain that belong to nobody named yet."""
    named = {item.wait for item in report.verdict.culprits} | {item.wait for item in report.verdict.victims}
    for wait in report.waits:
        if wait.id not in {*report.verdict.chain, *report.verdict.cycle} or wait.id in named:
            continue
        process = _process(report, wait.pid)
        thread = _thread(process, wait.tid)
        label = process_name(process) if process else f"pid {wait.pid}"
        name = clean(thread.name or thread.comm) if thread else str(wait.tid)
        lines = [f"thread {name} ({wait.tid}) {wait_words(wait, report)}", *_stack_lines(thread)]
        yield Row(label=label, lines=tuple(lines), right=since(wait.since_s))


def _stack_lines(thread: ReportThread | None) -> list[str]:
    """The innermost Python frames, where there are any, else native ones: enough to open the file at the line."""
    if thread is None:
        return []
    python = [frame for frame in thread.stack if frame.file]
    chosen = (python or [frame for frame in thread.stack if frame.function])[:_SHOWN_FRAMES]
    return [f"in {frame_words(frame)}" for frame in chosen]


def _cleared(report: Report) -> list[Row]:
    return [Row(label=item.suspect, lines=(clean(item.because),)) for item in report.verdict.cleared]


def _memory(report: Report) -> list[Row]:
    # Said once: where memory is cleared, its line stands there already.
    if any(item.suspect.startswith("memory") for item in report.verdict.cleared) or not report.memory.summary:
        return []
    return [Row(label=report.memory.verdict.value, lines=(clean(report.memory.summary),))]


def _coverage(report: Report) -> list[Row]:
    hidden = (SourceState.USED, SourceState.SKIPPED)
    return [
        Row(label=item.source, lines=(clean(item.reason + (f" (fix: {item.fix})" if item.fix else "")),))
        for item in report.coverage
        if item.state not in hidden
    ]


def _process(report: Report, pid: int) -> ReportProcess | None:
    return next((item for item in report.processes if item.pid == pid), None)


def _thread(process: ReportProcess | None, tid: int | None) -> ReportThread | None:
    if process is None:
        return None
    return next((item for item in process.threads if item.tid == tid), None)
