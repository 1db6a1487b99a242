"""Which children wait4(2) and waitid(2) ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.scene import Scene

CHILD_WAITS = ("wait4", "waitid")

# waitid(2)
_P_PID, _P_PGID, _P_PIDFD = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """One child, by number or by its descriptor; those of a process group, 0 for the caller's own; else any."""

    pid: int | None = None
    group: int | None = None
    pidfd: int | None = None


def wanted_children(call: str, arguments: Sequence[int]) -> Wanted:
    """By the arguments of one of `CHILD_WAITS`."""
    if len(arguments) < 2:
        return Wanted()
    first, second = _signed(arguments[0]), _signed(arguments[1])
    if call == "waitid":
        return {
            _P_PID: Wanted(pid=second),
            _P_PGID: Wanted(group=second),
            _P_PIDFD: Wanted(pidfd=second),
        }.get(first, Wanted())
    if first > 0:
        return Wanted(pid=first)
    return Wanted(group=-first) if first != -1 else Wanted()


def in_group(scene: Scene, pid: int, group: int) -> tuple[int, ...]:
    """Living children of a process that are in this process group; none where the number may be one of another PID
    namespace.
    """
    caller = scene.processes.get(pid)
    number = group or (caller.pgid if caller is not None else None)
    children = holders.living_children(scene, pid)
    return tuple(child for child in children if scene.processes[child].pgid == number)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
