"""A running thread at one place: a spin only where the function is known to do nothing but wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.analyze.spinning import describe_samples, loop_of
from pyhangtrace.model.kinds import FrameKind, Kind, StackFrom, State
from pyhangtrace.model.stacks import Frame, StackSamples
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b


def native(function: str, address: int) -> Frame:
    return Frame(kind=FrameKind.NATIVE, function=function, module="libwork.so", address=address)


def at(
    leaf: str, *, count: int = 5, caller: int = 0x2000, address: int = 0x1000, **changes: object
) -> ThreadSample:
    """A thread on the CPU, sampled a few times in one function."""
    samples = StackSamples(count=count, same_leaf=True, same_stack=True, leaves=(leaf,))
    frames = (native(leaf, address), native("work", caller), b.py("compute"))
    sample = b.running(101, frames=frames, samples=samples, stack_from=StackFrom.PERF, stack_complete=True)
    return replace(sample, **changes)  # type: ignore[arg-type]


def test_one_place_in_all_looks_is_a_loop() -> None:
    loop = loop_of([at("crunch"), at("crunch", address=0x1010)])
    assert loop is not None
    assert (loop.function, loop.count, loop.is_spin) == ("crunch", 10, False)


@pytest.mark.parametrize(
    "looks",
    [
        [at("crunch"), at("other")],
        [at("crunch"), at("crunch", caller=0x3000)],
        [at("crunch", count=1), at("crunch", count=2)],
        [at("crunch"), at("crunch", samples=None)],
        [
            at("crunch"),
            at("crunch", samples=StackSamples(count=5, same_leaf=True, same_stack=False, leaves=("crunch",))),
        ],
        [],
    ],
)
def test_what_moves_or_was_hardly_seen_is_none(looks: list[ThreadSample]) -> None:
    assert loop_of(looks) is None


@pytest.mark.parametrize(
    ("leaf", "spins"),
    [
        ("sched_yield", True),
        ("__sched_yield", True),
        ("pthread_spin_lock", True),
        ("gomp_barrier_wait_end", True),
        ("folly::detail::spin_wait", True),
        ("(anonymous namespace)::spin_until.part.0", True),
        ("spin_glass_energy", False),
        ("mkl_blas_def_sgemm_kernel_0_zen", False),
        ("await_spinor", False),
    ],
)
def test_only_known_functions_are_spins(leaf: str, spins: bool) -> None:
    loop = loop_of([at(leaf)])
    assert loop is not None
    assert loop.is_spin is spins


def test_python_code_is_told_by_its_function() -> None:
    leaf = "_PyEval_EvalFrameDefault"
    frames = (b.py("wait_for_flag"), native("run_mod", 0x9000))
    loop = loop_of([at(leaf, frames=frames), at(leaf, frames=frames)])
    assert loop is not None
    assert (loop.function, loop.is_spin) == ("", False)
    elsewhere = (b.py("other"), native("run_mod", 0x9000))
    assert loop_of([at(leaf, frames=frames), at(leaf, frames=elsewhere)]) is None


@pytest.mark.parametrize(
    ("leaf", "cause", "words"),
    [
        ("crunch", Kind.CPU_BUSY, "spins or computes in crunch"),
        ("sched_yield", Kind.CPU_SPIN, "spins in sched_yield"),
    ],
)
def test_the_verdict_says_no_more_than_is_known(leaf: str, cause: Kind, words: str) -> None:
    looks = b.twice(b.in_collective(100), at(leaf))
    report = analyze(b.evidence(b.ranks(2), looks))
    assert (report.verdict.state, report.verdict.cause) == (State.BUSY, cause)
    assert words in report.verdict.summary
    wait = next(wait for wait in report.waits if wait.pid == 101)
    assert f"10 samples of its stack, all in {leaf}, called in the same way" in wait.evidence
    thread = next(process for process in report.processes if process.pid == 101).threads[0]
    assert thread.samples is not None
    assert thread.samples.leaves == (leaf,)


def test_samples_in_words() -> None:
    moving = StackSamples(count=5, same_leaf=False, same_stack=False, leaves=("a", "b"))
    assert describe_samples([at("a", samples=moving)]) == "5 samples of its stack, in 2 functions"
    assert describe_samples([at("a", count=1)]) == "1 sample of its stack, in a"
    assert describe_samples([at("a", samples=None)]) is None
