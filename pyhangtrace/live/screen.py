"""What stands on the screen, as plain text in given widths: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyhangtrace.live.ticks import Held
from pyhangtrace.model.kinds import State
from pyhangtrace.model.live import LiveRow, Tick
from pyhangtrace.model.report import Report, ReportProcess, ReportThread, Wait
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import process_label, thread_label
from pyhangtrace.render.text.layout import shorten, wrap
from pyhangtrace.render.text.words import age, frame_words, plural, wait_words, waker_words

# Name and width, with the blank that follows; what is left is for the last one.
COLUMNS: tuple[tuple[str, int], ...] = (
    ("rank", 5),
    ("pid", 8),
    ("state", 8),
    ("since", 6),
    ("cpu%", 5),
    ("flt/s", 6),
    ("mem", 6),
    ("gpu%", 5),
    ("blocked on", 0),
)
_SAID_BY_THE_STATE = ("waits for an ", "waits for a ", "waits for the ", "waits for ", "waits ", "in ")
_VERDICT_LINES = 2
_FRAMES = 40
_THREADS = 24
_SIZES = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))

_Sort = Callable[[LiveRow], tuple[bool, float | str]]


def _number(value: float | None) -> tuple[bool, float | str]:
    """The largest first, what is not known last."""
    return (value is None, -(value or 0.0))


# By the name that the screen shows.
SORTS: dict[str, _Sort] = {
    "rank": lambda row: (row.rank is None, float(row.rank or 0)),
    "since": lambda row: _number(row.since_s),
    "cpu": lambda row: _number(row.cpu),
    "faults": lambda row: _number(row.faults_per_s),
    "memory": lambda row: _number(row.pss or row.rss),
    "state": lambda row: (False, row.doing.value),
    "blocked on": lambda row: (row.blocked_on is None, row.blocked_on or ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How a person wants to see it."""

    sort: str = "rank"
    filter: str = ""
    frozen: bool = False


def arranged(rows: Sequence[LiveRow], wish: Wish) -> list[LiveRow]:
    """The rows that match the filter, in the order wanted."""
    wanted = wish.filter.lower()
    found = [row for row in rows if not wanted or wanted in _searched(row)]
    return sorted(found, key=lambda row: (SORTS[wish.sort](row), row.rank is None, row.rank or 0, row.pid))


def _searched(row: LiveRow) -> str:
    named = f"rank {row.rank}" if row.rank is not None else ""
    words = (
        named,
        f"pid {row.pid}",
        row.doing.value,
        row.role.value,
        row.title,
        row.blocked_on,
        row.collective,
    )
    return "\n".join(word for word in words if word).lower()


def headline(tick: Tick, wish: Wish, width: int) -> tuple[State | None, list[str]]:
    """The verdict, for its colour, and three lines: verdict (two), and what goes on."""
    verdict = tick.verdict
    if not tick.rows:
        return State.ENDED, ["ENDED  the job has ended", "", ""]
    if verdict is None:
        first = ["looking for the first time …"]
    else:
        since = f", {age(verdict.since_s)}" if verdict.since_s is not None else ""
        sure = "" if verdict.moved_on else f"  ({verdict.confidence.value}{since})"
        early = "" if verdict.settled else "  looking on"
        words = f"{verdict.state.value.upper()}  {clean(verdict.title)}{sure}{early}"
        first = wrap(words, width)
        if len(first) < _VERDICT_LINES and not verdict.moved_on:
            first.append(clean(verdict.summary))
    lines = [shorten(part, width) for part in (*first, *[""] * _VERDICT_LINES)[:_VERDICT_LINES]]
    return verdict.state if verdict is not None else None, [*lines, shorten(_status(tick, wish), width)]


def _status(tick: Tick, wish: Wish) -> str:
    parts = [tick.at[11:19], *([tick.framework] if tick.framework else [])]
    parts += [f"{tick.moving} of {plural(len(tick.rows), 'process')} move", f"by {wish.sort}"]
    if wish.filter:
        parts.append(f"only {wish.filter!r}")
    if tick.verdict is not None:
        parts.append(f"looked {age(tick.verdict.looked_s_ago)} ago")
    if tick.looking:
        parts.append("looking …")
    elif tick.still_s is not None:
        parts.append(f"still for {age(tick.still_s)}")
    if wish.frozen:
        parts.insert(0, "FROZEN")
    return clean(", ".join(parts))


def heading(width: int) -> str:
    """The names of the columns."""
    return "".join(name.ljust(space) for name, space in COLUMNS)[:width]


def line(row: LiveRow, width: int) -> str:
    """One row, as wide as the terminal allows."""
    room = width - sum(space for _, space in COLUMNS)
    shown = zip(_cells(row, room), COLUMNS, strict=True)
    return "".join(shorten(cell, space - 1).ljust(space) if space else cell for cell, (_, space) in shown)


