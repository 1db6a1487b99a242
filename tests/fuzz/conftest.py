"""Evidence of real programs, taken once: what the fuzzers cut up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pyhangtrace.model.codec import unpack
from pyhangtrace.model.evidence import Evidence
from tests.generated.case import chain_roles
from tests.generated.plan import Health, draw
from tests.generated.program import member, straggler
from tests.generated.trial import try_plan

#: Seeds that need no PyTorch and between them hold most kinds of waits; the last ones are well.
SEEDS = (1, 4, 11, 16, 21, 24, 28, 32, 37, 39, 8, 17)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Evidence, and the processes that are to blame for what it shows (the straggler at most, if the job is well)."""

    name: str
    evidence: Evidence
    to_blame: frozenset[int]


@pytest.fixture(scope="session")
def recorded() -> tuple[Recorded, ...]:
    found = []
    for seed in SEEDS:
        plan = draw(seed, torch=False)
        trial = try_plan(plan)
        assert trial.evidence is not None, trial.judgement.reasons
        roles: tuple[str, ...] = ()
        if plan.late is not None:
            roles = chain_roles(plan)
        elif plan.health is Health.STRAGGLER:
            roles = (member(plan, straggler(plan)),)
        blame = frozenset(trial.members[role].pid for role in roles)
        found.append(Recorded(f"{seed}: {trial.summary}", unpack(trial.evidence), blame))
    return tuple(found)
