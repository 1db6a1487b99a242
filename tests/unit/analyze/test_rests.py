"""One that naps and asks again is met on the CPU, or half read, now and then: the other looks say what it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze.report import analyze, more_time_wanted
from pyhangtrace.analyze.rests import at_rest, completed, in_passing
from pyhangtrace.model import syscalls
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import PolledThing, StackFrom, State, WaitKind
from pyhangtrace.model.open_files import FileLock
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

CALLS = syscalls.names("x86_64")
LOOP = (b.py("ask", line=8), b.py("main", line=3))
ROUND_NS = 60_000  # of CPU that a question takes, ten of them in half a second
PAIR = (b.process(100), b.process(101, ppid=100))


def nap(pid: int, tid: int | None = None, *, at: float = 0.0, **changes: object) -> ThreadSample:
    """In a nap of 50 ms of a loop, so many seconds after the first look."""
    sample = b.asleep(pid, tid, seconds=0.05, left=0.03)
    rounds = round(at / 0.05)
    return b.replace(
        sample,
        frames=(b.native("time_sleep", "libpython3.11.so"), *LOOP),
        asleep_for_s=0.02,
        run_ns=1_000_000 + rounds * ROUND_NS,
        slices=20 + rounds,
        **changes,
    )


def on_cpu(
    before: ThreadSample, *, frames: tuple[object, ...] = LOOP, ran_ns: int = ROUND_NS
) -> ThreadSample:
    """The same thread awake, after it ran so long."""
    return b.replace(
        before,
        state="R",
        running=True,
        moved=True,
        syscall=None,
        args=(),
        frames=frames,
        stack_complete=False,
        stack_from=StackFrom.NONE,
        timeout_s=None,
        remaining_s=None,
        asleep_for_s=None,
        polls_for=None,
        polled=None,
        run_ns=(before.run_ns or 0) + ran_ns,
    )


def half_read(before: ThreadSample) -> ThreadSample:
    """The same thread in its nap, with Python's frames of the moment before."""
    asking = (b.py("Popen.poll", "/usr/lib/python3.11/subprocess.py", 1236), b.py("ask", line=7), LOOP[1])
    return b.replace(before, moved=True, frames=asking, polls_for=None, polled=None, asleep_for_s=None)


TIMES = (0.0, 0.4, 0.9, 1.4, 1.9, 2.5, 3.0)
MEETS = {"on the CPU": on_cpu, "half read": half_read}


def asks_in_turn(met: int | None, how: str = "on the CPU") -> Evidence:
    """A program that asks after its child, which asks for a file that it has locked; one look meets it like that."""
    lock = FileLock(
        kind="flock", access="write", pid=100, device=1, inode=70, path="/job/lock", openers=(100, 101)
    )
    looks = []
    for index, at in enumerate(TIMES):
        parent = nap(100, at=at, polls_for="poll()", polled=PolledThing.CHILD)
        child = nap(101, at=at, polls_for="flock()", polled=PolledThing.FILE_LOCK)
        looks.append(b.look(MEETS[how](parent) if index == met else parent, child, at=at, file_locks=[lock]))
    return b.evidence(PAIR, looks)


def waits(report: Report) -> dict[int, WaitKind]:
    return {wait.tid: wait.kind for wait in report.waits}


@pytest.mark.parametrize("how", MEETS)
@pytest.mark.parametrize("met", [None, *range(len(TIMES))])
def test_whichever_look_meets_one_that_asks_between_two_naps_it_asks(met: int | None, how: str) -> None:
    report = analyze(asks_in_turn(met, how))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert waits(report) == {100: WaitKind.CHILD, 101: WaitKind.FILE_LOCK}


def test_one_that_asks_and_was_seen_elsewhere_meanwhile_is_no_proof_of_idleness() -> None:
    evidence = asks_in_turn(None)
    elsewhere = on_cpu(nap(100, at=0.4), frames=(b.py("other"), LOOP[1]), ran_ns=0)
    looks = list(evidence.looks)
    looks[1] = replace(looks[1], threads=(elsewhere, *looks[1].threads[1:]))
    assert analyze(replace(evidence, looks=tuple(looks))).verdict.state is State.UNKNOWN


def test_one_that_works_between_its_naps_runs() -> None:
    naps = [nap(100, at=at) for at in (0.0, 0.4)]
    works = on_cpu(nap(100, at=0.9), ran_ns=80_000_000)
    looks = [b.look(sample, at=at) for sample, at in zip((*naps, works), (0.0, 0.4, 0.9), strict=True)]
    assert waits(analyze(b.evidence([b.process(100)], looks))) == {100: WaitKind.RUNNING}


@pytest.mark.parametrize(
    ("frames", "kept"),
    [
        ((b.py("ask", line=9), LOOP[1]), False),
        ((b.py("deeper"), b.py("ask", line=7), LOOP[1]), False),
        ((b.native("do_poll"),), True),  # of C, where Python naps: not known to be inside
        ((b.py("after", line=5), b.py("main", line=3)), True),
        (
            (b.py("ask", line=8), b.py("main", line=4)),
            True,
        ),  # called another time
        ((b.py("ask", line=8), b.py("other", line=3)), True),
        ((), False),
    ],
)
def test_a_look_is_left_out_only_where_the_thread_is_inside_of_what_naps(
    frames: tuple[object, ...], kept: bool
) -> None:
    asks = [nap(100, at=at, polls_for="acquire()", polled=PolledThing.LOCK) for at in (0.0, 0.4, 0.9)]
    samples = [*asks[:2], on_cpu(asks[2], frames=frames)]
    assert at_rest(samples, (0.0, 0.4, 0.9), CALLS) == ((0, 1, 2) if kept else (0, 1))


