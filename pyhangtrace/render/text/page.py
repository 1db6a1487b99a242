"""The page a person reads first: verdict, who waits and why, what is not the cause, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyhangtrace.model.kinds import Role, SourceState, State
from pyhangtrace.model.report import Report, ReportProcess, ReportThread, Victim, Wait
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.headline import cause_words, headline_title
from pyhangtrace.render.text.layout import WIDTH, Row, Style, columns, paragraph, rows, wrap
from pyhangtrace.render.text.words import (
    age,
    frame_words,
    numbers,
    plural_verb,
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
# How interpreters, threads and multiprocessing get to the program's own code: true of every stack, so told of none.
_STARTERS = (
    "/threading.py",
    "/multiprocessing/process.py",
    "/multiprocessing/spawn.py",
    "/multiprocessing/popen_fork.py",
    "/multiprocessing/context.py",
    "<frozen runpy>",
    "<string>",
)


def render_text(report: Report, *, color: bool) -> str:
    """The whole page, 80 columns wide, a newline at the end."""
    style = Style(color)
    lines = [*_header(report), "", *_headline(report, style)]
    # The rows say all of the summary, and where; without rows it is what there is.
    lines += list(rows(_who(report), style)) or paragraph(clean(report.verdict.summary))
    for title, block in (
        ("not the cause", list(rows(_cleared(report), style))),
        ("memory", list(rows(_memory(report), style))),
        ("next", _next(report)),
        ("could not see", list(rows(_coverage(report), style))),
    ):
        if block:
            lines += [style.bold(title), *block]
    return "\n".join(lines) + "\n"


def _header(report: Report) -> list[str]:
    members = [process for process in report.processes if process.role is not Role.OUTSIDER]
    ranked = [process.pid for process in members if process.rank is not None]
    workload = report.workload
    parts = [workload.framework] if workload.framework else []
    if ranked:
        of = f" of {workload.world_size}" if workload.world_size is not None else ""
        parts.append(f"{numbers(workload.ranks_seen, 'rank')}{of} ({numbers(ranked, 'pid')})")
    elif members:
        parts.append(numbers([process.pid for process in members], "pid"))
    if workload.phase is not None:
        detail = f" {workload.phase.detail}" if workload.phase.detail else ""
        parts.append(workload.phase.name.replace("_", " ") + detail)
    parts.append(f"host {report.host}")
    parts.append(f"looked for {report.window_s:.1f} s")
    stopped = sum(report.cost.stopped_us.values())
    parts.append("nobody was stopped" if not stopped else f"stopped for {stopped} µs in all")
    return paragraph(clean(", ".join(parts)), indent=0)


def _headline(report: Report, style: Style) -> list[str]:
    verdict = report.verdict
    state = verdict.state.value.upper()
    right = verdict.confidence.value
    oldest = _oldest(report)
    if verdict.state in (State.HUNG, State.BUSY, State.SLOW) and oldest is not None:
        right += f", {age(oldest)}"
    lead = len(state) + 2
    lines = wrap(headline_title(report), WIDTH - lead, reserved_first=len(right) + 2)
    gap = " " * (WIDTH - lead - columns(lines[0]) - len(right))
    first = style.paint(state, _STATE_COLORS[verdict.state]) + "  " + style.bold(lines[0])
    return [first + gap + style.dim(right), *(" " * lead + style.bold(line) for line in lines[1:])]


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


def _who(report: Report) -> list[Row]:
    named = {item.wait for item in report.verdict.culprits} | {item.wait for item in report.verdict.victims}
    on_the_way = {*report.verdict.chain, *report.verdict.cycle} - named
    further = [wait for wait in report.waits if wait.id in on_the_way]
    told = _Told(
        # Who has a row of their own needs no title where others wait for them.
        pids=frozenset(
            {item.pid for item in report.verdict.culprits if item.pid is not None}
            | {wait.pid for wait in further}
        ),
        waits={wait.id: wait for wait in report.waits},
        processes={process.pid: process for process in report.processes},
    )
    return [
        *_victim_rows(report, told),
        *_culprit_rows(report, told),
        *(_thread_row(report, told, wait.pid, wait.tid, wait, missing=False) for wait in further),
    ]


@dataclass(frozen=True, slots=True)
class _Told:
    """What rows need to know of each other."""

    pids: frozenset[int]
    waits: Mapping[str, Wait]
    processes: Mapping[int, ReportProcess]

    def one_process(self, report: Report) -> bool:
        """Whether all that is told happens in one process, so that its threads are the names."""
        return len(self.pids | {item.pid for item in report.verdict.victims}) == 1


def _victim_rows(report: Report, told: _Told) -> Iterator[Row]:
    """Victims that wait for the same thing share a row."""
    groups: dict[str, list[tuple[Victim, Wait | None]]] = {}
    for victim in report.verdict.victims:
        wait = told.waits.get(victim.wait or "")
        words = wait_words(wait, report, known=told.pids) if wait else "waits"
        groups.setdefault(words, []).append((victim, wait))
    for words, members in groups.items():
        ranks = [victim.rank for victim, _ in members if victim.rank is not None]
        pids = {victim.pid for victim, _ in members}
        label = numbers(ranks, "rank") if len(ranks) == len(members) else numbers(pids, "pid")
        if len(members) == 1 and told.one_process(report):
            label = _thread_label(told.processes.get(members[0][0].pid), members[0][0].tid) or label
        text = words if len(members) == 1 else plural_verb(words)
        ages = [wait.since_s for _, wait in members if wait is not None and wait.since_s is not None]
        yield Row(label=label, lines=(text,), right=since(max(ages, default=None)))


def _culprit_rows(report: Report, told: _Told) -> Iterator[Row]:
    never_came = {
        rank
        for victim in report.verdict.victims
        if (wait := told.waits.get(victim.wait or "")) is not None
        for collective in report.collectives
        if collective.id == wait.object.collective
        for rank in collective.missing
        if rank not in collective.entered
    }
    why = cause_words(report)
    for culprit in report.verdict.culprits:
        if culprit.pid is None:
            yield Row(label=f"rank {culprit.rank}", lines=("no process of this rank is here",))
            continue
        wait = told.waits.get(culprit.wait or "")
        row = _thread_row(report, told, culprit.pid, culprit.tid, wait, missing=culprit.rank in never_came)
        yield replace(row, lines=(*row.lines, why)) if why else row
        why = ""


def _thread_row(
    report: Report, told: _Told, pid: int, tid: int | None, wait: Wait | None, *, missing: bool
) -> Row:
    """One thread: who it is, what it waits for, and where in its program."""
    process = told.processes.get(pid)
    thread = _thread(process, tid)
    thread_label = _thread_label(process, tid)
    alone = told.one_process(report)
    ranked = process is not None and process.rank is not None
    who = [f"pid {pid}"] if ranked else []
    if tid is not None and tid != pid and not alone:
        who.append(f"{thread_label} ({tid})" if thread_label else f"thread {tid}")
    does = wait_words(wait, report, known=told.pids) if wait else _without_wait(process)
    if missing:
        does = f"never entered it; {does}"
    lines = [f"{', '.join(who)} {does}".strip()]
    if process is not None and not ranked and not alone:
        lines.insert(0, process_title(process))
    label = process_name(process) if process else f"pid {pid}"
    return Row(
        label=thread_label if alone and thread_label and not ranked else label,
        lines=(*lines, *_stack_lines(thread)),
        right=since(wait.since_s if wait else None),
    )


def _thread_label(process: ReportProcess | None, tid: int | None) -> str:
    thread = _thread(process, tid)
    return f"thread {clean(thread.name or thread.comm)}" if thread is not None else ""


def _without_wait(process: ReportProcess | None) -> str:
    if process is None or process.state in ("Z", "X"):
        return "has ended"
    return "is on the CPU" if process.state == "R" else ""


def _stack_lines(thread: ReportThread | None) -> list[str]:
    """The innermost Python frames, where there are any, else native ones: enough to open the file at the line."""
    if thread is None:
        return []
    python = [frame for frame in thread.stack if frame.file]
    own = [not (frame.file or "").endswith(_STARTERS) for frame in python]
    first_own = own.index(True) if True in own else len(own)
    python = python[: own.index(False, first_own)] if False in own[first_own:] else python
    chosen = (python or [frame for frame in thread.stack if frame.function])[:_SHOWN_FRAMES]
    return [f"in {frame_words(frame)}" for frame in chosen]


def _cleared(report: Report) -> list[Row]:
    return [
        Row(label=item.suspect.partition(".")[0], lines=(clean(item.because),))
        for item in report.verdict.cleared
    ]


def _memory(report: Report) -> list[Row]:
    # Said once: where memory is cleared, its line stands there already.
    if any(item.suspect.startswith("memory") for item in report.verdict.cleared) or not report.memory.summary:
        return []
    return [Row(label=report.memory.verdict.value.replace("_", " "), lines=(clean(report.memory.summary),))]


def _next(report: Report) -> list[str]:
    verdict = report.verdict
    lines = []
    if verdict.deadline is not None:
        lines += paragraph(clean(f"soon: {verdict.deadline.what} in {age(verdict.deadline.in_s)}"))
    for step in verdict.next_steps:
        lines += paragraph(clean(step))
    return lines


def _coverage(report: Report) -> list[Row]:
    """What gave nothing; processes that gave nothing for the same reason share a row."""
    hidden = (SourceState.USED, SourceState.SKIPPED)
    sources: dict[str, list[str]] = {}
    for item in report.coverage:
        if item.state not in hidden:
            why = clean(item.reason + (f" (fix: {item.fix})" if item.fix else ""))
            sources.setdefault(why, []).append(item.source)
    return [Row(label=_source_names(names), lines=(why,)) for why, names in sources.items()]


def _source_names(names: list[str]) -> str:
    pids = [name.removeprefix("process ") for name in names]
    if all(pid.isdecimal() for pid in pids):
        return numbers(map(int, pids), "pid")
    return ", ".join(names)


def _thread(process: ReportProcess | None, tid: int | None) -> ReportThread | None:
    if process is None:
        return None
    return next((item for item in process.threads if item.tid == tid), None)
