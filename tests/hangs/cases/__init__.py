"""All cases, family by family. A kind is named once."""

from tests.hangs.cases import (
    bystanders,
    controls,
    frameworks,
    gloo,
    groups,
    ipc,
    launchers,
    locks,
    mpi,
    mpich,
    multiproc,
    servers,
    timed,
)
from tests.hangs.facts import Case

CASES: tuple[Case, ...] = (
    *gloo.CASES,
    *groups.CASES,
    *locks.CASES,
    *timed.CASES,
    *bystanders.CASES,
    *launchers.CASES,
    *ipc.CASES,
    *multiproc.CASES,
    *mpi.CASES,
    *mpich.CASES,
    *frameworks.CASES,
    *servers.CASES,
    *controls.CASES,
)


def find(kind: str) -> Case:
    """Return the case of that kind. Raises KeyError when there is none."""
    for case in CASES:
        if case.kind == kind:
            return case
    raise KeyError(kind)
