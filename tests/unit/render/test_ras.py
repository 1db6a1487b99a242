"""What RAS said, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from pyhangtrace.model.codec import pack, report_from_json, report_to_json, unpack
from pyhangtrace.model.ras import RasAnswer, RasCommunicator, RasGroup, RasPeer, RasProblem
from pyhangtrace.render.text.page import render_text
from tests.unit.render.sample import result


def peer(rank: int | None, pid: int = 955) -> RasPeer:
    return RasPeer(rank=rank, host="10.0.0.1", pid=pid, gpu="0")


ANSWER = RasAnswer(
    nccl_version="2.27.7",
    complete=True,
    problems=(RasProblem(kind="DEAD", text="1 job process is considered dead", processes=(peer(None),)),),
    communicators=(
        RasCommunicator(
            hash="dfdc24fb47aee1e5",
            problems=("MISMATCH", "INCOMPLETE"),
            counts=(
                RasGroup(op="AllReduce", launched=4, number=6),
                RasGroup(op="AllReduce", launched=3, number=1, ranks=(peer(1),)),
                RasGroup(op="AllGather", launched=2, number=7),
            ),
            states=(RasGroup(text="RUNNING", number=6), RasGroup(text="ABORT", number=1, ranks=(peer(5),))),
            errors=(RasGroup(text="network error", number=2, ranks=(peer(5), peer(6))),),
            missing=(peer(7),),
            missing_count=1,
        ),
        RasCommunicator(hash="00"),
    ),
)


def page(answer: RasAnswer | None) -> str:
    return " ".join(render_text(replace(result().report, ras=answer), color=False).split())


def test_who_is_behind_and_who_is_dead() -> None:
    text = page(ANSWER)
    assert "nccl ras dead 1 job process is considered dead: pid 955 on 10.0.0.1" in text
    assert "comm dfdc24fb AllReduce launched: 4 by 6 ranks; 3 by rank 1 (pid 955 on 10.0.0.1)" in text
    assert "6 ranks: RUNNING; rank 5 (pid 955 on 10.0.0.1): ABORT" in text
    assert "ranks 5-6 reported network error" in text
    assert "no data of 1 rank: rank 7 (pid 955 on 10.0.0.1)" in text
    assert "AllGather" not in text  # all the same


def test_nothing_is_said_of_what_was_not_asked() -> None:
    assert "nccl ras" not in page(None)


def test_that_all_is_alike_clears_nobody() -> None:
    alike = replace(ANSWER, problems=(), communicators=(RasCommunicator(hash="00"),))
    assert "all ranks have launched the same collectives" in page(alike)
    assert "no communicator is complete yet" in page(replace(alike, communicators=()))


def test_hostile_names_stay_text() -> None:
    answer = replace(ANSWER, problems=(RasProblem(kind="DEAD", text="x\x1b[31m\n"),))
    assert "\x1b" not in page(answer)


def test_json_and_bundle_keep_it() -> None:
    report = replace(result().report, ras=ANSWER)
    assert json.loads(report_to_json(report))["ras"]["communicators"][0]["hash"] == "dfdc24fb47aee1e5"
    assert report_from_json(report_to_json(report)).ras == ANSWER
    evidence = replace(result().evidence, ras=ANSWER)
    assert unpack(pack(evidence)).ras == ANSWER
