"""Deadlocks over recorded owners below ordinary launchers, which look after the job, and may end it, but do not help
it: each is proven, and no launcher is accused.
"""

from __future__ import annotations

from dataclasses import replace

from tests.hangs.cases.locks import PYTHON, cycle
from tests.hangs.facts import Case, Program, Waits

FILES = ("{programs}/file_cycle.c", "{scratch}", "alone")
ROBUST = ("{programs}/ring.c", "robust")
NORMAL = ("{programs}/ring.c", "normal")
RECURSIVE = ("{programs}/ring.c", "recursive")
RLOCKS = (PYTHON, "{programs}/thread_locks.py", "rlock-cycle")
PROVEN = replace(cycle(("debit", "credit")), confidence=frozenset({"proven"}))


def by(how: str) -> tuple[str, ...]:
    return (PYTHON, "{programs}/launch.py", how)


def below(
    launcher: str,
    command: tuple[str, ...],
    program: tuple[str, ...],
    *,
    slow: bool = False,
    torch: bool = False,
    needs: tuple[str, ...] = (),
) -> Case:
    waits = Waits.FILE_LOCK if program is FILES else Waits.LOCK
    name = "rlocks" if program is RLOCKS else "files" if program is FILES else program[-1]
    return Case(
        kind=f"{name}-below-{launcher}",
        summary=f"two wait for each other below {launcher}",
        programs=(Program(argv=(*command, *program), members={"debit": waits, "credit": waits}),),
        attach=("debit", "credit"),
        facts=PROVEN,
        slow=slow,
        torch=torch,
        needs=needs,
    )


SHELL = ("bash", "-c", '"$@" & wait', "bash")
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--no-python")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "1")

CASES = (
    below("timeout", ("timeout", "1h"), FILES),
    below("shell", SHELL, RLOCKS),
    below("watch", by("watch"), FILES),
    below("limit", by("limit"), RLOCKS),
    *(
        below(how, by(how), program, slow=True)
        for how, program in (
            ("wait", ROBUST),
            ("communicate", RECURSIVE),
            ("poll", FILES),
            ("tick", ROBUST),
            ("tick", NORMAL),
            ("watch", RLOCKS),
            ("join", RECURSIVE),
            ("pool", FILES),
            ("asyncio", ROBUST),
        )
    ),
    below("spawn", by("spawn"), RLOCKS, slow=True, torch=True),
    below("torchrun", TORCHRUN, FILES, slow=True, torch=True),
    below("torchrun", TORCHRUN, RLOCKS, slow=True, torch=True),
    below("mpirun", MPIRUN, ROBUST, slow=True, needs=("mpirun",)),
)
