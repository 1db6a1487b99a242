"""Waits for other processes, and processes that others hold. usage: children.py SCENE"""

import ctypes
import os
import signal
import time

from parts import LIBC, LONG_S, checked, child, main, pause, wait_in

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def wait_for_one():
    child("bystander")
    other = child("other")
    wait_in("waiter", lambda: os.waitpid(other, 0))


def wait_for_any():
    child("one")
    child("two")
    wait_in("waiter", lambda: os.waitid(os.P_ALL, 0, os.WEXITED))


def wait_by_pidfd():
    child("bystander")
    fd = os.pidfd_open(child("other"))
    wait_in("waiter", lambda: os.waitid(os.P_PIDFD, fd, os.WEXITED))


def wait_for_group():
    """Of the group of `other`, whom the bystander does not belong to."""
    ready, done = os.pipe()
    child("bystander")
    other = child("other", ready=lambda: (os.setpgid(0, 0), os.write(done, b"x")))
    os.read(ready, 1)
    wait_in("waiter", lambda: os.waitpid(-other, 0))


def traced():
    """The parent stops the child as a debugger does, and then sleeps."""
    there, ready = os.pipe()
    other = child("waiter", lambda: (os.write(ready, b"x"), pause()))
    os.read(there, 1)
    null = ctypes.c_void_p(None)
    checked(LIBC.ptrace(PTRACE_SEIZE, other, null, null))
    checked(LIBC.ptrace(PTRACE_INTERRUPT, other, null, null))
    os.waitpid(other, 0)
    wait_in("tracer", lambda: time.sleep(LONG_S))


def stopped():
    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)

    other = child("waiter", stop)
    wait_in("parent", lambda: os.waitpid(other, 0))


def sleeping():
    child("waiter", pause)
    wait_in("parent", lambda: time.sleep(LONG_S))


def spin():
    while True:
        pass


def spinning():
    wait_in("waiter", spin)


main(
    {
        "wait4": wait_for_one,
        "waitid": wait_for_any,
        "waitid-pidfd": wait_by_pidfd,
        "wait-group": wait_for_group,
        "traced": traced,
        "stopped": stopped,
        "sleeping": sleeping,
        "spinning": spinning,
    }
)
