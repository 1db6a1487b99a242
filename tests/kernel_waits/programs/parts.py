"""What the programs share: children that end with their parent, and system calls that Python does not have."""

import ctypes
import os
import signal
import sys
import time

import announce

LIBC = ctypes.CDLL(None, use_errno=True)
LONG_S = 1000.0


def checked(result):
    """A result of the C library; raises OSError for -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number, *arguments):
    """A bare system call."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return checked(LIBC.syscall(ctypes.c_long(number), *words))


def child(role, work=lambda: time.sleep(LONG_S), *, ready=None):
    """Fork a child that announces itself, works, and ends. `ready` is run in it before it announces itself."""
    pid = os.fork()
    if pid == 0:
        announce.die_with_parent()
        if ready is not None:
            ready()
        announce.member(role)
        work()
        os._exit(0)
    return pid


def wait_in(role, work):
    """Announce this thread, and wait."""
    announce.member(role)
    work()
    sys.exit("the wait has ended")


def pause():
    """Wait for a signal."""
    signal.pause()


def main(what):
    """Run the function that the first argument names, with the others."""
    what[sys.argv[1]](*sys.argv[2:])
