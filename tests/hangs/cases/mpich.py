"""The programs of `mpi` under MPICH. What its messages do is not counted, so that where all poll nothing is decided."""

from __future__ import annotations

from tests.hangs.cases.mpi import LACKS, MISSING
from tests.hangs.facts import Case, Facts, Program, Waits, busy, healthy, hung


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


def undecided(kind: str, count: int, summary: str) -> Case:
    """All poll: they may be getting on with each other."""
    return ranks(kind, count, summary, healthy("unknown", "running"))


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
    undecided("all-receive", 3, "all receive first, in a ring"),
    undecided("other-operation", 3, "one is in MPI_Bcast, two in MPI_Allreduce"),
    undecided("opposite-order", 2, "two ranks use two communicators in opposite order"),
    undecided("full-speed", 3, "three ranks do two collectives in turn as fast as they can"),
)
