"""Of whom a rule that says what a thread waits for can know anything, so that it is asked of no others.

Most threads have a lock, or a system call of their own, or a call of a library, and of some thirty rules two or three
are about that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyhangtrace.analyze.blocked import Blocked
from pyhangtrace.analyze.calls import Meaning
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.threads import ThreadSample

# The draft with what the thread waits for, None if it is something else.
Rule = Callable[[Scene, ThreadSample, Blocked], "Blocked | None"]


class Traits(NamedTuple):
    """What of a thread says which rules may know it. `lock` is the kind of the lock that it sleeps on, `syscall` the
    name of its system call, `in_gpu` whether it is in a GPU's driver.
    """

    lock: str | None
    call: Meaning | None
    syscall: str | None
    in_gpu: bool
    runs: bool


Asked = Callable[[Traits], bool]


def anybody(_: Traits) -> bool:
    """Of all threads."""
    return True


def runs(traits: Traits) -> bool:
    """Of those on the CPU."""
    return traits.runs


def in_gpu(traits: Traits) -> bool:
    """Of those in a GPU's driver."""
    return traits.in_gpu


def on_lock(*kinds: str) -> Asked:
    """Of those that sleep on a lock of one of these kinds; of any, if none is named. A kind with a star is a start."""
    starts = tuple(kind.removesuffix("*") for kind in kinds if kind.endswith("*"))
    return lambda traits: (
        traits.lock is not None and (not kinds or traits.lock in kinds or traits.lock.startswith(starts))
    )


def in_call(*meanings: Meaning) -> Asked:
    """Of those in a call of a library with one of these meanings."""
    return lambda traits: traits.call in meanings


def in_syscall(*names: str) -> Asked:
    """Of those in one of these system calls."""
    return lambda traits: traits.syscall in names


def either(one: Asked, other: Asked) -> Asked:
    """Of those that one of two rules would be asked of."""
    return lambda traits: one(traits) or other(traits)
