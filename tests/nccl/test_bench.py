"""Real NCCL that really hangs: where its own log has it, what is read of it in memory, and what the tool says."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyhangtrace._native import NcclInspector, nccl_layout
from tests.hangs.attach import look
from tests.hangs.facts import Waits, healthy
from tests.hangs.judge import Outcome, judge
from tests.hangs.processes import Running, descendants, is_alive, running
from tests.nccl import log, plans
from tests.nccl.bench import Plan, Runtime, Transport, case, program
from tests.nccl.conftest import available
from tests.nccl.kinds import KINDS, Hang, parameters
from tests.nccl.wheels import ALWAYS, Wheel, library

if TYPE_CHECKING:
    from pyhangtrace._native import NcclCommunicatorCapture

#: ncclFunc_t
FUNCTIONS = {"Broadcast": 0, "Reduce": 1, "AllGather": 2, "ReduceScatter": 3, "AllReduce": 4}

#: CPU time; what the bench's six ranks need is a fraction of it.
DECODED_WITHIN_S = 0.15


@pytest.mark.root
@pytest.mark.parametrize("hang", parameters())
def test_a_hanging_job_is_read_and_explained(hang: Hang, runtime: Runtime, logs: Path) -> None:
    available(hang.wheel)
    with hang.running(runtime, logs) as stage:
        seen = log.read(logs)
        plan = hang.kind.plan()
        for prefix in hang.kind.jobs:
            pids = {rank: stage.members[f"{prefix}rank{rank}"].pid for rank in plan.parts}
            _check_log(plan, pids, seen)
            inspector = NcclInspector()
            hashes = set()
            for pid in pids.values():
                hashes |= _check_memory(inspector, pid, seen, plan, hang.wheel, absent=pids.get(2, 0))
            # Until 2.25 the log has another hash of the same id.
            logged = {comm.comm_hash for pid in pids.values() for comm in seen.comms_of(pid) if comm.complete}
            assert len(hashes) == len(logged)
            assert hashes == logged or hang.wheel.minor < 26
        _check_verdict(stage)
    for pid, count in hang.calls_expected(stage).items():
        assert len(log.read(logs).calls_of(pid)) == count, "it went on instead of waiting"


def _check_log(plan: Plan, pids: dict[int, int], seen: log.Log) -> None:
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


def _check_memory(
    inspector: NcclInspector, pid: int, seen: log.Log, plan: Plan, wheel: Wheel, *, absent: int
) -> set[int]:
    """What is read of one process is what NCCL has written of itself. Returns the hashes of its communicators."""
    found = inspector.inspect(pid, search=plan.name == "absent")
    if not is_alive(pid):
        assert found is None
        return set()
    assert found is not None
    assert found["problem"] is None
    assert found["layout_from"] == "dwarf"
    read = {comm["address"]: comm for comm in found["communicators"]}
    logged = {comm.address: comm for comm in seen.comms_of(pid) if comm.complete}
    if plan.name == "absent":
        # Who never came has none; of the others one each, which is not complete. Until 2.20 nothing marks it.
        assert len(read) == (pid != absent and wheel.minor > 20)
        assert all(comm["init_state"] != 0 and comm["n_ranks"] == 3 for comm in read.values())
        return set()
    assert read.keys() == logged.keys()
    for address, truth in logged.items():
        comm = read[address]
        assert (comm["rank"], comm["n_ranks"], comm["cuda_device"]) == (
            truth.rank,
            truth.n_ranks,
            truth.device,
        )
        assert (comm["bus_id"], comm["init_state"]) == (truth.bus_id, 0)
        assert not comm["aborted"]
        assert comm["async_result"] == 0
        calls = [
            call for call in seen.calls_of(pid) if call.address == address and call.function in FUNCTIONS
        ]
        _check_counters(comm, calls)
        _check_tasks(comm, calls, wheel)
    return {comm["comm_hash"] for comm in read.values()}


def _check_counters(comm: NcclCommunicatorCapture, calls: list[log.LoggedCall]) -> None:
    counts = [sum(FUNCTIONS[call.function] == number for call in calls) for number in range(5)]
    if comm["launched"] is not None and any(comm["launched"]):
        assert comm["launched"] == counts
    else:
        assert comm["coll_op_count"] == sum(counts)


def _check_tasks(comm: NcclCommunicatorCapture, calls: list[log.LoggedCall], wheel: Wheel) -> None:
    """The newest launches are those that were asked for last. What is only moved is counted in bytes."""
    tasks = [task for _, _, tasks in comm["plans"] for task in tasks if not task["p2p"]]
    if wheel.minor >= 27:
        assert len(tasks) == len(calls)
    for task, call in zip(reversed(tasks), reversed(calls), strict=False):
        assert task["function"] == FUNCTIONS[call.function]
        if call.function == "AllReduce":
            assert (task["count"], task["dtype"], task["op"]) == (call.count, call.dtype, call.op)


def _check_verdict(stage: Running) -> None:
    done = look(stage.members["rank0"].pid)
    assert done.returncode in (0, 3), done.stderr
    report = json.loads(done.stdout)
    judgement = judge(report, stage.case.facts, stage.members, descendants)
    (memory,) = [each for each in report["coverage"] if each["source"] == "nccl memory"]
    if memory["state"] == "failed" and judgement.outcome is Outcome.ABSTAINED:
        return  # on a machine that is too busy, it withholds what it had no time to read
    assert judgement.outcome is Outcome.RIGHT, (*judgement.reasons, report["verdict"]["summary"])


@pytest.mark.root
@pytest.mark.nccl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wheel", ALWAYS, ids=lambda wheel: wheel.name)
def test_ranks_of_a_host_are_decoded_at_once(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    """Six of them, once the layout is known: what they have in memory beside their heaps is not read."""
    available(wheel)
    (kind,) = [each for each in KINDS if each.name == "two jobs"]
    with Hang(kind, wheel, Transport.SOCKETS).running(runtime, logs) as stage:
        pids = [stage.members[f"{prefix}rank{rank}"].pid for prefix in kind.jobs for rank in range(3)]
        inspector = NcclInspector()
        inspector.inspect(pids[0])
        spent = []
        for _ in range(3):
            began = time.process_time()
            found = [inspector.inspect(pid) for pid in pids]
            spent.append(time.process_time() - began)
            assert all(each is not None and len(each["communicators"]) == 1 for each in found)
    assert min(spent) < DECODED_WITHIN_S


OWN_RELEASE = "a release of its own"


def _call_it_a_fork(library: Path) -> None:
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = content.find(b"\0NCCL version 2.")
        assert at >= 0
        content[at + 14 : at + 16] = b"9."


@pytest.mark.root
@pytest.mark.nccl
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "options", "layout", "found_by", "symptom"),
    [
        # As PyTorch can be built; without symbols only the text with its release tells what it is.
        (
            "libtorch_cuda.so",
            ("--strip-all", "--remove-section=.note.gnu.build-id"),
            "release",
            "magic",
            "collective.missing_rank",
        ),
        # Of a release of its own even that says nothing: the exported functions tell where the rank stands.
        (
            "libtorch_cuda.so",
            ("--strip-all", "--remove-section=.note.gnu.build-id", OWN_RELEASE),
            "disassembly",
            "fingerprint",
            "file_lock.held",
        ),
        # In a file of any name its threads are met.
        ("libmodel.so", ("--strip-debug",), "table", "list", "collective.missing_rank"),
    ],
)
def test_nccl_that_was_linked_into_another_library(
    name: str,
    options: tuple[str, ...],
    layout: str,
    found_by: str,
    symptom: str,
    runtime: Runtime,
    logs: Path,
) -> None:
    wheel = available(ALWAYS[1])
    copy = logs / name
    try:
        own = [each for each in options if each != OWN_RELEASE]
        subprocess.run(["objcopy", *own, str(library(wheel)), str(copy)], check=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("there is no objcopy")
    if OWN_RELEASE in options:
        _call_it_a_fork(copy)
    (kind,) = [each for each in KINDS if each.name == "skipped"]
    job = program(kind.plan(), wheel, runtime, transport=Transport.SOCKETS, logs=logs, loaded=copy)
    try:
        with running(case("linked", [*kind.before, job], kind.facts)) as stage:
            pids = {rank: stage.members[f"rank{rank}"].pid for rank in range(3)}
            log.await_calls(logs, {pid: 3 + (rank != 2) for rank, pid in pids.items()})
            seen = log.read(logs)
            for rank, pid in pids.items():
                found = NcclInspector().inspect(pid, libraries=[str(copy)])
                assert found is not None
                assert (found["library"], found["layout_from"]) == (str(copy), layout)
                (comm,) = found["communicators"]
                (logged,) = [each for each in seen.comms_of(pid) if each.complete]
                assert (comm["rank"], comm["n_ranks"], comm["comm_hash"]) == (rank, 3, logged.comm_hash)
                assert comm["found_by"] == found_by
            report = json.loads(look(pids[0]).stdout)
            assert report["verdict"]["symptom"] == symptom
            judgement = judge(report, stage.case.facts, stage.members, descendants)
            assert judgement.outcome is not Outcome.INNOCENT
    finally:
        copy.unlink()


@pytest.mark.nccl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wheel", ALWAYS, ids=lambda wheel: wheel.name)
def test_all_ways_to_the_layout_agree(wheel: Wheel) -> None:
    available(wheel)
    exact, table, code = (
        nccl_layout(str(library(wheel)), source=source) for source in ("dwarf", "table", "disassembly")
    )
    assert exact is not None
    assert table is not None
    assert code is not None
    assert (table["row"], table["comm_size"], table["sub_size"]) == (
        exact["row"],
        exact["comm_size"],
        exact["sub_size"],
    )
    assert code["offsets"].items() <= exact["offsets"].items()
    assert len(code["offsets"]) == 5


@pytest.mark.root
@pytest.mark.nccl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wheel", ALWAYS, ids=lambda wheel: wheel.name)
def test_a_rank_tells_where_the_others_are(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    """Without looking at them: by their hosts and GPUs, and with RAS (2.24) by address and pid."""
    available(wheel)
    with Hang(next(kind for kind in KINDS if kind.name == "skipped"), wheel, Transport.SOCKETS).running(
        runtime, logs
    ) as stage:
        pids = [stage.members[f"rank{rank}"].pid for rank in range(3)]
        inspector = NcclInspector()
        first = inspector.inspect(pids[0])
        assert first is not None
        (comm,) = first["communicators"]
        found = inspector.inspect(pids[0], members=[(comm["address"], [0, 1, 2, 3])])
        assert found is not None
        (members,) = found["members"]
        assert [(rank, device) for rank, device, *_ in members] == [(0, 0), (1, 1), (2, 2)]
        assert [bus for _, _, bus, *_ in members] == [comm["bus_id"] * (rank + 1) for rank in range(3)]
        assert len({host for *_, host, _ in members}) == 1
        if wheel.minor >= 26:
            processes = {(host, process): pid for _, pid, _, host, process in found["peers"]}
            assert [processes[host, process] for *_, host, process in members] == pids


@pytest.mark.nccl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wheel", ALWAYS, ids=lambda wheel: wheel.name)
def test_a_job_ends_when_its_kernels_complete(wheel: Wheel, runtime: Runtime, logs: Path) -> None:
    """The control: what makes the others hang is that they part, and that nothing completes."""
    available(wheel)
    steps = [["join", 0], plans.REDUCE, plans.REDUCE, plans.WAIT]
    plan = Plan(name="completes", parts={0: steps, 1: steps}, waits={0: Waits.ENDED, 1: Waits.ENDED})
    job = program(plan, wheel, runtime, transport=Transport.SHARED_MEMORY, logs=logs)
    ending = replace(job, env={**job.env, "NCCL_BENCH_COMPLETES": "1"})
    with running(case("completes", [ending], healthy("ended"))) as stage:
        for role, member in stage.members.items():
            # It stays a zombie, which whoever started it still reaps.
            ended = os.waitid(os.P_PID, member.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is not None
            assert (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0), role
