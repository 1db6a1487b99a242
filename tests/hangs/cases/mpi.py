"""Ranks of MPI programs. Who waits polls, so that it is on the CPU all the while."""

from __future__ import annotations

from dataclasses import replace

from tests.hangs.facts import Case, Facts, Program, Waits, busy, healthy, hung, may_withhold

MISSING = "collective.missing_rank"
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def ranks(kind: str, count: int, **members: Waits) -> Program:
    """One job of Open MPI. Members that are not named poll."""
    waits = {f"rank{rank}": Waits.RUNNING for rank in range(count)}
    argv = ("mpirun.openmpi", "--oversubscribe", "-n", str(count), "{programs}/ranks.mpi.c", kind)
    return Program(argv=argv, members={**waits, **members}, env=OPEN_MPI)


def case(kind: str, summary: str, program: Program, facts: Facts, *attach: str) -> Case:
    return Case(
        kind=f"mpi-{kind}",
        summary=summary,
        programs=(program,),
        attach=attach or ("rank0", "rank1"),
        facts=facts,
        needs=("mpirun.openmpi", "mpicc.openmpi"),
    )


def one_of_three(kind: str, summary: str, waits: Waits, facts: Facts) -> Case:
    return case(kind, summary, ranks(kind, 3, rank1=waits), facts)


def asked(kind: str, summary: str, facts: Facts) -> Case:
    # A look that meets one between two naps sees work: it may be no victim then, or everybody is at work.
    states = facts.state | {"unknown", "running"}
    program = ranks(kind, 3, rank0=Waits.ANY, rank1=Waits.SLEEP, rank2=Waits.ANY)
    return case(kind, summary, program, replace(facts, state=states))


def all_of(kind: str, summary: str, count: int, symptom: str, **facts: object) -> Case:
    everybody = tuple(f"rank{rank}" for rank in range(count))
    return case(kind, summary, ranks(kind, count), hung(symptom, symptom, parties=everybody, **facts))


LACKS = {"culprit": ("rank1",), "victims": ("rank0", "rank2"), "missing": frozenset({1})}

CASES = (
    one_of_three(
        "lacks-one",
        "a rank sleeps, the others are in MPI_Allreduce",
        Waits.SLEEP,
        hung(MISSING, "timer", op="all_reduce", group="MPI_COMM_WORLD", **LACKS),
    ),
    one_of_three(
        "lacks-one-stopped",
        "a rank is stopped, the others are in MPI_Barrier",
        Waits.STOPPED,
        hung(MISSING, "peer.stopped", op="barrier", **LACKS),
    ),
    one_of_three(
        "lacks-one-at-work",
        "a rank computes, the others poll in MPI_Barrier: all three are on the CPU",
        Waits.RUNNING,
        busy(MISSING, ("cpu.busy", "cpu.spin"), culprit=("rank1",), victims=("rank0", "rank2")),
    ),
    case(
        "lacks-one-at-the-end",
        "a rank sleeps, the others are in MPI_Finalize and nap there",
        ranks("lacks-one-at-the-end", 3, rank0=Waits.SLEEP, rank1=Waits.SLEEP, rank2=Waits.SLEEP),
        # One that is met awake may be in it or not; where nobody is seen asleep in it, nothing is said.
        may_withhold(MISSING, "timer", op="finalize", culprit=("rank1",), missing=frozenset({1})),
    ),
    one_of_three(
        "message-never-sent",
        "MPI_Waitall for a message that a sleeping rank does not send",
        Waits.SLEEP,
        hung("p2p.unmatched", "timer", culprit=("rank1",), victims=("rank0", "rank2")),
    ),
    one_of_three(
        "barrier-begun-before",
        "MPI_Wait for an MPI_Ibarrier to which a sleeping rank does not come",
        Waits.SLEEP,
        hung(MISSING, "timer", op="nonblocking collective", **LACKS),
    ),
    asked(
        "barrier-asked-for",
        "MPI_Test and a nap in turn for an MPI_Ibarrier to which a sleeping rank does not come",
        hung(MISSING, "timer", op="nonblocking collective", culprit=("rank1",), missing=frozenset({1})),
    ),
    asked(
        "message-asked-for",
        "MPI_Test and a nap in turn for a message that a sleeping rank does not send",
        hung("p2p.unmatched", "timer", culprit=("rank1",)),
    ),
    case(
        "message-asked-for-at-once",
        "MPI_Test without a nap for a message that a sleeping rank does not send; a third one is in MPI_Barrier",
        ranks("message-asked-for-at-once", 3, rank1=Waits.SLEEP),
        may_withhold(MISSING, "timer", culprit=("rank1",)),
    ),
    asked(
        "barrier-beside-work",
        "MPI_Test of an MPI_Ibarrier, something else, and a nap in turn; another rank sleeps",
        healthy("unknown", "running"),
    ),
    case(
        "round-by-the-clock",
        "all ranks nap in the same loop",
        ranks("round-by-the-clock", 3, rank0=Waits.SLEEP, rank1=Waits.SLEEP, rank2=Waits.SLEEP),
        healthy("idle"),
    ),
    all_of("all-receive", "all receive first, in a ring", 3, "p2p.cycle", cycle=True),
    all_of("all-send", "all send first and wait for the receiver, in a ring", 3, "p2p.cycle", cycle=True),
    all_of("other-operation", "one is in MPI_Bcast, two in MPI_Allreduce", 3, "collective.op_mismatch"),
    all_of(
        "other-root",
        "both are in MPI_Bcast and wait for the other one as its root",
        2,
        "collective.root_mismatch",
    ),
    all_of(
        "reduced-elsewhere",
        "both are in MPI_Reduce and send to the other one as root",
        2,
        "collective.root_mismatch",
    ),
    case(
        "two-roots",
        "two are in MPI_Bcast as its roots; a third one has got its data and sleeps: it has nothing to do with it",
        ranks("two-roots", 3, rank2=Waits.SLEEP),
        healthy("unknown", may_name=("rank0", "rank1")),
    ),
    case(
        "half-lacks-one",
        "a rank of a communicator of two sleeps; the others wait in it and in the world",
        ranks("half-lacks-one", 4, rank1=Waits.SLEEP),
        hung(
            MISSING,
            "timer",
            culprit=("rank1",),
            victims=("rank0", "rank2", "rank3"),
            missing=frozenset({1}),
            group="half",
        ),
    ),
    case(
        "two-groups-lack-one",
        "a rank sleeps, the others are in a barrier between two groups",
        ranks("two-groups-lack-one", 4, rank3=Waits.SLEEP),
        # Of a communicator of two groups the members are not known.
        may_withhold(MISSING, "timer", culprit=("rank3",), victims=("rank0", "rank1", "rank2")),
    ),
    all_of(
        "opposite-order",
        "two ranks use two communicators in opposite order",
        2,
        "collective.group_cycle",
        cycle=True,
    ),
    case(
        "messages-to-and-fro",
        "two ranks send each other messages as fast as they can",
        ranks("messages-to-and-fro", 2),
        healthy("running"),
    ),
    case(
        "full-speed",
        "three ranks do two collectives in turn as fast as they can",
        ranks("full-speed", 3),
        healthy("running"),
    ),
)
