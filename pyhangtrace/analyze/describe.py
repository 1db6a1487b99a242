"""Evidence lines of a wait: short, in the kernel's or the library's own words."""

from __future__ import annotations

from pyhangtrace.analyze.calls import Call
from pyhangtrace.analyze.child_waits import CHILD_WAITS, wanted_children
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.threads import ThreadSample

_FUTEX_OPS = {0: "FUTEX_WAIT", 6: "FUTEX_LOCK_PI", 9: "FUTEX_WAIT_BITSET", 13: "FUTEX_LOCK_PI2"}

# Calls whose first argument is a descriptor worth showing.
_WITH_FD = frozenset(
    [
        "read",
        "write",
        "readv",
        "writev",
        "recvfrom",
        "recvmsg",
        "sendto",
        "sendmsg",
        "accept",
        "accept4",
        "connect",
        "flock",
        "fcntl",
        "ioctl",
        "fsync",
        "epoll_wait",
        "epoll_pwait",
    ]
)


def describe_syscall(scene: Scene, sample: ThreadSample) -> str | None:
    """The system call a thread is blocked in, with the argument that identifies what it waits for."""
    if sample.syscall is None:
        return None
    if sample.syscall == -1:
        return f"blocked outside a system call, in {sample.wchan}" if sample.wchan else None
    name = scene.syscall(sample) or f"number {sample.syscall}"
    if name == "futex" and sample.args:
        op = _FUTEX_OPS.get(sample.args[1] & 0x7F, "") if len(sample.args) > 1 else ""
        return f"syscall futex({sample.args[0]:#x}{', ' + op if op else ''})"
    if name in _WITH_FD and sample.args:
        facts = scene.fds.get((sample.pid, sample.args[0]))
        return f"syscall {name}({sample.args[0]}{': ' + facts.target if facts and facts.target else ''})"
    if name in CHILD_WAITS and len(sample.args) > 1:
        return f"syscall {name}({_asked_for(name, sample)})"
    if sample.path is not None:
        return f"syscall {name}({sample.path})"
    if sample.timeout_s is not None:
        return f"syscall {name}, {sample.timeout_s:g} s"
    return f"syscall {name}"


def _asked_for(name: str, sample: ThreadSample) -> str:
    wanted = wanted_children(name, sample.args)
    if wanted.pidfd is not None:
        return f"pidfd {wanted.pidfd}"
    if wanted.pid is not None:
        return f"pid {wanted.pid}"
    if wanted.group is not None:
        return f"process group {wanted.group}" if wanted.group else "its own process group"
    return "any child"


def describe_lock(sample: ThreadSample) -> str | None:
    """What memory says about the lock."""
    lock = sample.lock
    if lock is None:
        return None
    words = f"{lock.kind} at {lock.address:#x}"
    if lock.owner_tid:
        words += f", owner {lock.owner_tid}"
        if lock.owner_from:
            words += f" ({lock.owner_from})"
    if lock.problem:
        words += f"; {lock.problem}"
    return words


def describe_call(call: Call | None) -> str | None:
    """The frame that says what the wait is."""
    if call is None:
        return None
    where = f" ({call.frame.file.rpartition('/')[2]}:{call.frame.line})" if call.frame.file else ""
    return f"frame {call.frame.function.split('(')[0]}{where}"
