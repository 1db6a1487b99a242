"""The programs of `mpi` under MPICH. Whether messages come is seen; which communicator they are of is not."""

from __future__ import annotations

from tests.hangs.cases.mpi import LACKS, MISSING
from tests.hangs.facts import Case, Facts, Program, Waits, busy, healthy, hung, may_withhold


def ranks(kind: str, count: int, summary: str, facts: Facts, **members: Waits) -> Case:
    """One job. Members that are not named poll."""
    waits = {f"rank{rank}": Waits.ANY for rank in range(count)}
    return Case(
        kind=f"mpich-{kind}",
        summary=f"{summary}; MPICH",
        programs=(
            Program(
                argv=("mpirun.mpich", "-n", str(count), "{programs}/ranks.mpi.c", kind),
                members={**waits, **members},
            ),
        ),
        attach=("rank0", "rank1"),
        facts=facts,
        needs=("mpirun.mpich", "mpicc.mpich"),
    )


def all_of(kind: str, count: int, summary: str, symptom: str, **facts: object) -> Case:
    everybody = tuple(f"rank{rank}" for rank in range(count))
    return ranks(kind, count, summary, hung(symptom, symptom, parties=everybody, **facts))


CASES = (
    ranks(
        "lacks-one",
        3,
        "a rank sleeps, the others are in MPI_Allreduce",
        hung(MISSING, "timer", op="all_reduce", group="MPI_COMM_WORLD", **LACKS),
        rank1=Waits.SLEEP,
    ),
    ranks(
        "lacks-one-stopped",
        3,
        "a rank is stopped, the others are in MPI_Barrier",
        hung(MISSING, "peer.stopped", op="barrier", **LACKS),
        rank1=Waits.STOPPED,
    ),
    ranks(
        "lacks-one-at-work",
        3,
        "a rank computes, the others poll in MPI_Barrier",
        busy(MISSING, ("cpu.busy", "cpu.spin"), culprit=("rank1",), victims=("rank0", "rank2")),
        rank1=Waits.RUNNING,
    ),
    ranks(
        "message-never-sent",
        3,
        "MPI_Waitall for a message that a sleeping rank does not send",
        hung("p2p.unmatched", "timer", culprit=("rank1",), victims=("rank0", "rank2")),
        rank1=Waits.SLEEP,
    ),
    ranks(
        "half-lacks-one",
        4,
        "a rank of a communicator of two sleeps; the others wait in it and in the world",
        hung(MISSING, "timer", culprit=("rank1",), victims=("rank0", "rank2", "rank3")),
        rank1=Waits.SLEEP,
    ),
    all_of("all-receive", 3, "all receive first, in a ring", "p2p.cycle", cycle=True),
    all_of("other-operation", 3, "one is in MPI_Bcast, two in MPI_Allreduce", "collective.op_mismatch"),
    all_of(
        "opposite-order",
        2,
        "two ranks use two communicators in opposite order",
        "collective.none_completes",
    ),
    ranks(
        "message-asked-for-at-once",
        3,
        "MPI_Test without a nap for a message that a sleeping rank does not send; a third one is in MPI_Barrier",
        may_withhold(MISSING, "timer", culprit=("rank1",)),
        rank1=Waits.SLEEP,
    ),
    ranks(
        "messages-to-and-fro", 2, "two ranks send each other messages as fast as they can", healthy("running")
    ),
    ranks("full-speed", 3, "three ranks do two collectives in turn as fast as they can", healthy("running")),
)
