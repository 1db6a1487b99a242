"""The hanging jobs: a plan, over a transport, on a release of NCCL; and who else has a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.hangs.facts import Case, Facts, Program, Waits, healthy, hung, may_withhold
from tests.hangs.processes import Running, running
from tests.nccl import log, plans
from tests.nccl.bench import Plan, Runtime, Transport, case, program
from tests.nccl.wheels import ALWAYS, FURTHER, Wheel


def _or_unknown(facts: Facts) -> Facts:
    return replace(facts, state=facts.state | {"unknown"})


_HOLDER = Program(
    argv=("{python}", "{programs}/hold_file_lock.py", "flock", "{scratch}/lock"),
    members={"holder": Waits.SLEEP},
)


@dataclass(frozen=True, slots=True)
class Kind:
    """`before` is started first; `jobs` are started side by side, each with this prefix to its members' roles. `facts`
    are what the report of the first job must hold, `operations` what it must name.
    """

    name: str
    plan: Callable[[], Plan]
    facts: Facts
    before: tuple[Program, ...] = ()
    operations: frozenset[str] = frozenset({"all_reduce"})
    jobs: tuple[str, ...] = ("",)


def _parties(kind: str) -> Facts:
    return hung(kind, kind, parties=("rank0", "rank1", "rank2"))


_LOCKED = {"culprit": ("rank2",), "victims": ("rank0", "rank1"), "may_name": ("holder",), "holder": "holder"}
_OTHER_OP = _parties("collective.op_mismatch")
_BOTH = frozenset({"all_reduce", "all_gather"})
KINDS = (
    Kind(
        "skipped",
        plans.skipped,
        hung(
            "collective.missing_rank",
            "file_lock.held",
            missing=frozenset({2}),
            op="all_reduce",
            **_LOCKED,
        ),
        before=(_HOLDER,),
    ),
    Kind("other op", plans.other_op, _OTHER_OP, operations=_BOTH),
    # Until 2.22 nothing in memory tells the size of what was launched.
    Kind("other count", plans.other_count, _or_unknown(_parties("collective.size_mismatch"))),
    # Seen where the sender's stack is: it is often met on the CPU.
    Kind(
        "send without recv",
        plans.send_without_recv,
        hung(
            ("p2p.unmatched", "file_lock.held"),
            "file_lock.held",
            culprit=("holder", "rank1"),
            may_name=("rank1", "holder"),
        ),
        before=(_HOLDER,),
        operations=frozenset({"send"}),
    ),
    Kind(
        "unanswered",
        plans.unanswered,
        hung(
            "p2p.unmatched",
            "file_lock.held",
            culprit=("rank1",),
            victims=("rank0",),
            may_name=("holder",),
        ),
        before=(_HOLDER,),
        operations=frozenset({"send"}),
    ),
    Kind("exchanging", plans.exchanging, healthy("unknown"), operations=frozenset()),
    Kind(
        "absent",
        plans.absent,
        hung("rendezvous.missing_rank", "file_lock.held", **_LOCKED),
        before=(_HOLDER,),
        operations=frozenset(),
    ),
    Kind(
        "stopped",
        plans.stopped,
        hung(
            "collective.missing_rank",
            "peer.stopped",
            culprit=("rank2",),
            victims=("rank0", "rank1"),
            missing=frozenset({2}),
            op="all_reduce",
        ),
    ),
    Kind(
        "killed",
        plans.killed,
        # Whose child nobody knows need not be of the job: where the runner of the tests is no launcher, it is withheld.
        may_withhold(
            "collective.missing_rank",
            ("peer.exited", "peer.oom_killed"),
            culprit=("rank2",),
            victims=("rank0", "rank1"),
            missing=frozenset({2}),
            op="all_reduce",
        ),
    ),
    Kind(
        "crossed",
        plans.crossed,
        hung("collective.group_cycle", "collective.group_cycle", parties=("rank0", "rank1"), cycle=True),
    ),
    # Its one thread waits for its stream, which waits for what only that thread could launch.
    Kind("in one process", plans.in_one_process, healthy("unknown")),
    # Both listen on NCCL's port for RAS, from 2.24 on.
    Kind("two jobs", plans.other_op, _OTHER_OP, operations=_BOTH, jobs=("", "other.")),
)


@dataclass(frozen=True, slots=True)
class Hang:
    """One of the hanging jobs."""

    kind: Kind
    wheel: Wheel
    transport: Transport

    def case(self, runtime: Runtime, logs: Path, facts: Facts) -> Case:
        """Raises NoWheel."""
        plan = self.kind.plan()
        programs = [
            program(plan, self.wheel, runtime, transport=self.transport, logs=logs, prefix=prefix)
            for prefix in self.kind.jobs
        ]
        return case(self.kind.name, [*self.kind.before, *programs], facts)

    @contextmanager
    def running(self, runtime: Runtime, logs: Path) -> Iterator[Running]:
        """Starts it; on entry every rank is where its plan says, and has asked NCCL for all that comes before.

        Raises NotReached, NoWheel.
        """
        facts = self.kind.facts
        if self.kind.plan is plans.absent and self.wheel.minor < 21:
            # What is being set up is not found, and its ranks poll as in a program that works: only the lock is seen.
            facts = hung("file_lock.held", "file_lock.held", culprit=("holder",), may_name=("rank2",))
        if self.kind.plan is plans.unanswered and self.wheel.minor < 27:
            # Of what was sent nothing is kept: only the lock is seen.
            facts = hung("file_lock.held", "file_lock.held", culprit=("holder",), may_name=("rank1",))
        with running(self.case(runtime, logs, facts)) as stage:
            log.await_calls(logs, self.calls_expected(stage))
            yield stage

    def calls_expected(self, stage: Running) -> dict[int, int]:
        """How many operations each process asks NCCL for."""
        plan = self.kind.plan()
        return {
            stage.members[f"{prefix}rank{rank}"].pid: sum(map(_operations, steps))
            for prefix in self.kind.jobs
            for rank, steps in plan.parts.items()
        }


def _operations(step: object) -> int:
    assert isinstance(step, list)
    if step[0] == "group":
        return sum(map(_operations, step[1:]))
    return int(step[0] not in ("join", "join_all", "synchronize", "lock", "stop", "die"))


def parameters() -> list[object]:
    """Every kind on every release: the two that always run, each over one transport a kind, are not slow."""
    found = []
    for wheel in (*ALWAYS, *FURTHER):
        for number, kind in enumerate(KINDS):
            for transport in Transport:
                quick = wheel in ALWAYS and list(Transport)[(number + ALWAYS.index(wheel)) % 2] is transport
                marks = [pytest.mark.nccl, pytest.mark.timeout(900)]
                if not quick:
                    marks.append(pytest.mark.slow)
                name = f"{wheel.name}-{kind.name}-{transport.value}".replace(" ", "_")
                found.append(pytest.param(Hang(kind, wheel, transport), id=name, marks=marks))
    return found
