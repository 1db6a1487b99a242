"""Calls that nothing but the clock ends."""

from __future__ import annotations

from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.threads import ThreadSample

SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})

# Where each call has the number of its descriptors. Before Python 3.11 time.sleep() is a select() of none.
_COUNTS = {"select": 0, "pselect6": 0, "poll": 1, "ppoll": 1}

MAY_SLEEP = SLEEPS | _COUNTS.keys()


def is_sleep(scene: Scene, sample: ThreadSample) -> bool:
    """Whether a thread sleeps until its time is over."""
    name = scene.syscall(sample)
    if name in SLEEPS:
        return True
    at = _COUNTS.get(name or "")
    if at is None or sample.io_fds or sample.timeout_s is None:
        return False
    return len(sample.args) <= at or sample.args[at] == 0
