"""What a tick shows, made of two readings and the last look: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.model.kinds import Role, State
from pyhangtrace.model.live import (
    Doing,
    Followed,
    LiveRow,
    LiveVerdict,
    Reading,
    ThreadKey,
    ThreadMark,
    WakerNote,
    Woken,
)
from pyhangtrace.model.report import Report, ReportProcess, ReportThread, Wait
from pyhangtrace.render.text.headline import headline_title
from pyhangtrace.render.text.words import age, collective_words, wait_words

_RUNS = 0.5  # of a CPU
_BUSIEST = 3
_MOST_NOTES = 8
_TELLS = frozenset({State.HUNG, State.BUSY, State.SLOW, State.UNKNOWN, State.ENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The last look: its report, when that came by the clock of the readings, and whether another one is to follow.

    What every tick asks of the report is found once: `shown` is the wait that counts of each process, `told` whom the
    verdict is about, of whom `rested` did not run while the look was taken; `since_s` is the oldest of their waits.
    """

    report: Report
    at_s: float
    settled: bool
    shown: Mapping[int, Wait]
    told: tuple[ThreadKey, ...]
    rested: frozenset[ThreadKey]
    since_s: float | None
    threads: Mapping[int, tuple[ReportProcess, ReportThread]]
    processes: Mapping[int, ReportProcess]
    title: str


def hold(report: Report, *, at_s: float, settled: bool) -> Held:
    """Keeps a look."""
    waits = {(wait.pid, wait.tid): wait for wait in report.waits}
    told = _of_verdict(report)
    about = set(told)
    shown = {key[0]: waits[key] for key in reversed(told) if key in waits}
    mains = {pid: wait for (pid, tid), wait in waits.items() if pid == tid}
    # Since when somebody waits in vain; without victims, of those named.
    victims = [(each.pid, each.tid) for each in report.verdict.victims]
    ages = [waits[key].since_s for key in victims or told if key in waits]
    return Held(
        report=report,
        at_s=at_s,
        settled=settled,
        shown={**mains, **shown},
        told=tuple(told),
        rested=frozenset(
            (process.pid, thread.tid)
            for process in report.processes
            for thread in process.threads
            if not thread.moved and not thread.switches_in_window and (process.pid, thread.tid) in about
        ),
        since_s=max((age for age in ages if age is not None), default=None),
        threads={thread.tid: (process, thread) for process in report.processes for thread in process.threads},
        processes={process.pid: process for process in report.processes},
        title=headline_title(report),
    )


def threads_that_matter(report: Report) -> list[ThreadKey]:
    """Those the verdict is about, and of each process the busiest ones: to be followed until the next look."""
    found = dict.fromkeys(_of_verdict(report))
    for process in report.processes:
        if process.role is Role.OUTSIDER:
            continue
        busy = [
            thread
            for thread in process.threads
            if thread.service is None and thread.tid != process.pid and (thread.cpu_s_in_window or 0.0) > 0
        ]
        busy.sort(key=lambda thread: -(thread.cpu_s_in_window or 0.0))
        found.update(dict.fromkeys((process.pid, thread.tid) for thread in busy[:_BUSIEST]))
    return list(found)


def rows(before: Reading | None, now: Reading, held: Held | None) -> tuple[LiveRow, ...]:
    """All processes of the job, ranks first."""
    reports = held.processes if held is not None else {}
    found = [
        _row(process, reports.get(pid), before, now, held)
        for pid, process in sorted(now.processes.items())
        if pid in now.counters
    ]
    return tuple(sorted(found, key=lambda row: (row.rank is None, row.rank or 0, row.pid)))


def verdict(now: Reading, held: Held | None) -> LiveVerdict | None:
    """The verdict of the last look, unless those it is about have moved since."""
    if held is None:
        return None
    report = held.report
    passed_s = max(0.0, now.at_s - held.at_s)
    title = held.title
    moved = report.verdict.state in _TELLS and moved_on(now, held)
    return LiveVerdict(
        state=State.RUNNING if moved else report.verdict.state,
        title=f"moves on; {age(passed_s)} ago {report.verdict.state.value}: {title}" if moved else title,
        summary=report.verdict.summary,
        confidence=report.verdict.confidence,
        since_s=None if moved or held.since_s is None else round(held.since_s + passed_s, 1),
        looked_s_ago=round(passed_s, 1),
        moved_on=moved,
        settled=held.settled,
    )


def moved_on(now: Reading, held: Held) -> bool:
    """Whether somebody whom the verdict is about has moved since the look, of those that rested while it was taken. Who
    wakes up all the time to go on waiting tells nothing.
    """
    for key in held.rested:
        mark = now.threads.get(key)
        if (mark is not None and mark.moved_s > held.at_s) or (
            mark is None and key[0] in now.processes and key[0] not in now.counters
        ):
            return True
    return False


