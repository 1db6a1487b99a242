"""RAS's report for programs (`SET FORMAT json`, NCCL 2.28.7 and newer), read with its types checked. Pure.

Source of the format: NCCL's documentation ("RAS", JSON output) and the answers of its releases.
"""

from __future__ import annotations

import re

import msgspec

from pyhangtrace.model.ras import RasAnswer, RasCommunicator, RasFormat, RasGroup, RasPeer, RasProblem

# ncclResult_t: 0 is success, 7 in progress.
_RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process exited or there was a network error",
    7: "in progress",
    8: "timeout",
}
_IN_PROGRESS = 7
# NCCL 2.28.9 forgets the comma before the status of a rank that is missing (seen in its answers; not so in 2.30.7).
_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')
_MOST_RANKS = 1 << 20


class _Status(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    # "status" is null for a communicator that initialises.
    status: _Status | None = None
    collective_counts: dict[str, int] | None = None


class _Communicator(msgspec.Struct):
    hash: str
    secondary_hash: str = ""
    size: int | None = None
    missing_ranks_count: int = 0
    ranks: list[_Rank] | None = None
    missing_ranks: list[_Rank] | None = None


class _Service(msgspec.Struct):
    timeouts_count: int = 0


class _Report(msgspec.Struct):
    communicators: list[_Communicator]
    nccl_version: str = ""
    cuda_runtime_version: int | None = None
    cuda_driver_version: int | None = None
    ras: _Service | None = None


def parse(text: str) -> RasAnswer | None:
    """The answer, None if this is no whole report of RAS."""
    try:
        report = msgspec.json.decode(_NO_COMMA.sub(r"\1,\2", text), type=_Report)
    except (msgspec.MsgspecError, RecursionError):
        return None
    dead = [
        _peer(rank)
        for each in report.communicators
        for rank in each.missing_ranks or ()
        if rank.status is not None and rank.status.considered_dead
    ]
    problems: tuple[RasProblem, ...] = ()
    if dead:
        named = {(peer.host, peer.pid): peer for peer in dead}
        problems = (
            RasProblem(
                kind="DEAD",
                text=f"{len(named)} considered dead",
                processes=tuple(
                    RasPeer(host=peer.host, pid=peer.pid, gpu=peer.gpu) for peer in named.values()
                ),
            ),
        )
    return RasAnswer(
        format=RasFormat.JSON,
        nccl_version=report.nccl_version[:64],
        cuda_runtime=report.cuda_runtime_version,
        cuda_driver=report.cuda_driver_version,
        complete=True,
        communicators=tuple(_communicator(each) for each in report.communicators),
        problems=problems,
        no_data=not report.communicators,
        timeouts=report.ras.timeouts_count if report.ras is not None else 0,
    )


def _communicator(found: _Communicator) -> RasCommunicator:
    ranks = sorted((found.ranks or [])[:_MOST_RANKS], key=lambda rank: rank.rank)
    missing = sorted(found.missing_ranks or [], key=lambda rank: rank.rank)
    counts = _counts(ranks)
    states = _grouped([(rank, _state(rank.status)) for rank in ranks])
    errors = _grouped([(rank, _RESULTS.get(error, "error")) for rank in ranks if (error := _error(rank))])
    problems = []
    if len({group.op for group in counts}) < len(counts) or len(states) > 1:
        problems.append("MISMATCH")
    if errors:
        problems.append("ERROR")
    if missing or found.missing_ranks_count:
        problems.append("INCOMPLETE")
    return RasCommunicator(
        hash=found.hash.removeprefix("0x")[:64],
        second_hash=found.secondary_hash.replace("0x", "")[:64],
        size=found.size,
        problems=tuple(problems),
        counts=counts,
        states=states,
        errors=errors,
        missing=tuple(_peer(rank) for rank in missing),
        missing_count=max(found.missing_ranks_count, len(missing)),
    )


def _error(rank: _Rank) -> int:
    """Its asynchronous error, 0 without one."""
    error = rank.status.async_error if rank.status is not None else 0
    return 0 if error == _IN_PROGRESS else error


def _state(status: _Status | None) -> str:
    """RAS's words in text for the same."""
    if status is None:
        return "NOCOMM"
    if status.abort_flag:
        return "ABORT"
    if status.finalize_called or status.destroy_flag:
        return "FINALIZE"
    return "INIT" if status.init_state else "RUNNING"


def _counts(ranks: list[_Rank]) -> tuple[RasGroup, ...]:
    """By operation and number of launches, the most frequent number of an operation first."""
    found: dict[str, dict[int, list[RasPeer]]] = {}
    for rank in ranks:
        for op, launched in (rank.collective_counts or {}).items():
            found.setdefault(op[:64], {}).setdefault(launched, []).append(_peer(rank))
    return tuple(
        RasGroup(op=op, launched=launched, number=len(peers), ranks=tuple(peers))
        for op, by_number in found.items()
        for launched, peers in sorted(by_number.items(), key=lambda item: (-len(item[1]), -item[0]))
    )


def _grouped(found: list[tuple[_Rank, str]]) -> tuple[RasGroup, ...]:
    by_text: dict[str, list[RasPeer]] = {}
    for rank, text in found:
        by_text.setdefault(text, []).append(_peer(rank))
    return tuple(
        RasGroup(text=text, number=len(peers), ranks=tuple(peers)) for text, peers in by_text.items()
    )


def _peer(rank: _Rank) -> RasPeer:
    gpu = "" if rank.cuda_dev is None else str(rank.cuda_dev)
    if rank.nvml_dev is not None and rank.nvml_dev != rank.cuda_dev:
        gpu = f"{gpu} (NVML {rank.nvml_dev})"
    return RasPeer(rank=rank.rank, host=rank.host[:256], pid=rank.pid, gpu=gpu)
