"""Ranks that a framework starts or joins. They are skipped where the framework is not installed."""

from __future__ import annotations

from tests.hangs.cases.gloo import missing
from tests.hangs.facts import Case, Program, Waits, may_withhold

COUNT = 3
_ROLES = [f"rank{rank}" for rank in range(COUNT)]
# Nothing that is read says which process of JAX is which.
_PROCESSES = [f"process{rank}" for rank in range(COUNT)]
_MEMBERS = {**dict.fromkeys(_ROLES, Waits.LOCK), f"rank{COUNT - 1}": Waits.SLEEP}
_OF_JAX = {**dict.fromkeys(_PROCESSES, Waits.LOCK), _PROCESSES[-1]: Waits.SLEEP}

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
    Case(
        kind="jax-process-sleeps",
        summary="processes of JAX gather on the CPU, and one of them sleeps",
        programs=tuple(
            Program(
                argv=("{python}", "{programs}/jax_ranks.py", str(rank), str(COUNT), "{port}"),
                # They wait for each other before they announce themselves.
                members=_OF_JAX if rank == COUNT - 1 else {},
            )
            for rank in range(COUNT)
        ),
        attach=("process0", "process2"),
        # Which of the processes take part in an operation of XLA is not known: it may be withheld.
        facts=may_withhold(
            "collective.missing_rank", "timer", culprit=("process2",), victims=("process0", "process1")
        ),
        modules=("jax",),
        slow=True,
    ),
)
