"""Ranks with several process groups of gloo: which group, who of it is missing, and knots over several of them."""

from __future__ import annotations

from dataclasses import replace

from tests.hangs.cases.gloo import missing, missing_one, train
from tests.hangs.facts import Case, Program, Waits, healthy, hung

SLEEPS = Waits.SLEEP
EVERYBODY = tuple(f"rank{rank}" for rank in range(4))


def lacking(
    function: str, summary: str, late: int, ranks: int, *, slow: bool = False, **facts: object
) -> Case:
    """Rank `late` sleeps, and all others wait for it, some of them by way of others."""
    waits = {f"rank{late}": SLEEPS}
    other = f"rank{(late + 1) % ranks}"
    return missing_one(
        f"groups-{function.replace('_', '-')}",
        summary,
        train(ranks=ranks, op=function, **waits),
        missing(late, ranks, "timer", **facts),
        attach=(other, f"rank{late}"),
        slow=slow,
    )


def knot(op: str, summary: str, kind: str, ranks: int, parties: tuple[int, ...], **facts: object) -> Case:
    """Some ranks wait for each other, the others for them."""
    everybody = [f"rank{rank}" for rank in range(ranks)]
    named = tuple(f"rank{rank}" for rank in parties)
    return Case(
        kind=f"groups-{op.replace('_', '-')}",
        summary=summary,
        programs=(train(ranks=ranks, op=op),),
        attach=tuple(everybody),
        facts=hung(
            kind, kind, parties=named, victims=tuple(role for role in everybody if role not in named), **facts
        ),
        torch=True,
    )


def well(op: str, summary: str, waits: Waits, *states: str) -> Case:
    """Nobody may be accused."""
    members = dict.fromkeys(EVERYBODY, waits)
    return Case(
        kind=f"groups-{op.replace('_', '-')}",
        summary=summary,
        programs=(train(ranks=4, op=op, **members),),
        attach=EVERYBODY,
        facts=healthy(*states, may_name=()),
        torch=True,
    )


def unrecorded(case: Case) -> Case:
    """The same where torch keeps no record of operations: groups are known by the locals of frames alone."""
    (program,) = case.programs
    without = replace(program, env={**program.env, "TORCH_FR_BUFFER_SIZE": "0"})
    return replace(case, kind=f"{case.kind}-unrecorded", programs=(without,), slow=True)


def told(kind: str, summary: str, *arguments: str) -> Case:
    """Three ranks with these arguments; rank 1 sleeps."""
    return Case(
        kind=f"groups-{kind}",
        summary=summary,
        programs=(
            Program(
                argv=("{python}", "{programs}/told_ranks.py", *arguments, "{port}"),
                members={"rank0": Waits.LOCK, "rank1": SLEEPS, "rank2": Waits.LOCK},
                ranks=(0, 1, 2),
                variables=False,
            ),
        ),
        attach=("rank0", "rank1", "rank2"),
        facts=missing(1, 3, "timer"),
        torch=True,
    )


TP = lacking(
    "tp_lacks_one",
    "a rank sleeps; one waits for it in the tensor-parallel group, two for those in the data-parallel ones",
    1,
    4,
    op="all_reduce",
    group="tp",
)
RING = knot(
    "three_groups_in_a_ring",
    "three ranks, three groups of two, each waits in another one",
    "collective.group_cycle",
    3,
    (0, 1, 2),
    cycle=True,
)
DIFFER = knot(
    "differ_in_subgroup",
    "two ranks call different operations of their group, the others wait for them in the world",
    "collective.op_mismatch",
    4,
    (2, 3),
)
ASYNC = lacking(
    "async_in_two_groups",
    "work of two groups was begun; the rank that sleeps has come to neither",
    3,
    4,
    missing=frozenset({3}),
    group="dp",
)
OUT_OF_ORDER = lacking(
    "waits_out_of_order",
    "two operations were begun and the second one is waited for",
    1,
    3,
    op="all_gather",
    missing=frozenset({1}),
)
GRID_RING = knot(
    "ring_of_a_grid",
    "four ranks as two by two, two of them use their groups in opposite order",
    "collective.group_cycle",
    4,
    (0, 1, 2, 3),
    cycle=True,
)

