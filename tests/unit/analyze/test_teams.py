"""Teams of OpenMP: who has not come to a barrier, and who is only kept for the next region."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze.openmp import place
from pyhangtrace.analyze.report import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Edge, State, WaitKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b

PROGRAM = "/opt/solver"
LIBC = "/usr/lib/libc.so.6"
GNU = "/usr/lib/libgomp-a34b3233.so.1"
LLVM = "/usr/lib/libomp.so.5"


def frames(*places: tuple[str, str]) -> tuple[Frame, ...]:
    return tuple(b.native(function, module) for function, module in places)


def inside(
    library: str, *called: str, region: str = "solve._omp_fn.0", leads: bool = False
) -> tuple[Frame, ...]:
    """A member of a team that waits in the runtime, `called` innermost first."""
    inner = [(function, library) for function in called]
    begin = [("GOMP_parallel", library), ("solve", PROGRAM), ("main", PROGRAM)]
    started = [("", library), ("start_thread", LIBC), ("clone3", LIBC)]
    return frames(*inner, (region, PROGRAM), *(begin if leads else started))


def at_work(region: str = "solve._omp_fn.0") -> tuple[Frame, ...]:
    return frames(
        ("nanosleep", LIBC),
        ("load", PROGRAM),
        (region, PROGRAM),
        ("", GNU),
        ("start_thread", LIBC),
        ("clone3", LIBC),
    )


def on_word(tid: int, stack: tuple[Frame, ...], word: int = 0x5000) -> ThreadSample:
    lock = LockFacts(kind="openmp", address=word, uaddr=word, op=0, value=8)
    return b.sleeper(100, tid, lock=lock, frames=stack, args=(word, 0x80, 8, 0, 0, 0))


def job(*threads: ThreadSample) -> Evidence:
    return b.evidence([b.process(100)], b.twice(*threads))


@pytest.mark.parametrize(
    ("stack", "called", "region", "leads"),
    [
        (inside(GNU, "", "GOMP_barrier", leads=True), "GOMP_barrier", "solve._omp_fn.0", True),
        (inside(LLVM, "", "", "__kmpc_barrier"), "__kmpc_barrier", "solve._omp_fn.0", False),
        (frames(("", GNU), ("GOMP_parallel", GNU), ("main", PROGRAM)), "GOMP_parallel", None, True),
        (frames(("", GNU), ("", GNU), ("start_thread", LIBC)), "", None, False),
        (at_work(), "", "solve._omp_fn.0", False),
    ],
)
def test_where_a_thread_is_in_its_team(
    stack: tuple[Frame, ...], called: str, region: str | None, leads: bool
) -> None:
    found = place(stack)
    assert found is not None
    assert (found.called, found.leads) == (called, leads)
    assert found.region == ((region, PROGRAM) if region else None)
    assert found.is_spare is (region is None and not leads)


def test_a_thread_without_runtime_is_in_no_team() -> None:
    assert place(frames(("nanosleep", LIBC), ("main", PROGRAM))) is None


def test_who_has_not_come_to_the_barrier_is_waited_for() -> None:
    sleeping = replace(b.asleep(100, 201, seconds=3600), frames=at_work())
    report = analyze(
        job(
            on_word(100, inside(GNU, "", "GOMP_barrier", leads=True)),
            sleeping,
            on_word(202, inside(GNU, "", "GOMP_barrier")),
        )
    )
    wait = next(wait for wait in report.waits if wait.tid == 100)
    assert (wait.kind, wait.edge, wait.holder) == (WaitKind.BARRIER, Edge.ALL, None)
    assert [one.tid for one in wait.candidates] == [201]
    assert report.verdict.state is State.HUNG
    assert [one.tid for one in report.verdict.culprits] == [201]


def test_another_region_is_another_team() -> None:
    sleeping = replace(b.asleep(100, 201, seconds=3600), frames=at_work("other._omp_fn.1"))
    report = analyze(job(on_word(100, inside(GNU, "", "GOMP_barrier", leads=True)), sleeping))
    assert all(wait.kind is not WaitKind.BARRIER for wait in report.waits)
    assert report.verdict.culprits == ()


def test_of_two_teams_in_one_region_nobody_is_named() -> None:
    sleeping = replace(b.asleep(100, 201, seconds=3600), frames=at_work())
    report = analyze(
        job(
            on_word(100, inside(GNU, "", "GOMP_barrier", leads=True)),
            on_word(300, inside(GNU, "", "GOMP_barrier", leads=True), word=0x6000),
            sleeping,
        )
    )
    assert all(wait.kind is not WaitKind.BARRIER for wait in report.waits)
    assert report.verdict.culprits == ()


def test_nobody_is_known_to_be_in_a_critical_section() -> None:
    sleeping = replace(b.asleep(100, 201, seconds=3600), frames=at_work())
    report = analyze(
        job(
            on_word(100, inside(GNU, "", "GOMP_critical_start", leads=True)),
            sleeping,
            on_word(202, frames(("", GNU), ("", GNU), ("start_thread", LIBC)), word=0x7000),
        )
    )
    wait = next(wait for wait in report.waits if wait.tid == 100)
    assert (wait.kind, wait.holder) == (WaitKind.MUTEX, None)
    assert [one.tid for one in wait.candidates] == [201]
    assert all(one.tid != 201 for one in report.verdict.culprits)
    assert all(wait.tid != 202 for wait in report.waits)


@pytest.mark.parametrize(("left", "state"), [(20.0, State.SLOW), (2000.0, State.HUNG)])
def test_barrier_to_which_one_comes_after_a_nap(left: float, state: State) -> None:
    waits = on_word(100, inside(GNU, "", "GOMP_barrier", leads=True))
    late = b.asleep(100, 201, seconds=left + 10.0, left=left)
    verdict = analyze(job(waits, replace(late, frames=at_work()))).verdict
    assert verdict.state is state
    assert [who.tid for who in verdict.culprits] == [201]
