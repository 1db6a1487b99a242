"""The hanging jobs: a plan, over a transport, on a release of NCCL; and who else has a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hangs.facts import Case, Facts, Program, Waits, hung
from tests.hangs.processes import Running, running
from tests.nccl import log, plans
from tests.nccl.bench import Plan, Runtime, Transport, case, program
from tests.nccl.wheels import ALWAYS, FURTHER, Wheel

_HOLDER = Program(
    argv=("{python}", "{programs}/hold_file_lock.py", "flock", "{scratch}/lock"),
    members={"holder": Waits.SLEEP},
)


@dataclass(frozen=True, slots=True)
class Kind:
    """`before` is started first; `jobs` are started side by side, each with this prefix to its members' roles."""

    name: str
    plan: Callable[[], Plan]
    before: tuple[Program, ...] = ()
    jobs: tuple[str, ...] = ("",)


KINDS = (
    Kind("skipped", plans.skipped, before=(_HOLDER,)),
    Kind("other op", plans.other_op),
    Kind("other count", plans.other_count),
    Kind("send without recv", plans.send_without_recv),
    Kind("absent", plans.absent),
    Kind("stopped", plans.stopped),
    Kind("crossed", plans.crossed),
    Kind("in one process", plans.in_one_process),
    # Both listen on NCCL's port for RAS, from 2.24 on.
    Kind("two jobs", plans.other_op, jobs=("", "other.")),
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
        with running(self.case(runtime, logs, hung(None, None))) as stage:
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
    return int(step[0] not in ("join", "join_all", "synchronize", "lock", "stop", "pause"))


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
