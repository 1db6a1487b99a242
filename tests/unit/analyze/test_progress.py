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


def test_a_condition_of_python_that_is_waited_for_anew_is_the_same_in_spite_of_its_new_lock() -> None:
    frames = (b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("main"))
    first = b.on_python_lock(100, frames=frames, timeout_s=0.4, asleep_for_s=0.3)
    assert first.lock is not None
    fresh = b.replace(first.lock, address=0x6600, uaddr=0x6600)
    last = b.replace(b.moved(first), asleep_for_s=0.1, lock=fresh)
    assert progress((first, last), TIMES) is Progress.REARMED
    plain = (b.py("main"),)
    first, last = b.replace(first, frames=plain), b.replace(last, frames=plain)
    assert progress((first, last), TIMES) is Progress.MOVING


def test_one_that_has_run_has_moved_however_long_it_seems_to_have_slept() -> None:
    """After a machine stood still for a while all sleeps look long."""
    before = b.asleep(100, seconds=0.2, asleep_for_s=9.0)
    after = b.replace(b.moved(before), asleep_for_s=9.5, frames=(b.py("next_step"),))
    assert progress((before, after), (0.0, 0.5)) is Progress.MOVING
    assert progress((before, b.replace(before, asleep_for_s=9.5)), (0.0, 0.5)) is Progress.UNMOVED
