"""The page a person reads first: verdict, who waits and why, what is not the cause, what to do next."""

from __future__ import annotations

from pyhangtrace.model.kinds import Confidence, Role, SourceState, State, WaitKind
from pyhangtrace.model.report import Report
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.gpus import gpu_rows
from pyhangtrace.render.text.headline import headline_title
from pyhangtrace.render.text.layout import WIDTH, Row, Style, columns, paragraph, rows, wrap
from pyhangtrace.render.text.ras import ras_rows
from pyhangtrace.render.text.tasks import task_rows
from pyhangtrace.render.text.who import main_rows, who_rows
from pyhangtrace.render.text.words import age, frame_words, numbers

_STATE_COLORS = {
    State.HUNG: "1;31",
    State.BUSY: "1;33",
    State.SLOW: "1;33",
    State.RUNNING: "1;32",
    State.IDLE: "1;32",
    State.ENDED: "1;35",
    State.UNKNOWN: "1;36",
}
_LONGEST_PIDS = 48

# That these could not be read everywhere matters only to who waits for an end that was not found.
_SEARCHED = ("open files", "sockets")
_HAS_AN_END = (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL, WaitKind.FILE_LOCK, WaitKind.LOCK_FILE)


def render_text(report: Report, *, color: bool) -> str:
    """The whole page, 80 columns wide, a newline at the end."""
    style = Style(color)
    lines = [*_header(report), "", *_headline(report, style)]
    # The rows say all of the summary, and where; without rows it is what there is.
    lines += list(rows(who_rows(report), style)) or paragraph(clean(report.verdict.summary))
    if report.verdict.state in (State.IDLE, State.RUNNING):
        lines += list(rows(main_rows(report), style))
    for title, block in (
        ("tasks", list(rows(task_rows(report), style))),
        ("nccl ras", list(rows(ras_rows(report), style))),
        ("parted at", list(rows(_parted(report), style))),
        ("not the cause", list(rows(_cleared(report), style))),
        ("gpus", list(rows(gpu_rows(report), style))),
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
        parts.append(f"{numbers(workload.ranks_seen, 'rank')}{of} ({_pids(ranked)})")
    elif members:
        parts.append(_pids([process.pid for process in members]))
    if workload.phase is not None:
        parts.append(workload.phase.words)
    parts.append(f"host {report.host}")
    parts.append(f"looked for {report.window_s:.1f} s")
    stopped = sum(report.cost.stopped_us.values())
    parts.append("nobody was stopped" if not stopped else f"stopped for {stopped} µs in all")
    return paragraph(clean(", ".join(parts)), indent=0)


def _pids(pids: list[int]) -> str:
    """`pids 70-77`; of many with gaps only how many they are."""
    listed = numbers(pids, "pid")
    return listed if len(listed) <= _LONGEST_PIDS else f"{len(pids)} processes"


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
    if verdict.cycle and verdict.confidence is Confidence.POSSIBLE:
        # A circle that may yet end is not older than its youngest wait.
        circle = [wait.since_s for wait in report.waits if wait.id in verdict.cycle]
        return min((age for age in circle if age is not None), default=None)
    for group in (victims, named):
        ages = [wait.since_s for wait in report.waits if wait.id in group and wait.since_s is not None]
        if ages:
            return max(ages)
    return None


def _cleared(report: Report) -> list[Row]:
    return [
        Row(label=item.suspect.partition(".")[0], lines=(clean(item.because),))
        for item in report.verdict.cleared
    ]


def _parted(report: Report) -> list[Row]:
    """The frame that all ranks share, and where each side is from there."""
    parted = report.verdict.diverged_at
    if parted is None:
        return []
    common = [Row(label="all", lines=(frame_words(parted.common),))] if parted.common is not None else []
    return common + [
        Row(label=numbers(side.ranks, "rank"), lines=(frame_words(side.frame) if side.frame else "?",))
        for side in parted.sides
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
    searched = _end_not_found(report)
    for item in report.coverage:
        if item.state not in hidden and (searched or item.source not in _SEARCHED):
            why = clean(item.reason + (f" (fix: {item.fix})" if item.fix else ""))
            sources.setdefault(why, []).append(item.source)
    return [Row(label=_source_names(names), lines=(why,)) for why, names in sources.items()]


def _end_not_found(report: Report) -> bool:
    """A wait whose other end or holder was looked for in all processes of the host, and not found."""
    return any(
        wait.kind in _HAS_AN_END
        and wait.object.name not in ("connection", "signal")
        and wait.object.inode is not None
        and wait.holder is None
        and not wait.candidates
        for wait in report.waits
    )


def _source_names(names: list[str]) -> str:
    pids = [name.removeprefix("process ") for name in names]
    if all(pid.isdecimal() for pid in pids):
        return numbers(map(int, pids), "pid")
    return ", ".join(names)
