"""Ranks that a framework starts or joins. They are skipped where the framework is not installed."""

from __future__ import annotations

from tests.hangs.cases.gloo import missing
from tests.hangs.facts import Case, Program, Waits, hung

COUNT = 3
_ROLES = [f"rank{rank}" for rank in range(COUNT)]
_MEMBERS = {**dict.fromkeys(_ROLES, Waits.LOCK), f"rank{COUNT - 1}": Waits.SLEEP}

CASES = (
    Case(
        kind="ray-actor-sleeps",
        summary="actors of Ray are ranks of a group of gloo, and one of them sleeps",
        programs=(
            Program(
                argv=("{python}", "{programs}/ray_workers.py", str(COUNT), "{port}", "{scratch}/ray"),
                members={"driver": Waits.ANY, **_MEMBERS},
                env={"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"},
            ),
        ),
        # The raylet has started some of them ahead, and nothing but their connections tells whose they are.
        attach=("rank0", "rank1", "rank2", "driver"),
        facts=missing(COUNT - 1, COUNT, "timer", op="all_reduce"),
        torch=True,
        modules=("ray",),
        slow=True,
    ),
    *(
        Case(
            kind=f"jax-{kind}",
            summary=summary,
            programs=tuple(
                Program(
                    argv=("{python}", "{programs}/jax_ranks.py", str(rank), str(COUNT), "{port}", kind),
                    # They wait for each other before they announce themselves.
                    members={**_MEMBERS, f"rank{COUNT - 1}": last} if rank == COUNT - 1 else {},
                )
                for rank in range(COUNT)
            ),
            attach=("rank0", "rank2"),
            facts=facts,
            modules=("jax",),
            slow=True,
        )
        for kind, summary, last, facts in (
            (
                "process-sleeps",
                "processes of JAX gather on the CPU, and one of them sleeps",
                Waits.SLEEP,
                hung(
                    "collective.missing_rank",
                    "timer",
                    culprit=("rank2",),
                    victims=("rank0", "rank1"),
                    op="all_gather",
                ),
            ),
            (
                "process-raises",
                "processes of JAX gather on the CPU, and one of them has failed and waits for the others to end",
                Waits.LOCK,
                hung(
                    "collective.op_mismatch",
                    "collective.op_mismatch",
                    parties=("rank0", "rank1", "rank2"),
                ),
            ),
        )
    ),
)
