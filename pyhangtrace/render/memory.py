"""The page of `hangtrace memory`: what the group holds, its processes and files, and the control group's books."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pyhangtrace.model.kinds import MemoryMode, MemoryVerdict, SourceState
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import (
    CgroupBooks,
    Loading,
    MemoryAnswer,
    MemoryFile,
    MemoryProcess,
    MemoryReport,
    ReportMemory,
)
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.layout import WIDTH, Row, Style, columns, paragraph, rows, shorten, wrap
from pyhangtrace.render.text.words import numbers

_GOOD = (MemoryVerdict.NORMAL, MemoryVerdict.RSS_ILLUSION)
_MODES = {
    MemoryMode.BRACKET: "bracket: sizes that the kernel keeps, no page table was read",
    MemoryMode.ROLLUP: "shares of pages (PSS), which leave out what other processes map too",
    MemoryMode.PFN_UNION: "page frames, each counted once",
}
_MOST_PROCESSES = 64
_SMALLEST_SHOWN = 1 << 20
_SEPARATOR = "  "

# Heading, and the figure; those of which all are zero or unknown are left out.
_FIGURES: tuple[tuple[str, Callable[[ReportMemory], int | None]], ...] = (
    ("RSS", lambda memory: memory.rss),
    ("PSS", lambda memory: memory.pss),
    ("USS", lambda memory: memory.uss),
    ("unique", lambda memory: memory.unique),
    ("anon", lambda memory: memory.anon),
    ("file", lambda memory: memory.file),
    ("shmem", lambda memory: memory.shmem),
    ("swap", lambda memory: memory.swap),
    ("hugetlb", lambda memory: memory.hugetlb),
    ("device", lambda memory: memory.driver),
    ("tables", lambda memory: memory.page_tables),
)


def render_memory(answer: MemoryAnswer, *, color: bool) -> str:
    """The whole page, 80 columns wide, a newline at the end."""
    style = Style(color)
    memory = answer.memory
    lines = [*_header(answer), "", *_headline(memory, style)]
    for title, block in (
        ("why", [line for text in memory.evidence for line in paragraph(clean(text))]),
        ("group", list(rows(_group(memory), style))),
        ("processes", list(_table(answer.processes))),
        ("files", list(_files(memory.files, answer.processes, style))),
        (f"control group {clean(memory.books.path)}" if memory.books else "", _books(memory.books, style)),
        ("loading", list(rows(map(_loading, memory.loading), style))),
        ("not the cause", list(rows(_cleared(memory), style))),
        ("could not see", list(rows(_coverage(answer), style))),
    ):
        if block:
            lines += [style.bold(title), *block]
    return "\n".join(lines) + "\n"


def _header(answer: MemoryAnswer) -> list[str]:
    ranks = tuple(process.rank for process in answer.processes if process.rank is not None)
    pids = [process.pid for process in answer.processes]
    parts = [numbers(ranks, "rank")] if ranks else []
    listed = numbers(pids, "pid")
    parts.append(listed if len(listed) <= 48 else f"{len(pids)} processes")
    parts += [f"host {answer.host}", f"watched for {answer.window_s:.1f} s"]
    return paragraph(clean(", ".join(parts)), indent=0)


def _headline(memory: MemoryReport, style: Style) -> list[str]:
    verdict = memory.verdict.value.replace("_", " ").upper()
    said = memory.explanation if memory.verdict in _GOOD and memory.explanation else memory.summary
    lead = len(verdict) + 2
    lines = wrap(clean(said), WIDTH - lead)
    painted = style.paint(verdict, "1;32" if memory.verdict in _GOOD else "1;31")
    return [f"{painted}  {lines[0]}", *(" " * lead + line for line in lines[1:])]


def _group(memory: MemoryReport) -> Iterator[Row]:
    if memory.group_low is None or memory.group_high is None:
        return
    amount, least = size(memory.group_high), size(memory.group_low)
    if least != amount:
        amount = f"{least} to {amount}"
    part = "" if memory.complete else "; not all members were read"
    yield Row(label="holds", lines=(f"{amount} ({_MODES[memory.mode]}{part})",))
    if memory.rss_sum is not None:
        pss = f", of PSS {size(memory.pss_sum)}" if memory.pss_sum is not None else ""
        yield Row(label="sum of RSS", lines=(f"{size(memory.rss_sum)}{pss}",))
    if memory.shared is not None and memory.unique is not None:
        least = "at least " if memory.mode is MemoryMode.ROLLUP else ""
        yield Row(
            label="shared",
            lines=(f"{size(memory.shared)} by several members, {least}{size(memory.unique)} of one alone",),
        )
    if memory.outsiders:
        yield Row(
            label="outsiders", lines=(f"{size(memory.outsiders)} of it count for processes outside the job",)
        )
    if memory.hugetlb:
        yield Row(label="huge pages", lines=(f"{size(memory.hugetlb)} at least, which RSS leaves out",))
    if memory.merged:
        yield Row(
            label="alike pages",
            lines=(f"{size(memory.merged)} of RSS may be there once, and not for each that has it (KSM)",),
        )
    if memory.page_tables:
        yield Row(label="page tables", lines=(f"{size(memory.page_tables)} on top of it",))


def _table(processes: tuple[MemoryProcess, ...]) -> Iterator[str]:
    """A line a process; figures that are zero for all are left out."""
    shown = processes[:_MOST_PROCESSES]
    figures = [
        (name, figure) for name, figure in _FIGURES if any(figure(process.memory) for process in shown)
    ]
    head = ["rank", "pid", *(name for name, _ in figures), "faults/s"]
    ranked = any(process.rank is not None for process in shown)
    faults = any(process.memory.major_faults_per_s for process in shown)
    lines = [
        [
            str(process.rank) if process.rank is not None else "-",
            str(process.pid),
            *(_cell(figure(process.memory)) for _, figure in figures),
            f"{process.memory.major_faults_per_s or 0:.0f}",
        ]
        for process in shown
    ]
    keep = [
        index
        for index, name in enumerate(head)
        if (name != "rank" or ranked) and (name != "faults/s" or faults)
    ]
    widths = [max(len(line[index]) for line in [head, *lines]) for index in keep]
    notes = ["", *(_note(process) for process in shown)]
    for line, note in zip([head, *lines], notes, strict=True):
        cells = [line[index].rjust(width) for index, width in zip(keep, widths, strict=True)]
        text = "  " + _SEPARATOR.join(cells)
        room = WIDTH - columns(text) - len(_SEPARATOR)
        if note and room < columns(note):
            yield text
            yield from paragraph(note, indent=6)
        else:
            yield f"{text}{_SEPARATOR}{note}".rstrip()
    if len(processes) > len(shown):
        yield f"  and {len(processes) - len(shown)} more"


def _cell(amount: int | None) -> str:
    return "-" if amount is None else size(amount) if amount else "0"


def _note(process: MemoryProcess) -> str:
    if process.problem is None:
        return ""
    words = {
        "mmap_lock_held": "its memory map is locked",
        "no_time": "not read in time",
        "not_permitted": "not permitted",
        "gone": "has ended meanwhile",
        "zombie": "has ended",
    }
    thread = f" (thread {process.problem_tid})" if process.problem_tid is not None else ""
    return clean(words.get(process.problem, process.problem) + thread)


def _files(files: Iterable[MemoryFile], processes: tuple[MemoryProcess, ...], style: Style) -> Iterator[str]:
    ranks = {str(process.pid): process.rank for process in processes}
    for file in files:
        if (file.resident if file.resident is not None else file.size or 0) < _SMALLEST_SHOWN:
            continue
        yield "  " + style.bold(shorten(clean(file.path), WIDTH - 2))
        resident = f"{size(file.resident)} in memory" if file.resident is not None else "in memory: unknown"
        whole = f"{size(file.size)}, " if file.size is not None else ""
        counted = f", counted {size(file.in_rss)} in RSS" if file.in_rss is not None else ""
        kind = "" if file.kind == "file" else f"{file.kind}, "
        yield from paragraph(f"{kind}{whole}{resident}, mapped by {_whom(file, ranks)}{counted}", indent=4)


def _whom(file: MemoryFile, ranks: dict[str, int | None]) -> str:
    known = sorted(rank for pid in file.mapped_by if (rank := ranks.get(pid)) is not None)
    if known and len(known) == len(file.mapped_by):
        return numbers(tuple(known), "rank")
    listed = numbers(sorted(int(pid) for pid in file.mapped_by), "pid")
    return listed if len(listed) <= 48 else f"{len(file.mapped_by)} processes"


def _books(books: CgroupBooks | None, style: Style) -> list[str]:
    if books is None:
        return []
    limit = f" of a limit of {size(books.limit)}" if books.limit is not None else ", no limit"
    listed = [Row(label="charged", lines=(f"{size(books.usage)}{limit} (version {books.version})",))]
    listed += [
        Row(label=entry.name, lines=(f"{size(entry.size)}{f', {entry.remark}' if entry.remark else ''}",))
        for entry in books.entries
        if entry.size
    ]
    share = abs(books.residue) / books.usage if books.usage else 0.0
    listed.append(Row(label="residue", lines=(f"{size(abs(books.residue))} ({share:.1%})",)))
    listed += [Row(label="", lines=(clean(remark),)) for remark in books.remarks]
    return list(rows(listed, style))


def _loading(loading: Loading) -> Row:
    label = loading.files.rpartition("/")[2]
    said = loading.summary.removeprefix(f"{label} ") if loading.count == 1 else loading.summary
    return Row(label=clean(label), lines=(clean(said),))


def _cleared(memory: MemoryReport) -> list[Row]:
    return [
        Row(label=item.suspect.partition(".")[2].replace("_", " "), lines=(clean(item.because),))
        for item in memory.cleared
    ]


def _coverage(answer: MemoryAnswer) -> list[Row]:
    hidden = (SourceState.SKIPPED,)
    return [
        Row(label=item.source, lines=(clean(item.reason + (f" (fix: {item.fix})" if item.fix else "")),))
        for item in answer.coverage
        if item.reason and item.state not in hidden
    ]
