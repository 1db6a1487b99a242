"""Ranks that only their connections join."""

from __future__ import annotations

import pytest

from pyhangtrace.discover import command_lines, roles
from pyhangtrace.discover.connected import Candidate, components, joined
from pyhangtrace.model.kinds import Role
from tests.unit.discover.test_job import Host, host, ranks

__all__ = ["host"]


def told(host: Host, pid: int, rank: int, *more: str, script: str = "rank.py", parent: int = 50) -> None:
    """A rank that its arguments tell, in a session of its own."""
    host.add(pid, parent, "python", script, "--rank", str(rank), "--world-size", "3", *more, sid=pid)


def test_ranks_of_other_sessions_are_found_by_their_connections(host: Host) -> None:
    for rank in range(3):
        told(host, 500 + rank, rank, *(["--verbose"] if rank == 0 else []))
    host.talk(500, 501)  # to the store alone
    host.talk(500, 502)
    for asked in (500, 501, 502):
        assert set(host.find(asked).members) == {500, 501, 502}
        assert ranks(host.roles(asked)) == {500: 0, 501: 1, 502: 2}
    assert roles.world_size(host.roles(501)) == 3


def test_wrappers_of_such_ranks(host: Host) -> None:
    for rank in range(2):
        command = ("python", "rank.py", f"--rank={rank}")
        host.add(500 + 10 * rank, 50, "timeout", "9", *command, sid=500 + rank)
        host.add(501 + 10 * rank, 500 + 10 * rank, *command, sid=500 + rank)
        host.add(502 + 10 * rank, 501 + 10 * rank, *command, sid=500 + rank)  # a worker that it has forked
    host.talk(501, 502, 511, 512)
    assert set(host.find(500).members) == {500, 501, 502, 511, 512}
    assert set(host.find(511).members) == {501, 502, 511, 512}
    identities = host.roles(500)
    assert ranks(identities) == {501: 0, 511: 1}
    assert identities[502].role is Role.DATA_WORKER


def test_numbers_among_the_arguments_may_be_ranks_of_those_that_are_connected(host: Host) -> None:
    for rank in range(3):
        host.add(500 + rank, 50, "python", "rank.py", str(rank), "3", "29500")
    host.talk(500, 501)
    assert set(host.find(500).members) == {500, 501}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("redis-server", "--port", "6379"), ("redis-server", "--port", "6380")),  # no rank
        (("python", "serve.py", "--port", "8001"), ("python", "serve.py", "--port", "8002")),
        (("python", "train.py", "--rank", "0"), ("python", "serve.py", "--rank", "1")),  # another program
        (("postgres", "-D", "data"), ("python", "train.py", "--rank", "1")),
        (("python", "-c", "run(0)", "0"), ("python", "-c", "serve(1)", "1")),  # a program that is not known
    ],
)
def test_who_merely_talks_with_a_process_is_not_of_its_job(
    host: Host, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    host.add(500, 50, *one)
    host.add(501, 50, *other)
    host.talk(500, 501)
    assert host.find(500).members == (500,)
    assert host.find(501).members == (501,)


def test_ranks_that_share_a_server_only_are_no_job(host: Host) -> None:
    told(host, 500, 0)
    told(host, 501, 1)
    host.add(502, 50, "postgres")
    host.talk(500, 502)
    host.talk(501, 502)
    assert host.find(500).members == (500,)


def test_somebody_elses_ranks_are_none_of_ours(host: Host) -> None:
    told(host, 500, 0)
    host.add(501, 50, "python", "rank.py", "--rank", "1", "--world-size", "3", uid=7)
    host.talk(500, 501)
    assert host.find(500).members == (500,)


def by_variable(host: Host, pid: int, rank: int, parent: int = 50) -> None:
    host.add(pid, parent, "python", "rank.py", RANK=str(rank), WORLD_SIZE="2")


def test_two_jobs_of_one_command_in_one_session(host: Host) -> None:
    for pid, rank in ((500, 0), (501, 1), (600, 0), (601, 1)):
        by_variable(host, pid, rank)
    host.talk(500, 501)
    host.talk(600, 601)
    assert set(host.find(501).members) == {500, 501}
    assert set(host.find(600).members) == {600, 601}


def test_who_has_not_connected_yet_may_be_of_either_job(host: Host) -> None:
    for pid, rank in ((500, 0), (600, 0), (601, 1)):
        by_variable(host, pid, rank)
    host.talk(600, 601)
    assert host.find(500).members == (500,)


def test_who_has_not_connected_yet_belongs_to_the_only_job_that_lacks_him(host: Host) -> None:
    host.add(40, 50, "python", "start.py")
    for rank in range(3):
        host.add(500 + rank, 40, "python", "rank.py", "--rank", str(rank), "--world-size", "3")
    host.talk(500, 501)
    assert set(host.find(500).members) == {40, 500, 501, 502}
    host.add(602, 40, "python", "rank.py", "--rank", "2", "--world-size", "3")  # one of these
    assert set(host.find(500).members) == {500, 501}
    assert host.find(502).members == (502,)


def test_who_started_the_ranks_is_left_out_while_one_of_its_ranks_may_be_of_another_job(host: Host) -> None:
    host.add(40, 50, "python", "start.py")
    told(host, 500, 0, parent=40)
    told(host, 501, 1, parent=40)
    told(host, 502, 2, parent=40)  # not connected, and in a session of its own
    host.talk(500, 501)
    assert set(host.find(500).members) == {500, 501}


def test_two_jobs_that_talk_with_each_other_are_told_apart_by_what_they_run(host: Host) -> None:
    for job, role in enumerate(("train", "sample")):
        for rank in range(2):
            host.add(500 + 10 * job + rank, 50, "python", "main.py", f"--role={role}", "--rank", str(rank))
    host.talk(500, 501)
    host.talk(510, 511)
    host.talk(500, 510)
    assert set(host.find(501).members) == {500, 501}


def test_the_rank_of_a_matrix_is_no_rank(host: Host) -> None:
    host.add(500, 50, "python", "tune.py", "--rank", "8")
    host.add(501, 500, "python", "tune.py", "--rank", "8")
    identities = host.roles(500)
    assert ranks(identities) == {}


def test_connected_over_others() -> None:
    ends = {1: [("a", "b")], 2: [("b", "a"), ("c", "d")], 3: [("d", "c")], 4: [("e", "a")]}
    assert sorted(map(sorted, components([1, 2, 3, 4], ends))) == [[1, 2, 3], [4]]


def test_equal_ranks_that_are_connected_are_no_job() -> None:
    def rank(pid: int) -> Candidate:
        return Candidate(pid=pid, rank=(0,), world_size=None, shape=("x",), near=True, named=True)

    assert joined(1, [rank(1), rank(2)], {1: [("a", "b")], 2: [("b", "a")]}) is None


def test_command_lines() -> None:
    words = ("python", "t.py", "--local_rank=3", "--node-rank", "1", "--lora-rank", "16", "--rank")
    assert [(word.name, word.value) for word in command_lines.rank_words(words)] == [
        ("local-rank", 3),
        ("node-rank", 1),
    ]
    assert command_lines.shape(words)[2:5] == ("--local_rank", "--node-rank", "")
    assert command_lines.program(("/usr/bin/python3", "-u", "-m", "trainer.main", "0")) == "trainer.main"
    assert command_lines.program(("/opt/solver", "0")) == "solver"
    assert command_lines.numbers(("x", "3", "29500", "1e3", "-1")) == (3,)
