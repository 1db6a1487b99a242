"""Waits that the clock ends, and for signals. usage: timers.py SCENE"""

import ctypes
import os
import signal
import struct
import time

from parts import main, pause, syscall, wait_in

CLOCK_NANOSLEEP, PPOLL = 230, 271
ABSTIME = 1


def nap(clock, *, absolute):
    now = time.clock_gettime(clock) if absolute else 0.0
    request = ctypes.create_string_buffer(struct.pack("=qq", int(now) + 500, 0))
    wait_in("waiter", lambda: syscall(CLOCK_NANOSLEEP, clock, ABSTIME if absolute else 0, request, 0))


def empty_poll():
    request = ctypes.create_string_buffer(struct.pack("=qq", 500, 0))
    wait_in("waiter", lambda: syscall(PPOLL, 0, 0, request, 0, 0))


def timed_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    wait_in("waiter", lambda: signal.sigtimedwait({signal.SIGUSR1}, 500))


def shell_loop():
    os.execvp("sh", ["sh", "-c", "while :; do sleep 300; done"])


def named_shell_loop():
    import announce

    announce.member("waiter")
    shell_loop()


main(
    {
        "relative": lambda: nap(time.CLOCK_MONOTONIC, absolute=False),
        "absolute": lambda: nap(time.CLOCK_MONOTONIC, absolute=True),
        "absolute-realtime": lambda: nap(time.CLOCK_REALTIME, absolute=True),
        "empty-poll": empty_poll,
        "sigtimedwait": timed_signal,
        "pause": lambda: wait_in("waiter", pause),
        "shell-loop": named_shell_loop,
    }
)
