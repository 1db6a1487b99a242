"""When RAS is asked: a query has ended jobs, so a doubt is a no."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from pyhangtrace.collect import nccl_version, ras
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.ras_gate import (
    DANGERS,
    Hazard,
    Known,
    RasMode,
    Version,
    hazards,
    leave,
    parse_version,
)
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import FrameKind, SourceState
from pyhangtrace.model.nccl import NcclCommunicator, NcclState
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import write

NOTHING_KNOWN = {Hazard.INITIALISING: Known.UNKNOWN, Hazard.SILENT_RANK: Known.UNKNOWN}
ALL_WELL = {Hazard.INITIALISING: Known.EXCLUDED, Hazard.SILENT_RANK: Known.EXCLUDED}
INITIALISING = {**NOTHING_KNOWN, Hazard.INITIALISING: Known.PRESENT}
SILENT = {**NOTHING_KNOWN, Hazard.SILENT_RANK: Known.PRESENT}
RELEASES: list[Version] = [(2, 24, 3), (2, 26, 6), (2, 27, 3), (2, 27, 7), (2, 28, 9), (2, 29, 7), (2, 32, 3)]


@pytest.mark.parametrize("version", RELEASES)
def test_without_a_word_of_the_user_nothing_unknown_is_risked(version: Version) -> None:
    permit = leave(RasMode.SAFE, version, NOTHING_KNOWN, pid=7)
    assert not permit.granted
    assert "not asked" in permit.reason
    assert "--ras" in permit.fix


@pytest.mark.parametrize(
    ("version", "known", "granted"),
    [
        ((2, 24, 3), NOTHING_KNOWN, False),
        ((2, 26, 6), ALL_WELL, False),
        ((2, 27, 7), NOTHING_KNOWN, True),
        ((2, 27, 7), INITIALISING, True),  # repaired there
        ((2, 27, 7), SILENT, False),
        ((2, 28, 3), INITIALISING, False),  # no JSON yet
        ((2, 29, 1), SILENT, False),
        ((2, 29, 2), SILENT, True),
        ((2, 32, 3), INITIALISING, True),
    ],
)
def test_who_asks_gets_an_answer_where_nothing_is_known_against_it(
    version: Version, known: dict[Hazard, Known], granted: bool
) -> None:
    assert leave(RasMode.ASK, version, known, pid=7).granted is granted
    assert leave(RasMode.FORCE, version, known, pid=7).granted
    assert not leave(RasMode.NEVER, version, known, pid=7).granted


def test_json_goes_around_the_code_that_fails() -> None:
    assert leave(RasMode.ASK, (2, 29, 7), NOTHING_KNOWN, pid=7).json_only
    assert leave(RasMode.SAFE, (2, 29, 7), ALL_WELL, pid=7).granted
    assert not leave(RasMode.ASK, (2, 27, 7), NOTHING_KNOWN, pid=7).json_only


def test_releases_that_are_not_known_or_have_none() -> None:
    assert not leave(RasMode.ASK, None, ALL_WELL, pid=7).granted
    permit = leave(RasMode.ASK, (2, 21, 5), ALL_WELL, pid=7)
    assert (permit.granted, permit.fix) == (False, "")


def test_every_danger_says_where_it_is_known_from() -> None:
    assert all("github.com" in danger.source and danger.effect for danger in DANGERS)


def thread(function: str, **more: object) -> ThreadSample:
    frame = Frame(kind=FrameKind.NATIVE, function=function, module="/x/libnccl.so.2")
    return ThreadSample(pid=7, tid=7, comm="python", frames=(frame,), **more)  # type: ignore[arg-type]


def test_what_stacks_show() -> None:
    assert hazards([thread("ncclAllReduce")], [7]) == NOTHING_KNOWN
    for name in ("pncclCommInitRank", "ncclCommInitRankFunc(ncclAsyncJob*)", "commReclaim(ncclAsyncJob*)"):
        assert hazards([thread(name)], []) == INITIALISING
    assert hazards([thread("poll", state="T")], []) == SILENT
    assert hazards([], [7], ended=True) == SILENT


def state(pid: int, rank: int, ranks: int = 2, **more: object) -> NcclState:
    communicator = NcclCommunicator(
        address=1, found_by="list", comm_hash=5, rank=rank, n_ranks=ranks, cuda_device=rank, init_state=0
    )
    whole = replace(communicator, **more)  # type: ignore[arg-type]
    return NcclState(pid=pid, library="", build_id="", layout_from="dwarf", communicators=(whole,))


BOTH = [7, 8]


def test_what_memory_shows() -> None:
    whole = [state(7, 0), state(8, 1)]
    assert hazards([], BOTH, whole) == ALL_WELL
    assert hazards([], BOTH, whole[:1]) == NOTHING_KNOWN  # of the other one nothing was read
    assert hazards([], BOTH, [whole[0], replace(whole[1], problem="no time")]) == NOTHING_KNOWN
    assert hazards([], BOTH, [whole[0], replace(whole[1], communicators=())]) == NOTHING_KNOWN
    assert hazards([], BOTH, [whole[0], state(8, 1, init_state=None)]) == NOTHING_KNOWN
    elsewhere = hazards([], BOTH, [state(7, 0, 3), state(8, 1, 3)])
    assert elsewhere == {**NOTHING_KNOWN, Hazard.INITIALISING: Known.EXCLUDED}


@pytest.mark.parametrize(
    "half",
    [{"init_state": 7}, {"peers_known": False}, {"finalizing": True}, {"destroyed": True}, {"aborted": True}],
)
def test_a_communicator_that_is_not_whole(half: dict[str, object]) -> None:
    found = hazards([], BOTH, [state(7, 0), state(8, 1, **half)])
    assert found[Hazard.INITIALISING] is Known.PRESENT


def test_stacks_go_before_memory() -> None:
    found = hazards([thread("ncclCommInitRank"), thread("poll", state="T")], BOTH, [state(7, 0), state(8, 1)])
    assert found == {**INITIALISING, Hazard.SILENT_RANK: Known.PRESENT}


def test_by_itself_it_asks_where_other_hosts_have_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ras.Question] = []

    def query(question: ras.Question, *, proc_root: str) -> tuple[None, SourceStatus]:
        asked.append(question)
        return None, SourceStatus(source="ras", state=SourceState.USED)

    monkeypatch.setattr(ras, "query", query)
    monkeypatch.setattr(
        nccl_version, "collect", lambda reader, pids, deadline_s: dict.fromkeys(pids, "2.32.3")
    )

    def collect(states: list[NcclState]) -> SourceStatus:
        with GuardedReader(TASKS) as reader:
            answer = ras.collect(reader, BOTH, (), states, mode=RasMode.SAFE, asked=(8,), deadline_s=5.0)
        return answer.coverage[0]

    line = collect([state(7, 0), state(8, 1)])
    assert (line.state, line.fix, asked) == (SourceState.SKIPPED, "", [])
    assert "not needed" in line.reason
    assert collect([state(7, 0, 4), state(8, 1, 4)]).state is SourceState.USED
    (question,) = asked
    assert (question.members, question.asked, question.json_only) == ((7, 8), (8,), True)
    assert collect([state(7, 0, 4), state(8, 1, 4, init_state=7)]).state is SourceState.SKIPPED


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.27.7+cuda12.9", (2, 27, 7)), ("2.4", (2, 4, 0)), ("2", None), ("", None), ("x.y.z", None)],
)
def test_versions(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


def library(constants: bytes, elsewhere: bytes = b"") -> bytes:
    """An ELF file with `.rodata`, and something outside of it."""
    names = b"\0.rodata\0.shstrtab\0"
    body = constants + elsewhere + names
    sections = [
        bytes(64),
        struct.pack("<II8x8xQQ24x", 1, 1, 64, len(constants)),
        struct.pack("<II8x8xQQ24x", 9, 3, 64 + len(constants + elsewhere), len(names)),
    ]
    header = b"\x7fELF\2\1\1" + bytes(33) + struct.pack("<Q10xHHH", 64 + len(body), 64, 3, 2)
    return header + body + b"".join(sections)


def test_the_release_in_a_library() -> None:
    assert nccl_version.find_version(library(b"x\0NCCL version 2.27.7+cuda12.9\0y")) == "2.27.7"
    assert nccl_version.find_version(library(b"NCCL version 2.4.8\0")) == "2.4.8"
    assert nccl_version.find_version(library(b"none\0", b"NCCL version 2.27.7+cuda12.9\0")) is None
    assert nccl_version.find_version(library(b"NCCL version 2.27.7\0NCCL version 2.28.9\0")) is None
    of_rccl = b'RCCL version : 2.27.7\0RCCL version 2.27.7 compiled with ROCm "7.1.0"\0'
    assert nccl_version.find_version(library(of_rccl)) == "2.27.7"
    whole = library(b"NCCL version 2.27.7+cuda12.9\0")
    for end in range(len(whole)):
        assert nccl_version.find_version(whole[:end]) in (None, "2.27.7")


def test_the_release_a_process_has_loaded(tmp_path: Path) -> None:
    path = "/x/nvidia/nccl/lib/libnccl.so.2"
    write(tmp_path, {f"7/root{path}": library(b"NCCL version 2.27.7+cuda12.9\0")})
    inode = (tmp_path / f"7/root{path}").stat().st_ino
    line = f"7f0000000000-7f0000001000 r-xp 00000000 08:01 {{}} {path}\n"
    write(tmp_path, {"7/maps": line.format(inode), "8/maps": line.format(inode + 1)})
    (tmp_path / "8" / "root").symlink_to(tmp_path / "7" / "root")
    with GuardedReader(TASKS, proc_root=str(tmp_path)) as reader:
        assert nccl_version.collect(reader, [7, 8, 9], deadline_s=5.0) == {7: "2.27.7"}
        answer = ras.collect(reader, [7], (), mode=RasMode.SAFE, deadline_s=5.0, proc_root=str(tmp_path))
    (line_of_coverage,) = answer.coverage
    assert line_of_coverage.state is SourceState.SKIPPED
    assert "NCCL 2.27.7" in line_of_coverage.reason
    assert line_of_coverage.fix == "hangtrace attach --ras ask 7"


def test_a_job_without_nccl_says_nothing_of_it() -> None:
    with GuardedReader(TASKS) as reader:
        assert ras.collect(reader, [], (), mode=RasMode.FORCE, deadline_s=1.0) == ras.Asked()
