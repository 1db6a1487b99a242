"""The hanging jobs really hang, where their plans say: as NCCL's own log has it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.hangs.facts import Program, Waits, healthy
from tests.hangs.processes import await_gone, running
from tests.nccl import log, plans
from tests.nccl.bench import Plan, Runtime, Transport, case, program
from tests.nccl.conftest import available
from tests.nccl.kinds import Hang, parameters
from tests.nccl.wheels import ALWAYS


@pytest.mark.parametrize("hang", parameters())
def test_a_job_hangs_as_planned(hang: Hang, runtime: Runtime, logs: Path) -> None:
    available(hang.wheel)
    with hang.running(runtime, logs) as stage:
        seen = log.read(logs)
        plan = hang.kind.plan()
        for prefix in hang.kind.jobs:
            pids = {rank: stage.members[f"{prefix}rank{rank}"].pid for rank in plan.parts}
            _check_comms(plan, pids, seen)
    for pid, count in hang.calls_expected(stage).items():
        assert len(log.read(logs).calls_of(pid)) == count, "it went on instead of waiting"


def _check_comms(plan: Plan, pids: dict[int, int], seen: log.Log) -> None:
    """Each communicator of a job has one hash and all of its ranks, each once; without one that never came, none."""
    comms = [comm for pid in pids.values() for comm in seen.comms_of(pid) if comm.complete]
    hashes = Counter(comm.comm_hash for comm in comms)
    if plan.name == "absent":
        assert not comms
        return
    size = len(comms) if plan.together else len(pids)
    assert hashes
    for comm_hash, count in hashes.items():
        assert count == size
        assert {comm.rank for comm in comms if comm.comm_hash == comm_hash} == set(range(size))


@pytest.mark.nccl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wheel", ALWAYS, ids=lambda wheel: wheel.name)
def test_a_job_ends_when_its_kernels_complete(wheel, runtime: Runtime, logs: Path) -> None:
    """The control: what makes the others hang is that they part, and that nothing completes."""
    available(wheel)
    steps = [["join", 0], plans.REDUCE, plans.REDUCE, plans.WAIT]
    plan = Plan(name="completes", parts={0: steps, 1: steps}, waits={0: Waits.ANY, 1: Waits.ANY})
    job = program(plan, wheel, runtime, transport=Transport.SHARED_MEMORY, logs=logs)
    ending = Program(
        argv=job.argv,
        members={"rank0": Waits.ENDED, "rank1": Waits.ENDED},
        env={**job.env, "NCCL_BENCH_COMPLETES": "1"},
        ranks=job.ranks,
    )
    with running(case("completes", [ending], healthy("ended"))) as stage:
        await_gone(member.pid for member in stage.members.values())
