"""What a recording says, on one made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze.recording import collective_spans, compared, profile, summarise
from pyhangtrace.model.kinds import FoundBy, FrameKind
from pyhangtrace.model.probes import WakerCount
from pyhangtrace.model.recording import EventKind, Metric
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.weighted import StackProfile, Unit
from tests.unit.render.recorded import REDUCES, RUNS, WAITS, recording


def weights(shown: StackProfile) -> dict[tuple[int, tuple[str, ...]], float]:
    return {
        (stack.tid, tuple(frame.function for frame in stack.frames)): round(stack.weight, 6)
        for stack in shown.stacks
    }


def functions(*frames: object) -> tuple[str, ...]:
    return tuple(frame.function for frame in reversed(frames))  # type: ignore[attr-defined]


def test_waits_are_shared_out_over_the_stacks_seen_at_their_word() -> None:
    shown = profile(recording())
    assert shown.unit is Unit.SECONDS
    found = weights(shown)
    # Of 0.8 s at WORD two of three snapshots; 0.6 s that go on, at the other word; a thread seen in none.
    assert found[100, functions(*WAITS)] == pytest.approx(0.8 * 2 / 3, abs=1e-6)
    assert found[100, ("start_thread",)] == pytest.approx(0.8 / 3, abs=1e-6)
    assert found[100, functions(*REDUCES)] == pytest.approx(0.6)
    assert found[101, ("[in no snapshot]",)] == pytest.approx(2.0)
    assert shown.total == pytest.approx(0.8 + 0.6 + 2.0)


def test_a_stack_of_two_moments_counts_only_where_there_is_no_other() -> None:
    made = recording()
    mixed = tuple(replace(s, whole=s.at_s != 1.0) for s in made.samples)
    found = weights(profile(replace(made, samples=mixed)))
    assert found[100, functions(*WAITS)] == pytest.approx(0.8)
    assert (100, ("start_thread",)) not in found
    all_mixed = tuple(replace(s, whole=False) for s in made.samples)
    assert weights(profile(replace(made, samples=all_mixed))) == weights(profile(made))


def test_a_wait_that_began_before_the_window_has_the_stack_of_those_within() -> None:
    """Where the probes tell of one such: a snapshot names fewer functions of the kernel."""
    made = recording(Metric.OFFCPU)
    inner = made.off_cpu[0].kernel
    first = replace(made.samples[0], address=None, wchan=inner[1])
    (off,) = [each for each in made.off_cpu if each.pid == 100]
    others = [each for each in made.samples if each.pid != 100]
    user = functions(*(frame for frame in made.stacks[first.stack]))
    for kernels in ((inner,), (inner, ("__schedule", inner[1], "another"))):
        offs = tuple(replace(off, kernel=kernel, off_s=0.5) for kernel in kernels)
        shown = profile(replace(made, samples=(first, *others), off_cpu=offs))
        found = {key: weight for key, weight in weights(shown).items() if key[0] == first.tid}
        whole = (first.tid, (*user, *reversed(inner)))
        rest = 2.0 - 0.1 - 0.5 * len(kernels)
        assert found[whole] == pytest.approx(0.5 + (rest if len(kernels) == 1 else 0))
        assert ((first.tid, (*user, inner[1])) in found) == (len(kernels) == 2)


def test_time_off_the_cpu_joins_kernel_and_user() -> None:
    found = weights(profile(recording(Metric.OFFCPU)))
    kernel = ("do_futex", "futex_wait_queue", "__schedule")
    # Three stacks wait for a futex in five snapshots.
    assert found[100, (*functions(*WAITS), *kernel)] == pytest.approx(1.4 * 2 / 5)
    assert found[100, (*functions(*REDUCES), *kernel)] == pytest.approx(1.4 * 2 / 5)
    # What was off before the window began is no event: the thread's own counters know of it.
    assert found[100, functions(*WAITS)] == pytest.approx(2.0 - 0.1 - 1.4)
    # No snapshot shows it in the kernel's part.
    reads = ("[in no snapshot]", "filemap_fault", "io_schedule", "__schedule")
    assert found[200, reads] == pytest.approx(0.25)


def test_faults_belong_to_where_it_ran_and_to_what_is_mapped() -> None:
    shown = profile(recording(Metric.FAULTS))
    assert shown.unit is Unit.FAULTS
    found = weights(shown)
    runs = ("<module>", "step; <b>")
    assert found[200, (*runs, "[page faults in model.bin]")] == 5
    assert found[200, runs] == 7
    assert shown.total == 12


def test_faults_are_on_no_stack_of_a_thread_that_may_have_slept() -> None:
    made = recording(Metric.FAULTS)
    # It was about to run when it was looked at, and slept when its stack was read.
    unsure = tuple(replace(sample, on_cpu=False) for sample in made.samples)
    found = weights(profile(replace(made, samples=unsure)))
    assert found[200, ("[in no snapshot]", "[page faults in model.bin]")] == 5
    assert found[200, ("[in no snapshot]",)] == 7
    assert len(found) == 2
    stopped = tuple(replace(s, syscall=-1, state="T") for s in unsure)
    assert weights(profile(replace(made, samples=stopped))) == found
    faulting = tuple(replace(s, syscall=-1) if (s.pid, s.at_s) == (200, 1.0) else s for s in unsure)
    found = weights(profile(replace(made, samples=faulting)))
    assert found == {
        (200, (*functions(*REDUCES), "[page faults in model.bin]")): 5,
        (200, functions(*REDUCES)): 7,
    }


def test_the_faults_of_an_instruction_are_on_stacks_of_its_function_alone() -> None:
    """Not on those of other work that the thread was sampled at: it unmaps for longer than it writes."""
    made = recording(Metric.FAULTS)
    writes = Frame(
        kind=FrameKind.NATIVE, function="fill", module="/lib/w.so", address=0x51, found_by=FoundBy.LEAF
    )
    unmaps = replace(writes, function="munmap", module="/lib/libc.so.6", address=0x91)
    ran = next(sample for sample in made.samples if sample.pid == 200)
    samples = [
        replace(ran, at_s=at, stack=stack, on_cpu=True) for at, stack in ((0.1, 1), (0.2, 1), (0.3, 0))
    ]
    (place,) = made.places

    def found(**of_place: object) -> dict[tuple[int, tuple[str, ...]], float]:
        places = (replace(place, **of_place),)  # type: ignore[arg-type]
        threads = tuple(t for t in made.threads if t.pid == 200)
        threads = tuple(replace(t, minor_faults=3, major_faults=2) for t in threads)
        stacks = ((writes, *RUNS), (unmaps, *RUNS))
        return weights(
            profile(replace(made, stacks=stacks, samples=tuple(samples), places=places, threads=threads))
        )

    runs, leaf = functions(*RUNS), "[page faults in model.bin]"
    on_fill = {(200, (*runs, "fill", leaf)): 5}
    assert found(code=0x51) == on_fill  # the very instruction
    assert found(code=0x57, function="fill", module="/lib/w.so") == on_fill
    elsewhere = found(code=0x57, function="fill", module="/lib/other.so")
    assert elsewhere == {(200, ("[in no snapshot]", "fill", leaf)): 5}
    assert found(code=0x57) == {(200, ("[in no snapshot]", "0x57", leaf)): 5}
    assert found(code=0) == {(200, ("[by the kernel, in a system call]", leaf)): 5}


@pytest.mark.parametrize(
    ("mapping", "gone", "leaf"),
    [
        ("", False, "[page faults in anonymous memory]"),
        ("[heap]", False, "[page faults in [heap]]"),
        (None, False, "[page faults, mapping not known]"),
        (None, True, "[page faults in memory that is gone]"),
    ],
)
def test_what_is_not_known_of_a_place_is_said(mapping: str | None, gone: bool, leaf: str) -> None:
    made = recording(Metric.FAULTS)
    places = tuple(replace(place, mapping=mapping, gone=gone) for place in made.places)
    found = weights(profile(replace(made, places=places)))
    assert found[200, ("<module>", "step; <b>", leaf)] == 5


def test_a_comparison_matches_stacks_of_equal_rank_and_thread() -> None:
    before = recording()
    words = (replace(before.words[0], wait_s=0.3),)
    renumbered = replace(
        before,
        words=words,
        processes=tuple(replace(process, pid=process.pid + 1000) for process in before.processes),
        threads=tuple(replace(t, pid=t.pid + 1000, tid=t.tid + 1000) for t in before.threads if t.tid != 101),
        samples=tuple(replace(s, pid=s.pid + 1000, tid=s.tid + 1000) for s in before.samples),
    )
    renumbered = replace(
        renumbered, words=(replace(words[0], pid=words[0].pid + 1000, tid=words[0].tid + 1000),)
    )
    both = compared(profile(before), profile(renumbered), scale=2.0)
    assert both.compared
    found = {functions(*reversed(stack.frames)): stack for stack in both.stacks}
    waits = found[functions(*WAITS)]
    assert waits.weight == pytest.approx(0.8 * 2 / 3)
    assert waits.before == pytest.approx(0.3 * 2 / 3 * 2.0)
    assert found["[in no snapshot]",].before == 0.0
    # What is gone now is there with nothing.
    gone = compared(replace(profile(before), stacks=()), profile(before)).stacks
    assert {stack.weight for stack in gone} == {0.0}
    assert sum(stack.before or 0 for stack in gone) == pytest.approx(3.4)


def test_rows_say_who_waits_longest_and_who_wakes() -> None:
    summary = summarise(recording())
    first, second = summary.rows
    assert (first.label, first.futex_waits) == ("rank 0", 4)
    assert first.futex_wait_s == pytest.approx(0.8 + 0.6 + 2.0)
    assert (first.longest_thread, first.longest_wait_s, first.longest_open) == ("helper", 2.0, True)
    assert first.waker == "helper woke MainThread 4 times"
    assert first.collectives_per_s == 2.0
    assert first.last_collective == "all_reduce #14 of default_pg"
    assert second.last_collective == "all_reduce #13 of default_pg"
    assert second.collectives_per_s == pytest.approx(1.2)
    assert (second.minor_faults, second.major_faults, second.cpu_s) == (10, 2, 1.5)
    assert second.off_cpu_s == pytest.approx(0.5)
    assert "3 waits that are in no sum by futex word" in summary.notes
    assert "pid 200 ended after 1.90 s" in summary.notes
    assert "pid 200 was sent SIGUSR1" in summary.notes


def test_once_is_one_time() -> None:
    made = recording()
    first = replace(made.processes[0], wakers=(WakerCount(tid=101, woke=None, count=1),))
    rows = summarise(replace(made, processes=(first, *made.processes[1:]))).rows
    assert rows[0].waker == "helper, once"


def test_a_service_thread_does_not_hide_who_works() -> None:
    made = recording()
    threads = tuple(replace(t, service="pool" if t.tid == 101 else None) for t in made.threads)
    row = summarise(replace(made, threads=threads)).rows[0]
    assert (row.longest_thread, row.longest_wait_s, row.longest_open) == ("MainThread", 0.6, True)


def test_io_wait_is_exact_where_switches_were_traced_and_sampled_elsewhere() -> None:
    assert summarise(recording(Metric.OFFCPU)).rows[1].io_wait_s == pytest.approx(0.25)
    made = recording()
    samples = tuple(replace(s, state="D") if (s.pid, s.at_s) == (200, 1.0) else s for s in made.samples)
    assert summarise(replace(made, samples=samples)).rows[1].io_wait_s == pytest.approx(2.0 / 5)


def test_collectives_are_seen_from_snapshot_to_snapshot() -> None:
    spans = collective_spans(recording())
    assert [(s.kind, s.pid, s.text, s.at_s, s.took_s) for s in spans] == [
        (EventKind.CALL, 100, "all_reduce", 1.5, 0.5),
        (EventKind.CALL, 200, "all_reduce", 1.0, 0.5),
    ]


def test_nothing_seen_is_no_failure() -> None:
    empty = replace(
        recording(), processes=(), threads=(), words=(), samples=(), stacks=(), events=(), collectives=()
    )
    for metric in Metric:
        assert profile(empty, metric).stacks == ()
    assert summarise(empty).rows == ()
