"""Source positions in shown stacks: nothing else of the report depends on them."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from pyhangtrace.analyze import analyze
from pyhangtrace.analyze.source_lines import places_of, with_lines
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import FoundBy, FrameKind
from pyhangtrace.model.stacks import Frame, SourcePlace, SourcePosition, code_addresses
from tests.unit.analyze.builders import evidence, in_collective, missing_rank, on_mutex, ranks, twice


def native(function: str, address: int, found_by: FoundBy = FoundBy.CFI) -> Frame:
    return Frame(
        kind=FrameKind.NATIVE, function=function, module="libx.so", address=address, found_by=found_by
    )


PYTHON = Frame(kind=FrameKind.PYTHON, function="f", file="f.py", line=3, found_by=FoundBy.PYTHON)
KERNEL = Frame(kind=FrameKind.KERNEL, function="futex_wait")
STACK = (
    KERNEL,
    native("read", 0x100, FoundBy.LEAF),
    native("", 0x200),
    PYTHON,
    native("main", 0x300, FoundBy.SCAN),
)


def test_only_the_innermost_native_frame_is_at_its_own_address() -> None:
    assert code_addresses(STACK) == (None, 0x100, 0x1FF, None, 0x2FF)
    assert code_addresses((PYTHON, native("x", 0x200))) == (None, 0x1FF)
    named = native("sem_wait", 0x100, FoundBy.CALL_SITE)
    assert code_addresses((named, replace(named, address=0x200))) == (0x100, 0x1FF)


def place(address: int, *positions: SourcePosition, pid: int = 5) -> SourcePlace:
    return SourcePlace(pid=pid, address=address, positions=positions)


def source(*places: SourcePlace) -> Evidence:
    return replace(evidence(ranks(2), twice(in_collective(100))), source=places)


def test_inlined_functions_come_before_the_frame_they_are_in() -> None:
    places = places_of(
        source(
            place(
                0x1FF,
                SourcePosition(function="deep", file="a.h", line=1),
                SourcePosition(function="shallow", file="b.c", line=2),
                SourcePosition(function="outer", file="b.c", line=30),
            ),
            place(0x2FF, SourcePosition(function="its_name_in_the_source", file="m.c", line=9)),
            place(0x100, SourcePosition(function="other process"), pid=6),
        )
    )
    shown = list(with_lines(5, STACK, places))
    assert [(frame.function, frame.file, frame.line, frame.found_by) for frame in shown] == [
        ("futex_wait", None, None, FoundBy.CFI),
        ("read", None, None, FoundBy.LEAF),
        ("deep", "a.h", 1, FoundBy.INLINED),
        ("shallow", "b.c", 2, FoundBy.INLINED),
        # It had no name; "main" keeps the one that the symbol table gave.
        ("outer", "b.c", 30, FoundBy.CFI),
        ("f", "f.py", 3, FoundBy.PYTHON),
        ("main", "m.c", 9, FoundBy.SCAN),
    ]
    assert {frame.module for frame in shown if frame.kind is FrameKind.NATIVE} == {"libx.so"}
    assert list(with_lines(7, STACK, places)) == list(STACK)


def test_a_verdict_does_not_depend_on_source_positions() -> None:
    """Not even if the names in debug information are those of something that matters."""
    before = missing_rank(on_mutex(103, owner=None))
    with_addresses = tuple(
        replace(
            look,
            threads=tuple(
                replace(
                    thread,
                    frames=tuple(
                        replace(frame, address=0x1000 * number) if frame.kind is FrameKind.NATIVE else frame
                        for number, frame in enumerate(thread.frames, start=1)
                    ),
                )
                for thread in look.threads
            ),
        )
        for look in before.looks
    )
    plain = replace(before, looks=with_addresses)
    places = {
        (thread.pid, address): place(
            address,
            SourcePosition(function="pthread_mutex_lock", file="x.c", line=1),
            SourcePosition(function="gloo::barrier", file="torch/distributed/distributed_c10d.py", line=2),
            pid=thread.pid,
        )
        for thread in plain.looks[-1].threads
        for address in code_addresses(thread.frames)
        if address is not None
    }
    assert places
    one = analyze(plain)
    other = analyze(replace(plain, source=tuple(places.values())))
    assert other != one

    def without_stacks(report: object) -> object:
        return replace(
            report,  # type: ignore[type-var]
            processes=tuple(
                replace(
                    process, threads=tuple(structs.replace(thread, stack=()) for thread in process.threads)
                )
                for process in report.processes  # type: ignore[attr-defined]
            ),
        )

    assert without_stacks(other) == without_stacks(one)
