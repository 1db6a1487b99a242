"""A wait with a time limit that is taken up again is the same wait; one that ended early is not."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze.progress import Progress, progress
from tests.unit.analyze import builders as b

TIMES = (0.0, 0.2)


@pytest.mark.parametrize(
    ("asleep_for_s", "expected"),
    [
        (4.9, Progress.REARMED),  # five seconds were over between the looks
        (2.0, Progress.MOVING),  # something ended it before its time
    ],
)
def test_a_long_poll_that_was_due(asleep_for_s: float, expected: Progress) -> None:
    first = b.on_fd(100, fd=5, timeout_s=5.0, asleep_for_s=asleep_for_s)
    last = b.replace(b.moved(first), asleep_for_s=0.1)
    assert progress((first, last), TIMES) is expected


def test_a_poll_at_another_place_has_moved() -> None:
    first = b.on_fd(100, fd=5, timeout_s=5.0, asleep_for_s=4.9, frames=(b.py("one", line=1),))
    last = b.replace(b.moved(first), asleep_for_s=0.1, frames=(b.py("one", line=2),))
    assert progress((first, last), TIMES) is Progress.MOVING