def test_a_loop_may_nap_in_a_function_that_it_calls_for_that() -> None:
    naps = [
        b.replace(nap(100, at=at), frames=(b.native("time_sleep"), b.py("pause", line=2), *LOOP))
        for at in (0.0, 0.4, 0.9)
    ]
    asks = on_cpu(naps[2], frames=(b.py("is_free"), b.py("ask", line=7), LOOP[1]))
    assert at_rest([*naps[:2], asks], (0.0, 0.4, 0.9), CALLS) == (0, 1)
    gone = on_cpu(naps[2], frames=(b.py("ask", line=8), b.py("main", line=4)))
    assert at_rest([*naps[:2], gone], (0.0, 0.4, 0.9), CALLS) == (0, 1, 2)


def test_of_two_looks_none_is_left_out_but_a_third_is_wanted() -> None:
    samples = [nap(100), on_cpu(nap(100, at=0.1))]
    assert in_passing(samples, (0.0, 0.1), CALLS) == 1
    assert in_passing(samples[::-1], (0.0, 0.1), CALLS) == 0  # what is younger has used less CPU
    first = [on_cpu(nap(100), ran_ns=0), nap(100, at=0.1)]
    assert in_passing(first, (0.0, 0.1), CALLS) == 1
    assert in_passing([*first, nap(100, at=0.2)], (0.0, 0.1, 0.2), CALLS) == 0


def deadlock_beside(*thirds: ThreadSample) -> Evidence:
    """A circle, and a thread beside it that naps and may let it go."""
    circle = [
        b.on_python_lock(100, 201, owner=202),
        b.on_python_lock(100, 202, owner=201),
    ]
    looks = [b.look(*circle, third, at=0.1 * index) for index, third in enumerate(thirds)]
    return b.evidence([b.process(100)], looks)


def test_who_is_met_between_two_naps_is_looked_at_again_for_a_few_times() -> None:
    met = on_cpu(nap(100, 203, at=0.1))
    naps = nap(100, 203)
    assert more_time_wanted(deadlock_beside(naps, met)) > 0
    assert more_time_wanted(deadlock_beside(naps, met, met, met)) > 0
    assert more_time_wanted(deadlock_beside(naps, met, met, met, met)) == 0
    assert more_time_wanted(deadlock_beside(naps, nap(100, 203, at=0.1), nap(100, 203, at=0.2))) == 0


def test_how_long_a_nap_is_that_woke_before_that_was_read_the_other_looks_say() -> None:
    """On such a job a nap of which the length is not known would be called progress."""
    holds = b.on_python_lock(100, 201, owner=100)
    looks = []
    for at in TIMES:
        sample = nap(100, at=at, polls_for="acquire()", polled=PolledThing.LOCK)
        if at in (TIMES[0], TIMES[-1]):
            sample = b.replace(sample, timeout_s=None, remaining_s=None)
        looks.append(b.look(sample, b.replace(holds, asleep_for_s=5.0 + at), at=at))
    report = analyze(b.evidence([b.process(100)], looks))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())


def test_what_a_loop_asks_for_and_was_not_read_in_time_another_look_says() -> None:
    asked = nap(100, polls_for="acquire()", polled=PolledThing.LOCK)
    unread = nap(100, at=0.4, nap_unread=True)
    elsewhere = b.replace(nap(100, at=0.9), frames=(b.py("pause", line=1),))
    found = completed([asked, unread, elsewhere], CALLS)
    assert [sample.polls_for for sample in found] == ["acquire()", "acquire()", None]
    assert not found[1].nap_unread


def test_a_nap_of_which_nothing_could_be_read_in_time_is_no_proof_of_idleness() -> None:
    def state(*samples: ThreadSample) -> State:
        looks = [b.look(sample, at=at) for sample, at in zip(samples, (0.0, 0.4), strict=True)]
        return analyze(b.evidence([b.process(100)], looks)).verdict.state

    naps = nap(100), nap(100, at=0.4)
    assert state(*naps) is State.IDLE
    assert state(*(b.replace(each, nap_unread=True) for each in naps)) is State.UNKNOWN
    assert state(*(b.replace(each, frames=(), stack_complete=False, moved=True) for each in naps)) is (
        State.UNKNOWN
    )


def test_a_timed_poll_that_is_met_as_its_time_is_over_is_left_out() -> None:
    def polls(at: float, **changes: object) -> ThreadSample:
        run_ns = 1_000_000 + round(at * 600_000)
        changes = {"timeout_s": 0.4, "asleep_for_s": 0.3, "remaining_s": 0.1, "run_ns": run_ns, **changes}
        return b.on_fd(100, fd=5, syscall=b.EPOLL, **changes)

    met = b.replace(polls(0.9), state="R", running=True, timeout_s=None, asleep_for_s=None)
    assert at_rest([polls(0.0), polls(0.4), met], (0.0, 0.4, 0.9), CALLS) == (0, 1)
    early = polls(0.4, asleep_for_s=0.0, remaining_s=5.0, timeout_s=5.0)
    assert at_rest([polls(0.0), early, met], (0.0, 0.4, 0.9), CALLS) == (0, 1, 2)  # something woke it
