"""How much room there is in memory file systems, as the processes themselves see them: a container has its own.

These are the /dev/shm of each process, and any other tmpfs on which it has a file open for writing or mapped to be
written to by many. Which those are is told without asking any file for its status, which may never answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.log_marks import log_tails
from pyhangtrace.collect.mounts import Mount, mount_of, read_mounts
from pyhangtrace.collect.procfs import fields, numbers, printable, read_link, read_text
from pyhangtrace.model.memory import ShmSpace

SHM_SPACE_TASK = "shm_space"
_FOLDER = "/dev/shm"
_MOST_DESCRIPTORS = 1024
_NO_ROOM = re.compile(r"No space left on device|ENOSPC")
_PATH = re.compile(r"/[\w./+@:=-]+")
# NCCL tells the file in the line above that of the error, or below.
_LINES_AROUND = 2


@dataclass(frozen=True, slots=True)
class _Space:
    """One file system as one process sees it."""

    device: int
    point: str
    size: int
    free: int
    refused: bool


def shm_space_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the file systems of each process. `argument`: (devices of shared writable mappings by pid, seconds that
    each has run).
    """
    written, running_s = argument
    for pid in pids:
        progress(pid)
        yield pid, _of_process(f"{state.proc_root}/{pid}", pid, state.proc_root, written, running_s)


def _of_process(
    folder: str,
    pid: int,
    proc_root: str,
    written: Mapping[int, Sequence[int]],
    running_s: Mapping[int, float],
) -> list[_Space]:
    mounts = [mount for mount in read_mounts(pid, proc_root) if mount.fs_type == "tmpfs"]
    devices = set(written.get(pid, ()))
    ids = _open_for_writing(folder, mounts)
    used = {mount.point for mount in mounts if mount.device in devices or mount.id in ids}
    complaints = _refusals(folder, mounts, running_s[pid]) if pid in running_s else set()
    found = []
    for point in dict.fromkeys((_FOLDER, *sorted(used | complaints))):
        place = f"{folder}/root{point}"
        try:
            about = os.statvfs(place)
            device = os.stat(place).st_dev
        except OSError:
            continue
        # Something else may be mounted over it since.
        expected = [mount.device for mount in mounts if mount.point == point]
        if about.f_blocks and (point == _FOLDER or device in expected):
            found.append(
                _Space(
                    device=device,
                    point=printable(point),
                    size=about.f_blocks * about.f_frsize,
                    free=about.f_bavail * about.f_frsize,
                    refused=point in complaints,
                )
            )
    return found


def _open_for_writing(folder: str, mounts: Sequence[Mount]) -> set[int]:
    """Of these mounts those on which descriptors write, by number."""
    points = tuple(f"{mount.point}/" for mount in mounts)
    ids = {mount.id for mount in mounts}
    found: set[int] = set()
    for number in numbers(f"{folder}/fd")[:_MOST_DESCRIPTORS]:
        if found == ids:
            break
        if not (read_link(f"{folder}/fd/{number}") or "").startswith(points):
            continue
        info = dict(fields(read_text(f"{folder}/fdinfo/{number}") or ""))
        try:
            mount, flags = int(info.get("mnt_id", "-1")), int(info.get("flags", "0"), 8)
        except ValueError:
            continue
        if mount in ids and flags & os.O_ACCMODE != os.O_RDONLY:
            found.add(mount)
    return found


def _refusals(folder: str, mounts: Sequence[Mount], running_s: float) -> set[str]:
    """Where its log says that there was no room, by the paths that it names there."""
    found: set[str] = set()
    if not mounts:
        return found
    for log in log_tails(folder, running_s):
        lines = log.text.splitlines()
        for at, line in enumerate(lines):
            if _NO_ROOM.search(line):
                near = "\n".join(lines[max(0, at - _LINES_AROUND) : at + _LINES_AROUND + 1])
                found.update(
                    mount.point
                    for path in _PATH.findall(near)
                    if (mount := mount_of(path, mounts)) is not None and mount.point != "/"
                )
    return found


def collect(
    reader: GuardedReader,
    pids: Sequence[int],
    *,
    deadline_s: float,
    written: Mapping[int, Sequence[int]] | None = None,
    running_s: Mapping[int, float] | None = None,
) -> tuple[ShmSpace, ...]:
    """The different ones, the fullest first. `written` are the devices on which each process has files mapped to be
    written to, `running_s` for how long each has run, without which its log is not looked at.
    """
    argument = (dict(written or {}), dict(running_s or {}))
    answers = reader.run(SHM_SPACE_TASK, pids, argument, deadline_s=deadline_s)
    seen: dict[int, _Space] = {}
    users: dict[int, set[int]] = {}
    refused: dict[int, set[int]] = {}
    for pid, spaces in sorted(answers.values.items()):
        for space in spaces:
            seen.setdefault(space.device, space)
            users.setdefault(space.device, set()).add(pid)
            if space.refused:
                refused.setdefault(space.device, set()).add(pid)
    found = [
        ShmSpace(
            device=device,
            size=space.size,
            free=space.free,
            pids=tuple(sorted(users[device])),
            point=space.point,
            refused=tuple(sorted(refused.get(device, ()))),
        )
        for device, space in seen.items()
    ]
    return tuple(sorted(found, key=lambda space: (space.free / space.size, space.device)))
