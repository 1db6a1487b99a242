"""When a job that is followed for long is searched again: it takes far longer than to read counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from pyhangtrace import members
from pyhangtrace.members import Member, Members
from pyhangtrace.model.errors import NoSuchProcess
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.pace import ProcessCounters

LAUNCHER = 10


def _counters(pid: int) -> ProcessCounters:
    return ProcessCounters(
        pid=pid, start_ticks=pid, state="S", threads=1, cpu_s=0.0, minor_faults=0, major_faults=0
    )


class Job:
    """Processes that live, as a launcher starts them; `searches` are the times at which it was searched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive = {LAUNCHER, 11, 12}
        self.searches: list[float] = []
        self.fails = False
        monkeypatch.setattr(Members, "_learn", self._learn)
        monkeypatch.setattr(members.counters, "read_all", self._read_all)
        monkeypatch.setattr(members.counters, "refused", lambda pid, root: False)
        self.members = Members(asked=(LAUNCHER,))
        self.members.find(0.0)

    def _learn(self, pids: Sequence[int], at_s: float) -> None:
        self.searches.append(at_s)
        self.members.searched_s = at_s
        if self.fails:
            raise NoSuchProcess("gone")
        self.members.known = {
            pid: Member(pid=pid, start_ticks=pid, role=Role.RANK, rank=None, title="") for pid in self.alive
        }

    def _read_all(self, pids: Iterable[int], root: str) -> dict[int, ProcessCounters]:
        return {pid: _counters(pid) for pid in self.alive.intersection(pids)}

    def read(self, at_s: float) -> set[int]:
        return set(self.members.read(at_s))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_as_long_as_nobody_ends_only_counters_are_read(job: Job) -> None:
    for second in range(1, 300):
        assert job.read(second) == {LAUNCHER, 11, 12}
    assert job.searches == [0.0]
    job.alive.add(13)
    assert job.read(301.0) == {LAUNCHER, 11, 12, 13}


@pytest.mark.parametrize("after", [0, 1, 2, 7, 40, 130])
def test_who_is_started_long_after_another_one_has_ended_is_found_within_twice_the_time(
    job: Job, after: int
) -> None:
    """An elastic launcher takes its time between the ranks that have failed and those that follow."""
    job.alive = {LAUNCHER}
    for second in range(after):
        assert job.read(100.0 + second) == {LAUNCHER}
    job.alive = {LAUNCHER, 21, 22}
    found = next(second for second in range(after, 300) if 21 in job.read(100.0 + second))
    assert found <= max(2 * after, 1)
    # And not again and again: such a search is no cheap reading.
    assert len(job.searches) <= 12


def test_a_search_that_finds_nobody_is_made_again_at_the_next_reading(job: Job) -> None:
    job.alive, job.fails = {LAUNCHER}, True
    job.read(100.0)
    job.alive, job.fails = {LAUNCHER, 21}, False
    assert job.read(101.0) == {LAUNCHER, 21}


def test_the_end_of_the_job_is_its_end(job: Job) -> None:
    job.alive = set()
    assert job.read(1.0) == set()
    assert job.searches == [0.0]
