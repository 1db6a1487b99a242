"""The page on a terminal: columns whatever the names, every process said once, one process told by its threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from pyhangtrace.model.kinds import (
    Confidence,
    FrameKind,
    Kind,
    Part,
    Role,
    SourceState,
    StackFrom,
    State,
    WaitKind,
)
from pyhangtrace.model.report import (
    Coverage,
    Culprit,
    Divergence,
    Report,
    ReportHolder,
    ReportSamples,
    ReportThread,
    Side,
    Verdict,
    Victim,
    Wait,
    WaitObject,
)
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.text.layout import Row, Style, columns, rows, shorten, wrap
from pyhangtrace.render.text.page import render_text
from tests.unit.render import sample

LONG_NAMES = (
    "/cache/" + "x" * 200 + "/lock",
    "/cache" + "/folder" * 40,
    "/データ/" + "重み" * 60,
    "/cafe\u0301/" + "e\u0301" * 90,
    "a\nb\x1b[31m\t" * 30,
    "\udce9" * 40,
    "",
)


@pytest.mark.parametrize("name", LONG_NAMES)
def test_no_name_makes_a_line_too_long(name: str) -> None:
    report = sample.report()
    waits = tuple(
        structs.replace(wait, object=structs.replace(wait.object, path=name))
        if wait.kind is WaitKind.FILE_LOCK
        else wait
        for wait in report.waits
    )
    processes = tuple(
        replace(process, title=name) if process.role is Role.OUTSIDER else process
        for process in report.processes
    )
    report = replace(
        report,
        host=name,
        waits=waits,
        processes=processes,
        verdict=replace(report.verdict, next_steps=(f"rm {name}",)),
        coverage=(Coverage(source=name, state=SourceState.FAILED, reason=name, fix=name),),
    )
    for line in render_text(report, color=False).splitlines():
        assert columns(line) <= 80


def test_wrapping_loses_nothing() -> None:
    word = "/データ" + "/folder" * 30
    assert "".join(wrap(word, 30, reserved_first=12)) == word
    assert "".join(wrap(f"a {word} b", 30)).replace(" ", "") == f"a{word}b"
    assert wrap("", 30) == [""]


def test_paths_break_after_a_slash() -> None:
    assert wrap("/one/two/three/four", 10) == ["/one/two/", "three/four"]


def test_columns_are_those_of_a_terminal() -> None:
    assert [columns(text) for text in ("ab", "重み", "e\u0301")] == [2, 4, 1]
    assert shorten("重み重み", 5) == "重み…"


def test_a_note_stands_at_the_right_edge() -> None:
    lines = list(rows([Row(label="重", lines=("word " * 20,), right="since 3 s")], Style(color=False)))
    assert lines[0].endswith("  since 3 s")
    assert columns(lines[0]) == 80


def test_a_holder_with_a_row_of_its_own_has_its_title_there_only() -> None:
    text = render_text(sample.report(), color=False)
    assert text.count("python warmup.py") == 1
    assert "held by pid 9911 in build" in " ".join(text.split())


def test_processes_that_gave_nothing_for_one_reason_share_a_row() -> None:
    refused = tuple(
        Coverage(
            source=f"process {pid}", state=SourceState.REFUSED, reason="not allowed", fix="run with sudo"
        )
        for pid in (70, 71, 72)
    )
    text = render_text(replace(sample.report(), coverage=refused), color=False)
    assert "  pids 70-72  not allowed (fix: run with sudo)\n" in text


def deadlock() -> Report:
    """Two threads of one process, each holds a mutex that the other one wants."""
    threads = tuple(
        ReportThread(tid=tid, name=name, comm="python", state="S", wait=f"w{tid}")
        for tid, name in ((50, "MainThread"), (51, "reader"), (52, "writer"))
    )
    process = replace(
        sample.outsider(),
        pid=50,
        role=Role.OTHER,
        title="/usr/bin/python serve.py",
        state="S",
        asleep_for_s=5.0,
        threads=threads,
    )
    joins = Wait(id="w50", pid=50, tid=50, kind=WaitKind.JOIN, holder=ReportHolder(pid=50, tid=51))
    mutexes = tuple(
        Wait(
            id=f"w{tid}",
            pid=50,
            tid=tid,
            kind=WaitKind.MUTEX,
            object=WaitObject(address="0x7f00"),
            holder=ReportHolder(pid=50, tid=other),
            since_s=5.0,
        )
        for tid, other in ((51, 52), (52, 51))
    )
    verdict = Verdict(
        state=State.HUNG,
        cause=Kind.LOCK_CYCLE,
        confidence=Confidence.PROVEN,
        summary="A summary that the rows say, too.",
        culprits=tuple(
            Culprit(rank=None, pid=50, tid=tid, thread=name, wait=f"w{tid}", part=Part.PARTY)
            for tid, name in ((51, "reader"), (52, "writer"))
        ),
        victims=(Victim(rank=None, pid=50, tid=50, wait="w50"),),
        cycle=("w51", "w52"),
    )
    return replace(
        sample.report(),
        processes=(process,),
        waits=(joins, *mutexes),
        collectives=(),
        verdict=verdict,
        workload=replace(sample.report().workload, framework=None, ranks_seen=(), phase=None),
    )


def test_one_process_is_told_by_its_threads() -> None:
    text = render_text(deadlock(), color=False)
    assert text.startswith("pid 50, host a100-07")
    assert "HUNG  deadlock: threads reader, writer of pid 50" in text
    assert "  thread MainThread  waits for the end of thread reader (51)\n" in text
    assert "  thread reader      waits for a mutex at 0x7f00, held by thread" in text
    assert "A summary" not in text


def test_without_rows_the_summary_is_shown() -> None:
    verdict = Verdict(state=State.IDLE, confidence=Confidence.LIKELY, summary="Nothing hangs.")
    assert "\n  Nothing hangs.\n" in render_text(replace(deadlock(), verdict=verdict), color=False)


def test_threads_in_the_same_wait_share_a_row() -> None:
    report = deadlock()
    process = report.processes[0]
    threads = tuple(
        ReportThread(tid=tid, name=f"t{tid}", comm="python", state="S", wait=f"w{tid}")
        for tid in range(100, 1100)
    )
    waits = tuple(
        Wait(id=f"w{tid}", pid=50, tid=tid, kind=WaitKind.PYTHON_LOCK, object=WaitObject(address="0x7f00"))
        for tid in range(100, 1100)
    )
    verdict = Verdict(
        state=State.HUNG,
        cause=Kind.LOCK_HELD,
        culprits=tuple(
            Culprit(rank=None, pid=50, tid=thread.tid, thread=thread.name, wait=thread.wait, part=Part.PARTY)
            for thread in threads
        ),
    )
    report = replace(report, processes=(replace(process, threads=threads),), waits=waits, verdict=verdict)
    text = render_text(report, color=False)
    assert "HUNG  threads t100, t101, t102, t103, … of pid 50 wait for a lock" in text
    assert "  1000 threads  t100, t101, t102, t103, …\n" in text
    assert len(text.splitlines()) < 20


def test_many_processes_are_counted() -> None:
    report = deadlock()
    many = tuple(replace(report.processes[0], pid=50 + 2 * n) for n in range(60))
    text = render_text(replace(report, processes=many), color=False)
    assert text.startswith("60 processes, host a100-07")


def test_rows_end_with_the_page() -> None:
    report = sample.report()
    many = tuple(
        Wait(id=f"x{n}", pid=5000 + n, tid=1, kind=WaitKind.FILE_LOCK, object=WaitObject(path=f"/x/{n}"))
        for n in range(40)
    )
    verdict = replace(report.verdict, culprits=(), victims=(), chain=tuple(wait.id for wait in many))
    text = render_text(replace(report, waits=many, verdict=verdict), color=False)
    assert "and 24 more (see -o FILE.html)" in text


def test_rows_follow_the_chain() -> None:
    report = sample.report()
    verdict = replace(report.verdict, culprits=report.verdict.culprits[::-1])
    text = render_text(replace(report, verdict=verdict), color=False)
    assert text.index("  rank 3  ") < text.index("  pid 9911  ")
    assert text.count("never entered it") == 1


def test_a_page_about_nothing_wrong_says_where_everybody_is() -> None:
    report = sample.report()
    pids = [process.pid for process in report.processes if process.role is not Role.OUTSIDER]
    frame = Frame(kind=FrameKind.PYTHON, function="main", file="/job/serve.py", line=4)
    processes = tuple(
        replace(
            process,
            threads=(
                ReportThread(
                    tid=process.pid,
                    name="MainThread",
                    comm="python3",
                    state="S",
                    wait=f"w{process.pid}",
                    stack=(frame,),
                ),
            ),
        )
        if process.pid in pids
        else process
        for process in report.processes
    )
    waits = tuple(
        Wait(id=f"w{pid}", pid=pid, tid=pid, kind=WaitKind.POLL, object=WaitObject(name="connection"))
        for pid in pids
    )
    verdict = Verdict(state=State.IDLE, summary="Nothing hangs.")
    page = render_text(replace(report, processes=processes, waits=waits, verdict=verdict), color=False)
    assert "wait for a connection in main (serve.py:4)" in page
    assert page.count("serve.py:4") == 1


def test_the_page_says_where_the_ranks_parted() -> None:
    report = sample.report()

    def frame(line: int | None) -> Frame:
        return Frame(kind=FrameKind.PYTHON, function="work", file="/job/train.py", line=line)

    parted = Divergence(
        common=frame(None),
        sides=(Side(ranks=(0, 1), frame=frame(6)), Side(ranks=(2,), frame=frame(7))),
    )
    page = render_text(
        replace(report, verdict=replace(report.verdict, diverged_at=parted)), color=False
    ).splitlines()
    at = page.index("parted at")
    assert [line.split() for line in page[at + 1 : at + 4]] == [
        ["all", "work", "(train.py)"],
        ["ranks", "0-1", "work", "(train.py:6)"],
        ["rank", "2", "work", "(train.py:7)"],
    ]


@pytest.mark.parametrize(("kind", "told"), [(WaitKind.PIPE, True), (WaitKind.CONDITION, False)])
def test_what_was_not_searched_is_told_where_an_end_was_not_found(kind: WaitKind, told: bool) -> None:
    lacking = Coverage(source="open files", state=SourceState.REFUSED, reason="pid 1 may not be searched")
    wait = Wait(id="w9", pid=75, tid=75, kind=kind, object=WaitObject(inode=7))
    report = replace(sample.report(), coverage=(lacking,), waits=(wait,))
    assert ("pid 1 may not be searched" in render_text(report, color=False)) is told


def test_threads_of_one_name_are_told_apart_by_their_tids() -> None:
    report = sample.report()
    process = report.processes[0]
    threads = tuple(ReportThread(tid=tid, name="worker", comm="python3", state="S") for tid in (801, 802))
    named = tuple(Culprit(pid=process.pid, tid=tid, thread="worker", part=Part.PARTY) for tid in (801, 802))
    verdict = Verdict(state=State.HUNG, cause=Kind.LOCK_CYCLE, summary="", culprits=named)
    page = render_text(
        replace(report, processes=(replace(process, rank=None, threads=threads),), verdict=verdict),
        color=False,
    )
    assert "worker (801), worker (802)" in page


def test_a_rank_that_had_come_is_gone_and_one_that_had_not_never_came() -> None:
    report = sample.report()
    for cause, words in ((Kind.PEER_EXITED, "is gone"), (Kind.RENDEZVOUS_MISSING_RANK, "never came")):
        verdict = Verdict(
            state=State.HUNG, cause=cause, summary="", culprits=(Culprit(rank=5, part=Part.ABSENT),)
        )
        assert f"rank 5 {words}" in render_text(replace(report, verdict=verdict), color=False)


def test_ranks_that_are_missing_for_different_reasons_share_the_headline() -> None:
    report = sample.report()
    named = (
        Culprit(rank=1, pid=76, part=Part.PARTY),
        Culprit(rank=0, pid=75, part=Part.CULPRIT),
        Culprit(pid=9911, part=Part.CULPRIT),
    )
    verdict = Verdict(
        state=State.HUNG,
        cause=Kind.LOCK_HANDOFF_LOST,
        summary="",
        culprits=named,
        victims=(Victim(rank=2, pid=77, tid=77),),
    )
    page = render_text(replace(report, verdict=verdict), color=False)
    assert "ranks 0-1 keep 1 rank waiting" in page


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {
                "stack_from": StackFrom.PERF,
                "samples": ReportSamples(count=10, same_leaf=True, same_stack=True, leaves=("spin_here",)),
            },
            "10 samples: same leaf spin_here",
        ),
        (
            {
                "stack_from": StackFrom.PERF,
                "samples": ReportSamples(count=5, same_leaf=False, same_stack=False, leaves=("a", "b")),
            },
            "5 samples: in 2 functions",
        ),
        ({"stack_from": StackFrom.BPF}, "(registers from eBPF)"),
        ({"stack_from": StackFrom.STOP}, "(stopped for a moment)"),
        ({"stack_from": StackFrom.PC_SP}, None),
    ],
)
def test_it_says_where_a_stack_is_from(changes: dict[str, object], line: str | None) -> None:
    report = sample.report()
    culprit = report.verdict.culprits[0]
    native = (sample.native("spin_here", "libwork.so"),)
    processes = tuple(
        replace(
            process,
            threads=tuple(
                structs.replace(thread, stack=native, **changes) if thread.tid == culprit.tid else thread  # type: ignore[arg-type]
                for thread in process.threads
            ),
        )
        for process in report.processes
    )
    page = render_text(replace(report, processes=processes), color=False)
    assert "in spin_here (libwork.so)" in page
    if line is not None:
        assert line in page
    else:
        assert "(registers" not in page
