"""Rows that say who waits for what: victims, those named, and who else is on the way, each told once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyhangtrace.model.kinds import Part, Role
from pyhangtrace.model.report import Report, ReportProcess, ReportThread, Wait
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import python_frames
from pyhangtrace.render.text.headline import cause_words, is_told_of
from pyhangtrace.render.text.layout import Row
from pyhangtrace.render.text.words import (
    frame_words,
    numbers,
    plural_verb,
    process_title,
    since,
    stack_notes,
    thread_label,
    wait_words,
)

_SHOWN_FRAMES = 4
_SHOWN_ROWS = 16
_SHOWN_NAMES = 4
_SHOWN_MAINS = 12
_LIBRARIES = ("/lib/python", "/site-packages/", "/dist-packages/", "<frozen ")
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
# Lies between every collective of torch.distributed and its caller.
_WRAPPERS = ("/torch/distributed/c10d_logger.py",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One thread of the verdict. Entries that differ in who they are only share a row."""

    pid: int
    tid: int | None
    rank: int | None
    thread: str
    label: str  # the thread's name, made unique within its process
    title: str  # "" where the rank says who it is
    does: str
    where: tuple[str, ...] = ()
    since_s: float | None = None
    victim: bool = False
    part: str = ""  # of a server, where no rank says it


def who_rows(report: Report) -> list[Row]:
    """All rows, victims first; at most a page of them."""
    entries = list(_Entries(report).all())
    one_process = len({entry.pid for entry in entries}) == 1
    shared: dict[tuple[object, ...], list[_Entry]] = {}
    for entry in entries:
        shared.setdefault((entry.title, entry.does, entry.where, entry.victim), []).append(entry)
    rows = [_row(members, one_process=one_process) for members in shared.values()]
    rows += [
        Row(label=f"rank {culprit.rank}", lines=("no process of this rank is here",))
        for culprit in report.verdict.culprits
        if culprit.pid is None
    ]
    if len(rows) > _SHOWN_ROWS:
        rest = len(rows) - _SHOWN_ROWS
        rows = [*rows[:_SHOWN_ROWS], Row(label="…", lines=(f"and {rest} more (see -o FILE.html)",))]
    return rows


class _Entries:
    """The verdict's threads, put into words."""

    def __init__(self, report: Report) -> None:
        self._report = report
        verdict = report.verdict
        self._waits: Mapping[str, Wait] = {wait.id: wait for wait in report.waits}
        self._processes = {process.pid: process for process in report.processes}
        self._threads = {
            (process.pid, thread.tid): thread for process in report.processes for thread in process.threads
        }
        named = {item.wait for item in verdict.culprits} | {item.wait for item in verdict.victims}
        on_the_way = {*verdict.chain, *verdict.cycle} - named
        self._further = [wait for wait in report.waits if wait.id in on_the_way]
        # Who has a row needs no title where others wait for them.
        self._known = frozenset(
            {item.pid for item in verdict.culprits if item.pid is not None}
            | {wait.pid for wait in self._further}
        )

    def all(self) -> Iterator[_Entry]:
        """Victims, then those named and the rest of the chain, each before the one it waits for."""
        verdict = self._report.verdict
        missing = self._never_came()
        for victim in verdict.victims:
            wait = self._waits.get(victim.wait or "")
            rank = self._rank(victim.pid)
            yield self._entry(victim.pid, victim.tid, wait, victim=True, missing=rank in missing)
        causes = {}
        why = cause_words(self._report)
        for culprit in verdict.culprits:
            causes[culprit.wait] = why if culprit.part is verdict.culprits[0].part else ""
            # Of one culprit's chain the cause is the first one's; parties are all in the same thing.
            why = why if culprit.part is Part.PARTY else ""
        threads = [
            (culprit.pid, culprit.tid, self._waits.get(culprit.wait or ""))
            for culprit in verdict.culprits
            if culprit.pid is not None
        ]
        threads += [(wait.pid, wait.tid, wait) for wait in self._further]
        order = {name: number for number, name in enumerate(verdict.chain)}
        for pid, tid, wait in sorted(
            threads, key=lambda item: order.get(item[2].id, len(order)) if item[2] else len(order)
        ):
            rank = self._rank(pid)
            yield self._entry(
                pid,
                tid,
                wait,
                missing=rank in missing,
                why=causes.get(wait.id, "") if wait and is_told_of(self._report, wait) else "",
            )
            missing.discard(rank)

    def _rank(self, pid: int) -> int | None:
        """A rank that has ended has no environment any more: what the verdict calls it counts too."""
        process = self._processes.get(pid)
        if process is not None and process.rank is not None:
            return process.rank
        named = (item.rank for item in self._report.verdict.culprits if item.pid == pid)
        return next((rank for rank in named if rank is not None), None)

    def _never_came(self) -> set[int | None]:
        """Ranks missing in the collectives that the victims wait in."""
        waited_in = {
            wait.object.collective
            for victim in self._report.verdict.victims
            if (wait := self._waits.get(victim.wait or "")) is not None
        }
        return {
            rank
            for collective in self._report.collectives
            if collective.id in waited_in
            for rank in collective.missing
            if rank not in collective.entered
        }

    def _entry(
        self,
        pid: int,
        tid: int | None,
        wait: Wait | None,
        *,
        victim: bool = False,
        missing: bool = False,
        why: str = "",
    ) -> _Entry:
        process = self._processes.get(pid)
        thread = self._threads.get((pid, tid)) if tid is not None else None
        rank = self._rank(pid)
        does = wait_words(wait, self._report, known=self._known) if wait else _without_wait(process)
        told_by_rank = rank is not None or victim or process is None
        return _Entry(
            pid=pid,
            tid=tid,
            rank=rank,
            thread=clean(thread.name or thread.comm) if thread is not None else "",
            label=thread_label(self._report, pid, tid, thread.name or thread.comm) if thread else "",
            title="" if told_by_rank or process is None else process_title(process),
            does=f"never entered it; {does}" if missing and not _ended(process) else does,
            where=()
            if victim and not missing
            else (*_stack_lines(thread), *stack_notes(thread), *((why,) if why else ())),
            since_s=wait.since_s if wait is not None else None,
            victim=victim,
            part=_part([process]),
        )


