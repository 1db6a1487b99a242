"""What one wait is called on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.model.kinds import Confidence, Kind, Part, State, WaitKind
from pyhangtrace.model.report import Culprit, Report, ReportHolder, Verdict, Wait, WaitObject
from pyhangtrace.render.text.page import render_text
from pyhangtrace.render.text.words import wait_words
from tests.unit.render import sample


def words(kind: WaitKind, *, holder: ReportHolder | None = None, **thing: str) -> str:
    wait = Wait(id="w9", pid=70, tid=70, kind=kind, object=WaitObject(**thing), holder=holder)
    return wait_words(wait, sample.report())


@pytest.mark.parametrize(
    ("kind", "thing", "said"),
    [
        (WaitKind.CONDITION, {"name": "futex word", "address": "0x10"}, "waits for a futex word at 0x10"),
        (WaitKind.CONDITION, {"name": "atomic"}, "waits for an atomic"),
        (WaitKind.QUEUE, {"name": "worker"}, "waits for its next piece of work"),
        (WaitKind.QUEUE, {"name": "map"}, "waits for the result of map"),
        (WaitKind.FILE_LOCK, {"name": "lease", "path": "/a"}, "waits for a lease on /a to be given back"),
    ],
)
def test_what_is_waited_for_is_called_by_its_name(kind: WaitKind, thing: dict[str, str], said: str) -> None:
    assert words(kind, **thing) == said


def test_who_stops_a_thread_is_told() -> None:
    assert words(WaitKind.STOPPED) == "is stopped"
    assert words(WaitKind.STOPPED, holder=ReportHolder(pid=9)) == "is stopped by its tracer, pid 9"


def test_all_who_have_the_lock_by_one_open_file_are_told() -> None:
    wait = Wait(
        id="w9",
        pid=70,
        tid=70,
        kind=WaitKind.FILE_LOCK,
        object=WaitObject(path="/a"),
        holder=ReportHolder(pid=8),
        evidence=("kernel lock table: flock on inode 5 held by 8", "pid 9 has it by the same open file"),
    )
    said = "waits for a file lock /a, held by pid 8 (pid 9 has it by the same open file)"
    assert wait_words(wait, sample.report()) == said


def full_pipe() -> Report:
    """Process 70 waits for its child 71, which writes into a pipe that 70 does not read."""
    waits = (
        Wait(id="w1", pid=70, tid=70, kind=WaitKind.CHILD, holder=ReportHolder(pid=71)),
        Wait(
            id="w2",
            pid=71,
            tid=71,
            kind=WaitKind.PIPE,
            object=WaitObject(path="pipe:[5]", fd=1),
            holder=ReportHolder(pid=70),
            evidence=("pipe:[5] is full",),
        ),
    )
    verdict = Verdict(
        state=State.HUNG,
        cause=Kind.IPC_PIPE_FULL,
        confidence=Confidence.PROVEN,
        summary="",
        culprits=tuple(
            Culprit(rank=None, pid=wait.pid, tid=wait.tid, thread="main", wait=wait.id, part=Part.PARTY)
            for wait in waits
        ),
        chain=("w1", "w2"),
        cycle=("w1", "w2"),
    )
    return replace(sample.report(), processes=(), waits=waits, collectives=(), verdict=verdict)


def test_of_a_full_pipe_it_is_told_who_writes_and_who_only_waits() -> None:
    text = render_text(full_pipe(), color=False)
    assert "HUNG  pid 71 writes to a full pipe, pid 70 waits for that" in text
    assert "writes into pipe:[5] (fd 1), other end with pid 70" in text
    assert text.count("it is full, and nobody reads from it") == 1
