"""How much room there is in /dev/shm, as the processes themselves see it: a container has one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.memory import ShmSpace

SHM_SPACE_TASK = "shm_space"
_FOLDER = "/dev/shm"


def shm_space_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (device, size, free bytes) of the /dev/shm that each process sees; None if it has none."""
    for pid in pids:
        progress(pid)
        folder = f"{state.proc_root}/{pid}/root{_FOLDER}"
        try:
            about = os.statvfs(folder)
            device = os.stat(folder).st_dev
        except OSError:
            yield pid, None
            continue
        yield pid, (device, about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize)


def collect(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> tuple[ShmSpace, ...]:
    """The different ones, the fullest first."""
    answers = reader.run(SHM_SPACE_TASK, pids, deadline_s=deadline_s)
    seen: dict[int, tuple[int, int]] = {}
    users: dict[int, list[int]] = {}
    for pid, about in answers.values.items():
        if about is not None and about[1]:
            device, size, free = about
            seen[device] = (size, free)
            users.setdefault(device, []).append(pid)
    found = [
        ShmSpace(device=device, size=size, free=free, pids=tuple(sorted(users[device])))
        for device, (size, free) in seen.items()
    ]
    return tuple(sorted(found, key=lambda space: (space.free / space.size, space.device)))
