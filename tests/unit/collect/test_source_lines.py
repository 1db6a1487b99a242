"""Source positions through the guarded reader, with an engine that is a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from pyhangtrace.collect import source_lines
from pyhangtrace.collect.guarded import GuardedReader, HelperState
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.kinds import FoundBy, FrameKind, SourceState
from pyhangtrace.model.stacks import Frame, SourcePlace, SourcePosition
from pyhangtrace.model.threads import ThreadSample


def look(*addresses: tuple[int, int]) -> Look:
    """One thread of one native frame for each (pid, address)."""
    return Look(
        at_s=0.0,
        threads=tuple(
            ThreadSample(
                pid=pid,
                tid=pid,
                comm="x",
                state="S",
                frames=(Frame(kind=FrameKind.NATIVE, function="f", address=address, found_by=FoundBy.LEAF),),
            )
            for pid, address in addresses
        ),
    )


class Engine:
    """Knows one address; takes for ever over process 9."""

    def __init__(self, proc_root: str) -> None:
        self.proc_root = proc_root

    def source_lines(
        self, pid: int, addresses: Sequence[int], *, budget_s: float
    ) -> tuple[list[list[tuple[str, str | None, int | None]]], list[str]]:
        if pid == 9:
            while True:
                time.monotonic()
        if pid == 8:
            return [[] for _ in addresses], ["libx.so: it took too long"]
        known = {0x10: [("g\n", "a\n.h", 4), ("f", None, None)]}
        return [list(known.get(address, [])) for address in addresses], []


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    def engine(state: HelperState) -> Engine:
        return Engine(state.proc_root)

    monkeypatch.setattr(source_lines, "native_engine", engine)
    with GuardedReader({source_lines.SOURCE_LINES_TASK: source_lines.source_lines_task}) as guarded:
        yield guarded


def test_positions_are_printable_and_by_process(reader: GuardedReader) -> None:
    places, status = source_lines.collect(reader, look((5, 0x10), (6, 0x20)), budget_s=5.0)
    [place] = places
    assert (place.pid, place.address) == (5, 0x10)
    assert [position.line for position in place.positions] == [4, None]
    assert place.positions[1] == SourcePosition(function="f")
    assert "\n" not in place.positions[0].function + (place.positions[0].file or "")
    assert status.state is SourceState.USED


def test_without_debug_information_the_reason_and_a_fix_are_said(reader: GuardedReader) -> None:
    places, status = source_lines.collect(reader, look((5, 0x20)), budget_s=5.0)
    assert places == ()
    assert status.state is SourceState.ABSENT
    assert "debug" in status.fix
    _, status = source_lines.collect(reader, look(), budget_s=5.0)
    assert status.state is SourceState.ABSENT


def test_what_was_found_in_time_is_kept(reader: GuardedReader) -> None:
    began = time.monotonic()
    places, status = source_lines.collect(reader, look((5, 0x10), (8, 0x10), (9, 0x10)), budget_s=1.0)
    assert time.monotonic() - began < 10.0
    assert places == (SourcePlace(pid=5, address=0x10, positions=places[0].positions),)
    assert status.state is SourceState.USED
    assert "process 9: timed_out" in status.reason
    assert "libx.so: it took too long" in status.reason
