"""When the view looks, on a made-up clock, with a job and a looking process that are made up, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from pyhangtrace.live import follow
from pyhangtrace.live.follow import BEAT_S, TICK_S, Follower
from pyhangtrace.live.looking import Looked
from pyhangtrace.live.suspicion import CREDIT_S, SHARE
from pyhangtrace.model.kinds import State
from pyhangtrace.model.live import Reading, ThreadKey, ThreadMark, Woken
from pyhangtrace.model.report import Report
from tests.unit.live import made
from tests.unit.render import sample

LOOK_S = 0.5


@dataclass
class Job:
    """All ranks move until `still_s`, and then no more."""

    still_s: float = 1e9
    ended: bool = False
    taken: list[float] = field(default_factory=list)
    now_s: float = 0.0
    threads: dict[ThreadKey, ThreadMark] = field(default_factory=dict)
    members: Any = field(default_factory=lambda: SimpleNamespace(framework=None))
    wakers_problem: str | None = None
    woken: tuple[Woken, ...] = ()

    def beat(self, at_s: float) -> None:
        self.now_s = at_s
        self.threads = {(pid, pid): made.mark(min(at_s, self.still_s)) for pid in made.PIDS}

    def read(self, at_s: float) -> Reading:
        self.beat(at_s)
        if self.ended:
            return Reading(at_s=at_s, processes={}, counters={}, threads={})
        return replace(made.reading(at_s), threads=dict(self.threads))

    def follow(self, keys: Iterable[ThreadKey]) -> None:
        pass

    def take_wakers(self) -> None:
        self.taken.append(self.now_s)

    def count_wakers(self, at_s: float) -> None:
        pass

    def counts_wakers(self) -> bool:
        return False


@dataclass
class Looks:
    """Each look takes half a second and says what it was told to say."""

    clock: list[float]
    says: list[State]
    problem: str | None = None
    begun: list[tuple[float, float]] = field(default_factory=list)
    ready_s: float | None = None
    cpu_s: float = 0.1

    def busy(self) -> bool:
        return self.ready_s is not None

    def begin(self, pids: tuple[int, ...], *, max_window_s: float, bpf: bool) -> None:
        assert not self.busy()
        self.begun.append((self.clock[0], max_window_s))
        self.ready_s = self.clock[0] + LOOK_S

    def take(self) -> Looked | None:
        if self.ready_s is None or self.clock[0] < self.ready_s:
            return None
        self.ready_s = None
        if self.problem is not None:
            return Looked(report=None, bundle=b"", problem=self.problem, cpu_s=0.1)
        state = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return Looked(report=said(state), bundle=b"", problem=None, cpu_s=self.cpu_s)


def said(state: State) -> Report:
    report = sample.report()
    return replace(report, verdict=replace(report.verdict, state=state))


class Played:
    """A follower whose time is ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, says: list[State]) -> None:
        self.clock = [1000.0]
        monkeypatch.setattr(follow.time, "monotonic", lambda: self.clock[0])
        self.job, self.looks = Job(), Looks(self.clock, says)
        self.follower = Follower(asked=(4240,))
        self.follower.sampler = self.job  # type: ignore[assignment]
        self.follower.looking = self.looks  # type: ignore[assignment]
        self.follower.readings = (None, self.job.read(self.clock[0]))

    def go_on(self, seconds: float) -> None:
        beats = round(seconds / BEAT_S)
        for number in range(beats):
            self.clock[0] += BEAT_S
            self.follower.take()
            self.follower.beat()
            if number % round(TICK_S / BEAT_S) == 0:
                self.follower.tick()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch, [State.RUNNING])


def test_the_first_look_comes_at_once(played: Played) -> None:
    assert played.follower.show().verdict is None
    played.go_on(1.0)
    assert len(played.looks.begun) == 1
    verdict = played.follower.show().verdict
    assert verdict is not None
    assert verdict.state is State.RUNNING


def test_whoever_falls_silent_is_looked_at_in_time_for_three_seconds(played: Played) -> None:
    played.go_on(60.0)
    before = len(played.looks.begun)
    played.looks.says = [State.HUNG]
    played.job.still_s = played.clock[0]
    played.go_on(1.5)
    at_s, window_s = played.looks.begun[before]
    assert at_s - played.job.still_s <= 0.75
    assert at_s + window_s - played.job.still_s <= 2.0
    assert played.job.taken == [at_s]
    tick = played.follower.tick()
    assert tick.verdict is not None
    assert tick.verdict.state is State.HUNG
    assert not tick.verdict.settled


def test_a_first_word_is_settled_by_a_second_look_and_then_left_alone(played: Played) -> None:
    played.go_on(60.0)
    played.looks.says = [State.HUNG]
    played.job.still_s = played.clock[0]
    before = len(played.looks.begun)
    played.go_on(20.0)
    assert [window_s for _, window_s in played.looks.begun[before + 1 :]] == [3.0]
    verdict = played.follower.tick().verdict
    assert verdict is not None
    assert verdict.settled


def test_what_is_not_sure_is_looked_at_again_ever_later(played: Played) -> None:
    played.go_on(60.0)
    played.looks.says = [State.BUSY, State.BUSY, State.UNKNOWN, State.HUNG]
    played.job.still_s = played.clock[0]
    before = len(played.looks.begun)
    played.go_on(60.0)
    verdict = played.follower.tick().verdict
    assert verdict is not None
    assert verdict.state is State.HUNG
    times = [at_s for at_s, _ in played.looks.begun[before : before + 4]]
    assert times[0] - played.job.still_s < 1.0
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > gaps[0]


def test_what_stays_unsure_while_all_move_is_not_paid_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looks on a busy machine cost seconds of CPU, and none of them sees everything."""
    played = Played(monkeypatch, [State.UNKNOWN])
    played.looks.cpu_s = 2.0
    played.go_on(600.0)
    assert (
        2 <= len(played.looks.begun) * played.looks.cpu_s <= CREDIT_S + SHARE * 600.0 + 2 * played.looks.cpu_s
    )
    # It is told all the same when the job stands still.
    before = len(played.looks.begun)
    played.job.still_s = played.clock[0]
    played.go_on(60.0)
    assert len(played.looks.begun) > before


def test_a_look_that_fails_is_said(played: Played) -> None:
    played.looks.problem = "process 7 is gone"
    played.go_on(2.0)
    assert played.follower.tick().notes == ("the last look failed: process 7 is gone",)
    played.looks.problem = None
    played.follower.look()
    played.go_on(2.0)
    assert played.follower.tick().notes == ()


def test_a_look_is_taken_when_it_is_wanted(played: Played) -> None:
    played.go_on(5.0)
    before = len(played.looks.begun)
    played.follower.look()
    played.go_on(1.0)
    assert len(played.looks.begun) == before + 1


def test_of_a_job_that_has_ended_nothing_more_is_asked(played: Played) -> None:
    played.go_on(5.0)
    before = len(played.looks.begun)
    played.job.ended = True
    played.go_on(20.0)
    assert played.follower.ended
    assert len(played.looks.begun) == before
