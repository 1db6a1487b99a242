"""RAS's reports, as its releases write them, and everything that is no whole report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhangtrace.collect import ras_json, ras_text
from pyhangtrace.model.ras import RasAnswer, RasPeer

ANSWERS = Path(__file__).parent / "ras_answers"


def read(name: str) -> str:
    return (ANSWERS / name).read_text()


def text(name: str) -> RasAnswer:
    return ras_text.parse(read(name), closed=True)


def counts(answer: RasAnswer) -> list[tuple[str, int | None, int, list[int | None]]]:
    (communicator,) = answer.communicators
    return [
        (group.op, group.launched, group.number, [peer.rank for peer in group.ranks])
        for group in communicator.counts
    ]


def test_every_line_of_the_known_answers_is_known() -> None:
    paths = sorted(ANSWERS.glob("*.txt"))
    assert paths
    for path in paths:
        answer = text(path.name)
        assert (path.name, answer.unknown, answer.complete) == (path.name, (), True)


def test_ranks_in_different_collectives() -> None:
    answer = text("mismatch-2.27.7.txt")
    assert (answer.nccl_version, answer.cuda_runtime, answer.cuda_driver) == ("2.27.7", 12090, 12090)
    (communicator,) = answer.communicators
    assert (communicator.hash, communicator.problems) == ("dfdc24fb47aee1e5", ("MISMATCH",))
    assert counts(answer) == [
        ("AllGather", 1, 1, [1]),
        ("AllGather", 0, 1, [0]),
        ("AllReduce", 4, 1, [0]),
        ("AllReduce", 3, 1, [1]),
    ]
    assert communicator.counts[0].ranks == (RasPeer(rank=1, host="127.0.0.1", pid=8331, gpu="1"),)
    (row,) = answer.table
    assert (row.communicators, row.ranks, row.status, row.errors) == (1, 2, ("RUNNING",), ("MISMATCH",))


def test_a_stopped_rank() -> None:
    answer = text("stopped-2.27.7.txt")
    incomplete, timeout = answer.problems
    assert incomplete.processes == (RasPeer(host="127.0.0.1", pid=28876, gpu="1"),)
    assert (timeout.kind, answer.timeouts) == ("TIMEOUT", 2)
    (communicator,) = answer.communicators
    assert [(peer.rank, peer.pid) for peer in communicator.missing] == [(1, 28876)]


def test_the_few_that_differ_from_the_many() -> None:
    answer = text("outliers-2.24.3.txt")
    assert counts(answer) == [("", 6650, 26, []), ("", 6649, 5, [0, 2, 3, 4, 7])]
    (communicator,) = answer.communicators
    assert communicator.problems == ("INCOMPLETE", "MISMATCH")
    assert (communicator.missing, communicator.missing_count) == ((RasPeer(rank=21),), 1)
    assert communicator.counts[1].ranks[2] == RasPeer(rank=3)
    assert [(problem.kind, problem.processes[0].host) for problem in answer.problems] == [
        ("DEAD", "192.0.2.213")
    ]


def test_errors_and_states() -> None:
    answer = text("errors-2.26.2.txt")
    (communicator,) = answer.communicators
    assert [(group.text, group.number) for group in communicator.states] == [("RUNNING", 7), ("ABORT", 1)]
    assert [group.ranks[0].gpu for group in communicator.errors] == ["0 (NVML 5)", "6"]
    assert communicator.errors[1].text == "remote process exited or there was a network error"
    assert [row.errors for row in answer.table] == [("ERROR", "MISMATCH"), ("OK",)]


def test_half_a_text_is_not_whole() -> None:
    whole = read("mismatch-2.27.7.txt")
    assert not ras_text.parse(whole, closed=False).complete
    for end in range(0, whole.index("Warnings\n"), 7):
        assert not ras_text.parse(whole[:end], closed=True).complete


def test_lines_of_a_later_release_are_kept_and_mean_nothing() -> None:
    answer = ras_text.parse(
        read("mismatch-2.27.7.txt") + "#0-0 (dfdc24fb47aee1e5) SLOW\n  Rank 0 is 30 % slower\nFABRIC\n",
        closed=True,
    )
    assert answer.unknown == ("Rank 0 is 30 % slower", "FABRIC")
    assert len(counts(answer)) == 4


def test_json() -> None:
    answer = ras_json.parse(read("stopped-2.32.3.json"))
    assert answer is not None
    assert (answer.nccl_version, answer.timeouts, answer.complete) == ("2.32.3", 2, True)
    (communicator,) = answer.communicators
    assert communicator.problems == ("MISMATCH", "ERROR", "INCOMPLETE")
    assert (communicator.hash, communicator.second_hash) == ("cf0325bc2870dff9", "fa8d01:fb4902")
    assert [
        (group.launched, group.ranks[0].rank) for group in communicator.counts if group.op == "AllReduce"
    ] == [(6, 0), (5, 2)]
    assert [(group.text, group.ranks[0].gpu) for group in communicator.states] == [
        ("RUNNING", "0"),
        ("ABORT", "0 (NVML 2)"),
    ]
    assert communicator.missing == (RasPeer(rank=1, host="127.0.0.1", pid=28876, gpu="1"),)
    assert answer.problems[0].processes == (RasPeer(host="127.0.0.1", pid=28876, gpu="1"),)


def test_json_that_lacks_a_comma() -> None:
    whole = read("stopped-2.32.3.json")
    lacking = whole.replace('"nvml_dev": 1,', '"nvml_dev": 1')
    assert lacking != whole
    with pytest.raises(json.JSONDecodeError):
        json.loads(lacking)
    assert ras_json.parse(lacking) == ras_json.parse(whole)


def test_ranks_that_agree_are_no_mismatch() -> None:
    report = json.loads(read("stopped-2.32.3.json"))
    communicator = report["communicators"][0]
    communicator.update(ranks=[communicator["ranks"][0]] * 2, missing_ranks=[], missing_ranks_count=0)
    answer = ras_json.parse(json.dumps(report))
    assert answer is not None
    assert answer.communicators[0].problems == ()


def test_a_communicator_that_initialises_has_no_status() -> None:
    report = json.loads(read("stopped-2.32.3.json"))
    report["communicators"][0]["ranks"][0]["status"] = None
    answer = ras_json.parse(json.dumps(report))
    assert answer is not None
    assert answer.communicators[0].states[0].text == "NOCOMM"


@pytest.mark.parametrize("answer", ["", "{}", "[]", "null", "[" * 100_000, '{"communicators": [1]}', "OK\n"])
def test_what_is_no_report(answer: str) -> None:
    assert ras_json.parse(answer) is None


def test_half_a_json_is_no_report() -> None:
    whole = read("stopped-2.32.3.json").rstrip()
    assert all(ras_json.parse(whole[:end]) is None for end in range(0, len(whole), 11))


LINES = sorted({line for path in ANSWERS.glob("*.txt") for line in path.read_text().split("\n")})


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=40)), max_size=40))
def test_any_order_of_lines_is_read(lines: list[str]) -> None:
    answer = ras_text.parse("\n".join(lines), closed=True)
    assert all(group.number >= 0 for each in answer.communicators for group in each.counts)


@given(st.text(max_size=200))
def test_any_json_is_read_or_refused(content: str) -> None:
    assert ras_json.parse(content) is None
