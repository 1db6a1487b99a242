"""Waiting for a moment in which a thread is asleep: what is on its stack can be told by where it sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable


def at_rest(stack_pointer: Callable[[], int | None], until: float, *, again_s: float) -> int | None:
    """Where a thread sleeps, as soon as it does: `stack_pointer` says None while it is awake, and is asked again after
    `again_s` seconds. None: not before the time was over (`time.monotonic`).
    """
    while (pointer := stack_pointer()) is None and time.monotonic() < until:
        time.sleep(again_s)
    return pointer
