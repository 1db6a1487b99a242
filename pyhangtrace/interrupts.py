"""Ctrl-C and SIGTERM as a wish to end, for commands that run until somebody has enough."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one ends the program as ever."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, Any] = {}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupted(_number: int, _frame: object) -> None:
        stop.set()
        as_before()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.getsignal(number)
        signal.signal(number, interrupted)
    try:
        yield stop
    finally:
        as_before()
