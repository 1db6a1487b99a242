"""How a window is ended early."""

from __future__ import annotations

import os
import signal

import pytest

from pyhangtrace.interrupts import interruptible


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_the_first_signal_ends_the_window_and_the_second_the_program(how: signal.Signals) -> None:
    class Ended(Exception):
        pass

    def ends(_number: int, _frame: object) -> None:
        raise Ended

    before = {number: signal.signal(number, ends) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with interruptible() as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), how)
            assert stop.wait(timeout=20)
            with pytest.raises(Ended):
                os.kill(os.getpid(), how)
        with interruptible() as stop:
            pass
        with pytest.raises(Ended):
            os.kill(os.getpid(), how)
        assert not stop.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