def _cells(row: LiveRow, width: int) -> tuple[str, ...]:
    blocked = row.collective or row.blocked_on or ""
    said = next((words for words in _SAID_BY_THE_STATE if blocked.startswith(words)), "")
    blocked = blocked.removeprefix(said)
    return (
        "-" if row.rank is None else str(row.rank),
        str(row.pid),
        row.doing.value,
        age(row.since_s).replace(" ", ""),
        "" if row.cpu is None else f"{100 * row.cpu:.0f}",
        "" if row.faults_per_s is None else _count(row.faults_per_s),
        size(row.pss if row.pss is not None else row.rss),
        "" if row.gpu_percent is None else str(row.gpu_percent),
        shorten(clean(blocked) if blocked else f"({clean(row.title)})", max(8, width)),
    )


def size(amount: int | None) -> str:
    """`412G`, `3.4T`; "" if unknown."""
    if amount is None:
        return ""
    for unit, letter in _SIZES:
        if amount >= unit:
            value = amount / unit
            return f"{value:.1f}{letter}" if value < 10 else f"{value:.0f}{letter}"
    return str(amount)


def _count(number: float) -> str:
    return f"{number:.0f}" if number < 10000 else f"{number / 1000:.0f}k"


def chain(tick: Tick, held: Held | None) -> list[str]:
    """The wait chain of the verdict, and who used to wake those that wait now."""
    if held is None:
        return ["not looked yet"]
    passed_s = tick.verdict.looked_s_ago if tick.verdict is not None and not tick.verdict.moved_on else 0.0
    return [*_chain(held.report, passed_s), *_wakers(tick)]


def process(held: Held | None, pid: int | None) -> list[str]:
    """Threads and stacks of one process, as of the last look."""
    if held is None or pid is None:
        return []
    found = held.processes.get(pid)
    if found is None:
        return [f"pid {pid} was not there when the job was looked at: l looks again"]
    return list(_process(found, held.report))


def _chain(report: Report, passed_s: float) -> Iterator[str]:
    waits = {wait.id: wait for wait in report.waits}
    labels = {process.pid: process_label(process) for process in report.processes}
    names = {
        (process.pid, thread.tid): thread_label(thread)
        for process in report.processes
        for thread in process.threads
    }
    shown = report.verdict.cycle or report.verdict.chain
    if shown:
        yield "deadlock" if report.verdict.cycle else "wait chain"
    for number, wait in enumerate((waits[each] for each in shown if each in waits), 1):
        who = f"{labels.get(wait.pid, f'pid {wait.pid}')} {clean(names.get((wait.pid, wait.tid), str(wait.tid)))}"
        yield f"  {number}. {who} {wait_words(wait, report)}{_since(wait, passed_s)}"


def _wakers(tick: Tick) -> Iterator[str]:
    if tick.wakers:
        yield "before it stood still"
    for note in tick.wakers:
        yield f"  {clean(waker_words(note))}"


def _process(process: ReportProcess, report: Report) -> Iterator[str]:
    waits = {wait.id: wait for wait in report.waits}
    yield f"{process_label(process)}, pid {process.pid}, {process.role.value}: {clean(process.title)}"
    own = [thread for thread in process.threads if thread.service is None]
    # Whom the verdict is about first, then the main thread.
    told = {wait.tid for wait in report.waits if wait.id in {*report.verdict.chain, *report.verdict.cycle}}
    own.sort(key=lambda each: (each.tid not in told, each.tid != process.pid, each.tid))
    for thread in own[:_THREADS]:
        yield from _thread(thread, waits.get(thread.wait or ""), report)
    if len(own) > _THREADS:
        yield f"  and {plural(len(own) - _THREADS, 'thread')} more: see the exported page"
    serving = len(process.threads) - len(own)
    if serving:
        yield f"  and {plural(serving, 'thread')} that only {'serves' if serving == 1 else 'serve'}"


def _thread(thread: ReportThread, wait: Wait | None, report: Report) -> Iterator[str]:
    does = f"{wait_words(wait, report)}{_since(wait, 0.0)}" if wait is not None else f"state {thread.state}"
    gil = ", has the GIL" if thread.holds_gil else ""
    yield f"  {thread.tid} {clean(thread_label(thread))}: {does}{gil}"
    for frame in thread.stack[:_FRAMES]:
        yield f"      {frame_words(frame)}"
    if len(thread.stack) > _FRAMES:
        yield f"      and {len(thread.stack) - _FRAMES} more"


def _since(wait: Wait, later_s: float) -> str:
    return f", since {age(wait.since_s + later_s)}" if wait.since_s is not None else ""
