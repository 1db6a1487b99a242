"""A recording's table for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.quantities import size
from pyhangtrace.model.recording import Recording
from pyhangtrace.model.weighted import RecordingSummary, SummaryRow
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.layout import Style, shorten

_HEADS = ("", "waits", "waited", "longest", "minflt", "majflt", "cpu", "off cpu", "I/O wait", "coll/s")
_WIDTH = 80


def render_recording(recording: Recording, summary: RecordingSummary, *, color: bool) -> str:
    """The whole page."""
    return "\n".join(_lines(recording, summary, Style(color=color))) + "\n"


def _lines(recording: Recording, summary: RecordingSummary, style: Style) -> Iterable[str]:
    many = len(recording.processes)
    yield (
        f"{many} {'process' if many == 1 else 'processes'} on {clean(recording.host)}, recorded for "
        f"{recording.window_s:.1f} s, nobody was stopped"
    )
    yield ""
    cells = table(summary)
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADS))]
    for number, row in enumerate(cells):
        text = "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        yield style.dim(text) if number == 0 else text
    yield from _details(summary.rows, style)
    notes = [*summary.notes, *_uncovered(recording)]
    if notes:
        yield ""
        yield style.bold("also")
        for note in notes:
            yield f"  {clean(note)}"


def table(summary: RecordingSummary) -> list[tuple[str, ...]]:
    """The heads of the columns, and the cells of each row."""
    return [_HEADS, *(_cells(row) for row in summary.rows)]


def _cells(row: SummaryRow) -> tuple[str, ...]:
    return (
        clean(row.label)[:14],
        _count(row.futex_waits),
        _time(row.futex_wait_s),
        _time(row.longest_wait_s) + ("+" if row.longest_open else ""),
        _count(row.minor_faults),
        _count(row.major_faults),
        _time(row.cpu_s),
        _time(row.off_cpu_s),
        _time(row.io_wait_s),
        "" if row.collectives_per_s is None else f"{row.collectives_per_s:.1f}",
    )


def _details(rows: Sequence[SummaryRow], style: Style) -> Iterable[str]:
    for row in rows:
        said = []
        if row.longest_thread:
            still = ", still waiting" if row.longest_open else ""
            said.append(f"longest wait: {clean(row.longest_thread)}{still}")
        if row.waker:
            said.append(f"waker: {clean(row.waker)}")
        if row.last_collective:
            said.append(f"last collective: {clean(row.last_collective)}")
        if row.calls:
            said.append(f"calls: {clean(row.calls)}")
        if row.block_bytes:
            said.append(f"block I/O: {size(row.block_bytes)}")
        if said:
            yield ""
            yield style.bold(f"{clean(row.label)} (pid {row.pid})")
            for sentence in said:
                yield f"  {shorten(sentence, _WIDTH - 2)}"


def _uncovered(recording: Recording) -> Iterable[str]:
    for status in recording.coverage:
        if status.state not in (SourceState.USED, SourceState.SKIPPED):
            yield f"{status.source}: {status.reason}" + (f"; fix: {status.fix}" if status.fix else "")


def _count(number: int) -> str:
    if number < 100_000:
        return str(number)
    return f"{number / 1e3:.0f}k" if number < 10_000_000 else f"{number / 1e6:.0f}M"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.0005:
        return "0" if seconds <= 0 else f"{seconds * 1e6:.0f}us"
    if seconds < 0.995:
        return f"{seconds * 1e3:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 1000 else f"{seconds:.0f}s"
