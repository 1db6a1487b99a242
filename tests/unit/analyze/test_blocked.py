"""Waits are never changed in place: who has one may keep it."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.model.kinds import Edge, Kind, WaitKind

WAIT = Blocked(
    key=(100, 101),
    kind=WaitKind.IO,
    standing=Standing.OPAQUE,
    progress=Progress.UNMOVED,
    cause=Kind.UNKNOWN,
    evidence=("syscall read",),
)


def test_a_changed_wait_is_another_one_with_the_rest_as_it_was() -> None:
    other = changed(WAIT, standing=Standing.FIRM, targets=((100, 102),), edge=Edge.ANY)
    assert other == Blocked(
        key=WAIT.key,
        kind=WAIT.kind,
        standing=Standing.FIRM,
        progress=WAIT.progress,
        cause=WAIT.cause,
        targets=((100, 102),),
        edge=Edge.ANY,
        evidence=WAIT.evidence,
    )
    assert WAIT.standing is Standing.OPAQUE


def test_a_changed_wait_can_be_changed_by_nobody_else() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        changed(WAIT, kind=WaitKind.PIPE).kind = WaitKind.POLL  # type: ignore[misc]