def waker_notes(
    held: Held | None, resting: Iterable[ThreadKey], woken: Sequence[Woken]
) -> tuple[WakerNote, ...]:
    """Of threads that wait for something nobody is recorded to have: who used to wake them."""
    if held is None or not woken:
        return ()
    free = {(wait.pid, wait.tid) for wait in held.report.waits if wait.holder is None}
    told = set(held.told)
    keys = [key for key in resting if key in free]
    threads = held.threads
    notes = []
    for pid, tid in sorted(keys, key=lambda key: (key not in told, key)):
        pairs = [pair for pair in woken if pair.woken == tid]
        if not pairs:
            continue
        most = pairs[0]
        waker = threads.get(most.waker)
        notes.append(
            WakerNote(
                pid=pid,
                tid=tid,
                thread=_name(threads[tid][1]) if tid in threads else str(tid),
                waker_pid=waker[0].pid if waker is not None else None,
                waker_tid=most.waker,
                waker=_name(waker[1]) if waker is not None else "gone",
                count=most.count,
                of=sum(pair.count for pair in pairs),
            )
        )
    return tuple(notes[:_MOST_NOTES])


def _name(thread: ReportThread) -> str:
    return thread.name or thread.comm


def _of_verdict(report: Report) -> list[ThreadKey]:
    """Threads that the verdict names or goes through."""
    said = report.verdict
    chained = {*said.chain, *said.cycle}
    named = [(each.pid, each.tid) for each in said.culprits if each.pid is not None and each.tid is not None]
    victims = [(each.pid, each.tid) for each in said.victims]
    return list(
        dict.fromkeys(
            (*named, *((wait.pid, wait.tid) for wait in report.waits if wait.id in chained), *victims)
        )
    )


def _row(
    process: Followed, seen: ReportProcess | None, before: Reading | None, now: Reading, held: Held | None
) -> LiveRow:
    counters = now.counters[process.pid]
    earlier = before.counters.get(process.pid) if before is not None else None
    passed_s = now.at_s - before.at_s if before is not None else 0.0
    cpu = faults = None
    if earlier is not None and passed_s > 0 and earlier.start_ticks == counters.start_ticks:
        cpu = round(max(0.0, counters.cpu_s - earlier.cpu_s) / passed_s, 3)
        touched = counters.minor_faults + counters.major_faults
        faults = round((touched - earlier.minor_faults - earlier.major_faults) / passed_s, 1)
    wait = held.shown.get(process.pid) if held is not None else None
    mark = now.threads.get((process.pid, wait.tid if wait is not None else process.pid))
    holds = wait is not None and held is not None and mark is not None and mark.moved_s <= held.at_s
    report = held.report if held is not None else None
    return LiveRow(
        pid=process.pid,
        rank=seen.rank if seen is not None else process.rank,
        role=seen.role if seen is not None else process.role,
        title=process.title,
        doing=_doing(counters.state, mark, cpu, now, before),
        collective=_collective(wait, report) if holds and wait is not None and report is not None else None,
        blocked_on=wait_words(wait, report)
        if holds and wait is not None and report is not None
        else _place(mark),
        since_s=_since(wait, mark, now, held) if holds else _rest(mark, now),
        cpu=cpu,
        faults_per_s=faults,
        rss=counters.rss,
        pss=seen.memory.pss if seen is not None else None,
        gpu_percent=_gpu(process.pid, report),
    )


def _doing(
    state: str, mark: ThreadMark | None, cpu: float | None, now: Reading, before: Reading | None
) -> Doing:
    if state in "Tt":
        return Doing.STOPPED
    if state in "ZX":
        return Doing.ENDED
    if cpu is not None and cpu >= _RUNS:
        return Doing.RUNS
    if mark is not None and mark.state == "D":
        return Doing.DISK
    if mark is not None and before is not None and before.at_s < mark.moved_s != mark.seen_s:
        return Doing.MOVES
    return Doing.MOVES if cpu else Doing.WAITS


def _place(mark: ThreadMark | None) -> str | None:
    if mark is None or mark.state == "R":
        return None
    return f"in {mark.syscall}" if mark.syscall else (f"in {mark.wchan}" if mark.wchan else None)


def _rest(mark: ThreadMark | None, now: Reading) -> float | None:
    return round(now.at_s - mark.moved_s, 1) if mark is not None and mark.state != "R" else None


def _since(wait: Wait | None, mark: ThreadMark | None, now: Reading, held: Held | None) -> float | None:
    if wait is None or wait.since_s is None or held is None:
        return _rest(mark, now)
    return round(wait.since_s + now.at_s - held.at_s, 1)


def _collective(wait: Wait, report: Report) -> str | None:
    found = next((each for each in report.collectives if each.id == wait.object.collective), None)
    return collective_words(found) if found is not None else None


def _gpu(pid: int, report: Report | None) -> int | None:
    used = [gpu.utilization for gpu in (report.gpus if report is not None else ()) if pid in gpu.pids]
    known = [each for each in used if each is not None]
    return max(known) if known else None
