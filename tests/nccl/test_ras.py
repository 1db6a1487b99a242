"""RAS of the real NCCL, asked by `hangtrace attach --ras`: what it says of jobs whose ranks parted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hangs.attach import look
from tests.hangs.processes import Running, is_alive
from tests.nccl.bench import Runtime, Transport
from tests.nccl.conftest import available
from tests.nccl.kinds import KINDS, Hang
from tests.nccl.wheels import ALWAYS, FURTHER, Wheel

KIND = {kind.name: kind for kind in KINDS}
WITH_RAS = tuple(
    wheel for wheel in (*ALWAYS, *FURTHER) if tuple(map(int, wheel.version.split("."))) >= (2, 24)
)


def _wheels() -> list[object]:
    return [
        pytest.param(
            wheel,
            id=wheel.name,
            marks=[
                pytest.mark.nccl,
                pytest.mark.timeout(900),
                *(() if wheel in ALWAYS else (pytest.mark.slow,)),
            ],
        )
        for wheel in WITH_RAS
    ]


def asked(stage: Running, *options: str, role: str = "rank0") -> dict[str, Any]:
    done = look(stage.members[role].pid, *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def coverage(report: dict[str, Any]) -> dict[str, Any]:
    (line,) = [line for line in report["coverage"] if line["source"] == "ras"]
    assert isinstance(line, dict)
    return line


def behind(report: dict[str, Any], op: str) -> list[int]:
    """Ranks that are named with fewer launches than others. NCCL before 2.26 counts all operations in one."""
    (communicator,) = report["ras"]["communicators"]
    groups = [group for group in communicator["counts"] if group["op"] in (op, "")]
    most = max(group["launched"] for group in groups)
    return [peer["rank"] for group in groups if group["launched"] < most for peer in group["ranks"]]


@pytest.mark.parametrize("wheel", _wheels())
def test_a_rank_that_left_out_a_collective(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    hang = Hang(KIND["skipped"], available(wheel), Transport.SHARED_MEMORY)
    with hang.running(runtime, logs) as stage:
        pids = {rank: stage.members[f"rank{rank}"].pid for rank in range(3)}
        assert (
            coverage(asked(stage))["state"] == "skipped"
        )  # by itself it asks only where other hosts have a part
        report = asked(stage, "--ras", "force")
        assert coverage(report) == {"source": "ras", "state": "used", "reason": "", "fix": ""}
        said = report["ras"]
        assert said["nccl_version"] == wheel.version
        assert (said["complete"], said["unknown"]) == (True, [])
        assert said["answered_by"] in pids.values()
        assert said["format"] == ("json" if wheel.version >= "2.28" else "text")
        (communicator,) = said["communicators"]
        assert "MISMATCH" in communicator["problems"]
        assert behind(report, "AllReduce") == [2]
        named = [(peer["rank"], peer["pid"]) for group in communicator["counts"] for peer in group["ranks"]]
        assert named
        assert all(pids[rank] == pid for rank, pid in named)
        assert all(is_alive(pid) for pid in pids.values())


@pytest.mark.parametrize("wheel", _wheels())
def test_a_stopped_rank(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    hang = Hang(KIND["stopped"], available(wheel), Transport.SHARED_MEMORY)
    with hang.running(runtime, logs) as stage:
        stopped = stage.members["rank2"].pid
        refused = asked(stage, "--ras", "ask")
        if wheel.version < "2.29":
            assert coverage(refused)["state"] == "skipped"
            assert f"--ras force {stage.members['rank0'].pid}" in coverage(refused)["fix"]
        report = asked(stage, "--ras", "force")
        assert coverage(report)["state"] == "used"
        said = report["ras"]
        assert said["answered_by"] != stopped
        (communicator,) = said["communicators"]
        assert "INCOMPLETE" in communicator["problems"]
        assert [peer["rank"] for peer in communicator["missing"]] == [2]


@pytest.mark.parametrize("wheel", _wheels())
def test_before_the_ring_is_whole_nobody_listens(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    hang = Hang(KIND["absent"], available(wheel), Transport.SHARED_MEMORY)
    with hang.running(runtime, logs) as stage:
        line = coverage(asked(stage, "--ras", "force"))
        assert line["state"] == "absent"
        assert "RAS has not started" in line["reason"]


@pytest.mark.parametrize("wheel", _wheels())
def test_of_two_jobs_on_one_port_the_right_one_is_asked(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    hang = Hang(KIND["two jobs"], available(wheel), Transport.SHARED_MEMORY)
    with hang.running(runtime, logs) as stage:
        for prefix in ("", "other."):
            ours = {stage.members[f"{prefix}rank{rank}"].pid for rank in range(3)}
            report = asked(stage, "--ras", "force", role=f"{prefix}rank0")
            assert report["ras"]["answered_by"] in ours
            (communicator,) = report["ras"]["communicators"]
            named = {peer["pid"] for group in communicator["counts"] for peer in group["ranks"]}
            assert named
            assert named <= ours