CASES = (
    TP,
    unrecorded(TP),
    RING,
    unrecorded(RING),
    DIFFER,
    unrecorded(DIFFER),
    ASYNC,
    unrecorded(ASYNC),
    lacking("functional_in_group", "a functional collective of a group", 2, 4, op="all_reduce", group="tp"),
    lacking("objects_of_group", "broadcast_object_list of a group", 0, 4, slow=True, group="tp"),
    replace(
        lacking("pipeline_lacks_one", "the middle stage of a pipeline sleeps", 1, 3),
        facts=hung("p2p.unmatched", "timer", culprit=("rank1",), victims=("rank0", "rank2")),
    ),
    lacking("receive_in_group", "recv from a rank by its number in the group", 2, 4, missing=None, slow=True),
    replace(
        lacking("new_group_lacks_one", "new_group is called by all but one", 2, 3, missing=None),
        facts=hung("rendezvous.missing_rank", "timer", culprit=("rank2",), victims=("rank0", "rank1")),
        programs=(
            train(ranks=3, op="new_group_lacks_one", rank0=Waits.POLL, rank1=Waits.POLL, rank2=SLEEPS),
        ),
    ),
    knot(
        "uneven_batches",
        "one rank has a batch less and is at the barrier, three are in the reduction of DDP",
        "collective.op_mismatch",
        4,
        (0, 1, 2, 3),
    ),
    knot(
        "receive_and_barrier",
        "one wants a message, the other one waits in a barrier",
        "p2p.unmatched",
        2,
        (0, 1),
        cycle=True,
    ),
    knot(
        "other_tag",
        "a message with another tag than the one that is waited for",
        "p2p.unmatched",
        2,
        (0, 1),
        cycle=True,
    ),
    replace(
        knot(
            "five_do_one_more",
            "five of eight ranks take a branch with one call more",
            "collective.op_mismatch",
            8,
            tuple(range(8)),
        ),
        slow=True,
    ),
    lacking("fsdp_lacks_one", "the gathering of a sharded model", 1, 3, slow=True, missing=frozenset({1})),
    lacking("dtensor_lacks_one", "a DTensor over one dimension of a mesh", 1, 4, missing=frozenset({1})),
    knot(
        "roots_differ",
        "both wait in broadcast for the other one as its root",
        "collective.root_mismatch",
        2,
        (0, 1),
    ),
    replace(
        lacking("key_never_set", "a key of the store", 0, 3),
        programs=(train(ranks=3, op="key_never_set", rank0=SLEEPS, rank1=Waits.POLL, rank2=Waits.POLL),),
        facts=hung(
            "rendezvous.missing_rank",
            "timer",
            culprit=("rank0",),
            victims=("rank1", "rank2"),
            says=("for the key ready of the store",),
        ),
    ),
    replace(
        lacking("keys_of_ranks", "keys of the store, one of each rank", 2, 3),
        programs=(train(ranks=3, op="keys_of_ranks", rank0=Waits.POLL, rank1=Waits.POLL, rank2=SLEEPS),),
        facts=hung(
            "rendezvous.missing_rank",
            "timer",
            culprit=("rank2",),
            victims=("rank0", "rank1"),
            says=("for the keys loaded/0, loaded/1, loaded/2 of the store",),
        ),
    ),
    replace(
        lacking("key_in_a_file", "a key of a store that is a file", 0, 3),
        programs=(
            train(
                ranks=3, op="key_in_a_file", path="{scratch}/store", rank0=SLEEPS, rank1=SLEEPS, rank2=SLEEPS
            ),
        ),
        facts=hung(
            "rendezvous.missing_rank",
            "timer",
            culprit=("rank0",),
            victims=("rank1", "rank2"),
            says=("for the key ready of the store",),
        ),
    ),
    Case(
        kind="groups-key-of-an-outsider",
        summary="a key of the store that nobody of the ranks is known to set, while one of them sleeps",
        programs=(train(ranks=3, op="key_of_an_outsider", rank0=SLEEPS, rank1=Waits.POLL, rank2=Waits.POLL),),
        attach=("rank0", "rank1"),
        facts=healthy("unknown", "idle"),
        torch=True,
    ),
    OUT_OF_ORDER,
    unrecorded(OUT_OF_ORDER),
    GRID_RING,
    unrecorded(GRID_RING),
    replace(
        knot(
            "one_call_too_many",
            "one rank does an all_reduce more; the others have done all of theirs and wait for a signal",
            "collective.missing_rank",
            3,
            (0, 1, 2),
        ),
        programs=(train(ranks=3, op="one_call_too_many", rank0=SLEEPS, rank1=SLEEPS),),
        facts=hung("collective.missing_rank", "idle", parties=("rank0", "rank1", "rank2")),
    ),
    knot(
        "sharded_step_skipped",
        "a rank leaves out a step of a model of FSDP2",
        "collective.op_mismatch",
        3,
        (0, 1, 2),
    ),
    knot(
        "placements_differ",
        "a DTensor is replicated from shards on two ranks, from sums on the third",
        "collective.op_mismatch",
        3,
        (0, 1, 2),
    ),
    replace(
        lacking(
            "stage_stuck", "the middle stage of torch's pipeline schedule sleeps in its forward pass", 1, 3
        ),
        facts=hung("p2p.unmatched", "timer", culprit=("rank1",), victims=("rank0", "rank2")),
    ),
    Case(
        kind="groups-spawned-ranks",
        summary="ranks that only their own arguments tell who they are",
        programs=(
            Program(
                argv=("{python}", "{programs}/spawned_ranks.py", "{port}"),
                members={"launcher": Waits.ANY, "rank0": Waits.LOCK, "rank1": SLEEPS, "rank2": Waits.LOCK},
            ),
        ),
        attach=("rank0", "launcher"),
        facts=missing(1, 3, "timer"),
        torch=True,
    ),
    told(
        "told-by-option",
        "only an option tells each its rank, each in a session of its own",
        "--rank",
        "{rank}",
        "--world-size",
        "3",
    ),
    told("told-by-number", "only a number among the arguments tells the rank", "{rank}", "3"),
    Case(
        kind="groups-two-jobs-of-one-command",
        summary="two jobs of one command line in one session: only their connections tell them apart",
        programs=(
            Program(
                argv=("{python}", "{programs}/told_ranks.py", "both"),
                members={
                    "rank0": Waits.LOCK,
                    "rank1": SLEEPS,
                    "other.rank0": Waits.LOCK,
                    "other.rank1": SLEEPS,
                },
            ),
        ),
        attach=("rank0", "rank1"),
        facts=missing(1, 2, "timer"),
        torch=True,
    ),
    Case(
        kind="groups-no-store",
        summary="the address of the store belongs to nobody",
        programs=(
            Program(
                argv=("{python}", "{programs}/join_job.py"),
                members={"rank0": Waits.ASLEEP, "rank1": Waits.ASLEEP},
                ranks=(0, 1),
                env={"MASTER_ADDR": "192.0.2.1"},
            ),
        ),
        attach=("rank0", "rank1"),
        facts=hung("rendezvous.unreachable", "rendezvous.unreachable", parties=("rank0", "rank1")),
        torch=True,
    ),
    well("groups_at_full_speed", "two groups and a pipeline at work", Waits.ANY, "running", "slow", "busy"),
    well("idle_group_engine", "ranks that wait for requests, and their groups", Waits.ASLEEP, "idle"),
)
