"""Waits are changed by an own function, since that is most of what finding them costs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

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


def test_a_changed_wait_is_what_replace_makes_of_it() -> None:
    other = changed(WAIT, standing=Standing.FIRM, targets=((100, 102),), edge=Edge.ANY)
    assert other == replace(WAIT, standing=Standing.FIRM, targets=((100, 102),), edge=Edge.ANY)
    assert WAIT.standing is Standing.OPAQUE


def test_a_changed_wait_can_be_changed_by_nobody_else() -> None:
    with pytest.raises(FrozenInstanceError):
        changed(WAIT, kind=WaitKind.PIPE).kind = WaitKind.POLL  # type: ignore[misc]
