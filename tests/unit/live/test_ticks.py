"""What a tick says of readings and a look."""

from __future__ import annotations

import json
from dataclasses import replace

from pyhangtrace.live import stream, ticks
from pyhangtrace.model.kinds import State
from pyhangtrace.model.live import Doing, Woken
from pyhangtrace.render.text.words import waker_words
from tests.unit.live import made
from tests.unit.render import sample


def test_of_a_job_that_stands_the_look_holds() -> None:
    now = made.reading(110.0)
    verdict = ticks.verdict(now, made.held())
    assert verdict is not None
    assert (verdict.state, verdict.title) == (State.HUNG, "rank 3 keeps 7 ranks waiting")
    assert verdict.since_s == 83.9  # of the victims, and ten seconds later
    assert not verdict.moved_on
    rows = ticks.rows(made.reading(109.0), now, made.held())
    assert [row.rank for row in rows] == list(range(8))
    assert {row.doing for row in rows} == {Doing.WAITS}
    assert rows[0].collective == "all_reduce #418 of tp (4096 x bfloat16)"
    assert rows[3].blocked_on is not None
    assert "file lock /root/.cache/flashinfer" in rows[3].blocked_on
    assert rows[3].since_s == 84.2


def test_when_a_rank_moves_the_verdict_is_of_the_past() -> None:
    now = made.reading(110.0, moved=[4243], cpu_s=0.1)
    verdict = ticks.verdict(now, made.held())
    assert verdict is not None
    assert verdict.moved_on
    assert verdict.state is State.RUNNING
    assert verdict.since_s is None
    assert verdict.title == "moves on; 10 s ago hung: rank 3 keeps 7 ranks waiting"
    rows = ticks.rows(made.reading(109.0), now, made.held())
    assert rows[3].doing is Doing.MOVES
    assert rows[3].blocked_on == "in futex"  # not what it waited for then
    assert rows[0].collective is not None  # who rests on waits on


def test_who_wakes_up_only_to_wait_on_does_not_move_on() -> None:
    report = sample.report()
    rearms = tuple(
        replace_threads(process, switches=3) if process.rank is not None else process
        for process in report.processes
    )
    held = ticks.hold(replace(report, processes=rearms), at_s=made.LOOKED_S, settled=True)
    verdict = ticks.verdict(made.reading(110.0, moved=made.PIDS), held)
    assert verdict is not None
    assert not verdict.moved_on


def replace_threads(process: sample.ReportProcess, *, switches: int) -> sample.ReportProcess:
    import msgspec

    threads = tuple(
        msgspec.structs.replace(thread, switches_in_window=switches) for thread in process.threads
    )
    return replace(process, threads=threads)


def test_rates_are_of_the_time_between_two_readings() -> None:
    before, now = made.reading(109.0), made.reading(111.0, moved=[4240], cpu_s=1.5)
    busy = replace(now.counters[4240], minor_faults=300)
    now = replace(now, counters={**now.counters, 4240: busy})
    first = ticks.rows(before, now, made.held())[0]
    assert (first.cpu, first.faults_per_s, first.doing) == (0.75, 150.0, Doing.RUNS)


def test_a_process_of_the_same_number_has_no_rates_yet() -> None:
    before, now = made.reading(109.0), made.reading(110.0)
    other = replace(now.counters[4240], start_ticks=2)
    now = replace(now, counters={**now.counters, 4240: other})
    assert ticks.rows(before, now, None)[0].cpu is None


def test_without_a_look_there_is_what_proc_says() -> None:
    row = ticks.rows(None, made.reading(30.0), None)[0]
    assert (row.blocked_on, row.since_s, row.collective, row.pss) == ("in futex", 10.0, None, None)
    assert ticks.verdict(made.reading(30.0), None) is None


def test_what_state_letters_mean() -> None:
    now = made.reading(110.0)
    stopped = {**now.counters, 4240: made.counters(4240, state="T")}
    assert ticks.rows(None, replace(now, counters=stopped), None)[0].doing is Doing.STOPPED
    disk = {**now.threads, (4240, 4240): made.mark(state="D", syscall="read")}
    assert ticks.rows(made.reading(109.0), replace(now, threads=disk), None)[0].doing is Doing.DISK


def test_threads_of_the_verdict_are_followed() -> None:
    assert set(ticks.threads_that_matter(sample.report())) >= {(pid, pid) for pid in made.PIDS}


def test_who_used_to_wake_a_waiter_is_told_where_nobody_is_recorded() -> None:
    woken = (
        Woken(waker=4241, woken=4240, count=90),
        Woken(waker=77, woken=4240, count=10),
        Woken(waker=4241, woken=4243, count=5),  # waits for a lock whose holder is known
        Woken(waker=4241, woken=5555, count=5),
    )
    (note,) = made.tick(made.reading(110.0), woken=woken).wakers
    assert waker_words(note) == (
        "MainThread (pid 4240) was woken by MainThread (pid 4241, 4241), 90 of 100 times"
    )


def test_a_line_of_json_is_one_tick() -> None:
    tick = made.tick(made.reading(110.0), made.reading(109.0))
    line = stream.ndjson_tick(tick)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    told = json.loads(line)
    assert (told["kind"], told["schema"]) == ("tick", "hangtrace.live/1")
    assert told["verdict"]["state"] == "hung"
    assert len(told["rows"]) == 8


def test_a_line_of_text() -> None:
    tick = made.tick(made.reading(110.0), made.reading(109.0))
    assert stream.line(tick).decode() == (
        "03:04:05 HUNG  rank 3 keeps 7 ranks waiting since 84 s; 0 of 8 processes move, cpu 0 %, 0 faults/s\n"
    )
    assert stream.line(replace(tick, rows=())).decode() == "03:04:05 ENDED  the job has ended\n"