def _row(members: list[_Entry], *, one_process: bool) -> Row:
    first = members[0]
    ages = [entry.since_s for entry in members if entry.since_s is not None]
    right = since(max(ages, default=None))
    pids = [entry.pid for entry in members]
    ranks = [entry.rank for entry in members if entry.rank is not None]
    ranked = len(ranks) == len(members)
    does = first.does if len(members) == 1 else plural_verb(first.does)
    if one_process and not ranked and first.thread:
        label = f"thread {first.label}" if len(members) == 1 else f"{len(members)} threads"
        names = () if len(members) == 1 else (_names(members),)
        return Row(label=label, lines=(*names, does, *first.where), right=right)
    label = numbers(ranks, "rank") if ranked else numbers(pids, "pid")
    who = []
    if first.victim and len(members) == 1:
        does = f"{first.part}{does}"
    if not first.victim:
        if ranked:
            who.append(numbers(pids, "pid"))
        if len(members) == 1 and first.tid not in (None, first.pid):
            who.append(f"thread {first.thread} ({first.tid})" if first.thread else f"thread {first.tid}")
    title = (first.title,) if first.title and not one_process else ()
    return Row(label=label, lines=(*title, f"{', '.join(who)} {does}".strip(), *first.where), right=right)


# Parts of a server that have no rank to be called by.
_PARTS = {Role.ENGINE: "engine core", Role.SCHEDULER: "scheduler", Role.DETOKENIZER: "detokenizer"}


def _part(processes: list[ReportProcess | None]) -> str:
    """What a lone process without a rank is in a server: `detokenizer: `; "" where that says nothing."""
    alone = processes[0] if len(processes) == 1 else None
    name = _PARTS.get(alone.role) if alone is not None and alone.rank is None else None
    return f"{name}: " if name is not None else ""


def _names(members: list[_Entry]) -> str:
    names = [entry.label or str(entry.tid) for entry in members]
    return ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")


def _without_wait(process: ReportProcess | None) -> str:
    if process is None or _ended(process):
        code = process.exit_code if process is not None else None
        if code is None:
            return "has ended"
        return f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
    return "is on the CPU" if process.state == "R" else ""


def _ended(process: ReportProcess | None) -> bool:
    return process is not None and process.state in ("Z", "X", "gone")


def main_rows(report: Report) -> list[Row]:
    """What the main thread of each process is in, where and for how much longer; those in the same share a row."""
    waits = {wait.id: wait for wait in report.waits}
    shared: dict[tuple[str, str], list[tuple[ReportProcess, float | None]]] = {}
    for process in report.processes:
        main = next((thread for thread in process.threads if thread.tid == process.pid), None)
        if process.role is Role.OUTSIDER or main is None:
            continue
        wait = waits.get(main.wait or "")
        does = wait_words(wait, report) if wait is not None else _without_wait(process)
        frames = _own_lines(main)
        if does:
            age = wait.since_s if wait is not None else None
            shared.setdefault((does, frames[0] if frames else ""), []).append((process, age))
    found = []
    for (does, where), members in shared.items():
        ranks = [process.rank for process, _ in members if process.rank is not None]
        pids = [process.pid for process, _ in members]
        label = numbers(ranks, "rank") if len(ranks) == len(members) else numbers(pids, "pid")
        verb = does if len(members) == 1 else plural_verb(does)
        ages = [age for _, age in members if age is not None]
        found.append(
            Row(
                label=label,
                lines=(f"{_part([process for process, _ in members])}{verb} {where}".strip(),),
                right=since(max(ages, default=None)),
            )
        )
    if len(found) > _SHOWN_MAINS:
        more = len(found) - _SHOWN_MAINS
        found = [*found[:_SHOWN_MAINS], Row(label="…", lines=(f"and {more} more (see -o FILE.html)",))]
    return found


def _own_lines(thread: ReportThread) -> list[str]:
    """The stack from the program's own code on, where there is any."""
    own = [
        frame
        for frame in python_frames(thread)
        if frame.file and not any(part in frame.file for part in _LIBRARIES)
    ]
    return [f"in {frame_words(frame)}" for frame in own] or _stack_lines(thread)


def _stack_lines(thread: ReportThread | None) -> list[str]:
    """The innermost Python frames, where there are any, else native ones: enough to open the file at the line."""
    if thread is None:
        return []
    python = [frame for frame in python_frames(thread) if frame.file and not frame.file.endswith(_WRAPPERS)]
    starters = [(frame.file or "").endswith(_STARTERS) for frame in python]
    # A library's own wait may lie in the same file as its start: only what is outside of the program's code goes.
    own = starters.index(False) if False in starters else len(starters)
    end = starters.index(True, own) if True in starters[own:] else len(starters)
    chosen = python[:end] or [frame for frame in thread.stack if frame.function]
    return [f"in {frame_words(frame)}" for frame in chosen[:_SHOWN_FRAMES]]
