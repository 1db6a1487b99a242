"""How a program says which of its threads is who."""

import ctypes
import json
import os
import signal
import threading


def member(role, pid=None):
    """Announce this thread, just before it goes where the case wants it, or another process."""
    role = os.environ.get("HANGS_PREFIX", "") + role
    line = {"role": role, "pid": pid or os.getpid(), "tid": pid or threading.get_native_id()}
    fd = os.open(os.environ["HANGS_ANNOUNCE"], os.O_WRONLY)
    os.write(fd, json.dumps(line).encode() + b"\n")
    os.close(fd)


def die_with_parent():
    """For a child: end when the process that made it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
