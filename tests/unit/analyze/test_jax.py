"""Processes of JAX: in operations of gloo, at their end, and before all have come."""

from __future__ import annotations

from typing import Any

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Kind, Part, State, WaitKind
from tests.unit.analyze import builders as b

JAX = "/venv/jaxlib/libjax_common.so"
REDUCE = (
    b.native("xla::cpu::GlooCommunicator::AllReduce(stream_executor::DeviceAddressBase)", JAX),
    b.py("step"),
)
CLIENT = "xla::DistributedRuntimeCoordinationServiceClient"
SHUTDOWN = (b.native(f"{CLIENT}::Shutdown()", JAX), b.py("State.shutdown", "/venv/jax/_src/distributed.py"))
CONNECT = (b.native(f"{CLIENT}::Connect()", JAX), b.py("initialize", "/venv/jax/_src/distributed.py"))


def ranks(count: int, world: int) -> list[Any]:
    return [b.rank(100 + number, number, world, modules=("jax",)) for number in range(count)]


def test_who_is_in_no_operation_is_missing() -> None:
    waiting = [b.sleeper(pid, frames=REDUCE) for pid in (100, 101)]
    report = analyze(b.evidence(ranks(3, 3), b.twice(*waiting, b.asleep(102, seconds=3600))))
    assert (report.verdict.state, report.verdict.symptom) == (State.HUNG, Kind.COLLECTIVE_MISSING_RANK)
    assert [who.rank for who in report.verdict.culprits] == [2]
    (operation,) = report.collectives
    # Which axis of a mesh it is of is not known, and so not who is in it.
    assert (operation.op, operation.group, operation.missing) == ("all_reduce", "unknown group", ())


def test_who_waits_for_the_end_of_all_does_not_come_to_an_operation() -> None:
    waiting = [b.sleeper(pid, frames=REDUCE) for pid in (100, 101)]
    report = analyze(b.evidence(ranks(3, 3), b.twice(*waiting, b.sleeper(102, frames=SHUTDOWN))))
    verdict = report.verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.COLLECTIVE_OP_MISMATCH)
    assert {(who.rank, who.part) for who in verdict.culprits} == {(rank, Part.PARTY) for rank in range(3)}
    assert {operation.op for operation in report.collectives} == {"all_reduce", "shutdown"}


def test_all_at_their_end_wait_for_who_is_gone() -> None:
    waiting = [b.sleeper(pid, frames=SHUTDOWN) for pid in (100, 101)]
    verdict = analyze(b.evidence(ranks(2, 3), b.twice(*waiting))).verdict
    assert (verdict.state, verdict.cause) == (State.HUNG, Kind.PEER_EXITED)
    assert [victim.rank for victim in verdict.victims] == [0, 1]


def test_a_job_lacks_who_has_not_come_to_its_set_up() -> None:
    waiting = [b.sleeper(pid, frames=CONNECT) for pid in (100, 101)]
    report = analyze(b.evidence(ranks(2, 3), b.twice(*waiting)))
    assert (report.verdict.state, report.verdict.cause) == (State.HUNG, Kind.RENDEZVOUS_MISSING_RANK)
    assert {wait.kind for wait in report.waits} == {WaitKind.RENDEZVOUS}


def test_where_all_wait_to_join_nobody_is_accused() -> None:
    waiting = [b.sleeper(pid, frames=CONNECT) for pid in (100, 101)]
    verdict = analyze(b.evidence(ranks(2, 2), b.twice(*waiting))).verdict
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert verdict.summary.endswith("Nothing records who should join.")
