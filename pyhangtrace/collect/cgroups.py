"""What control groups do to processes: keep them frozen, or off the CPU. Both versions of the hierarchy.

Source: the kernel's Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst, scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyhangtrace.collect.procfs import PROC, printable, read_text

ROOT = "/sys/fs/cgroup"
UNIFIED = ""  # in place of a controller's name


def paths(pid: int, proc_root: str = PROC) -> dict[str, str]:
    """Path of a process' group by controller; that of the unified hierarchy under ""."""
    found = {}
    for line in (read_text(f"{proc_root}/{pid}/cgroup") or "").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path:
            found.update(dict.fromkeys([UNIFIED] if number == "0" else controllers.split(","), path))
    return found


def frozen_by(groups: Mapping[str, str], root: str = ROOT) -> str | None:
    """The group that keeps a process frozen, `None` if it is not, or if that cannot be seen."""
    first = groups.get("freezer")
    if first is not None:
        state = read_text(f"{root}/freezer{first}/freezer.state") if first != "/" else None
        return _culprit_v1(root, first) if state is not None and state.strip() == "FROZEN" else None
    unified = groups.get(UNIFIED)
    if unified in (None, "/"):
        return None
    events = read_text(f"{root}{unified}/cgroup.events") or ""
    return printable(f"{root}{unified}") if "frozen 1" in events.split("\n") else None


def _culprit_v1(root: str, path: str) -> str:
    # A group is frozen with the one above it: it is that one that has to be thawed.
    frozen = path
    while path not in ("", "/"):
        own = read_text(f"{root}/freezer{path}/freezer.self_freezing")
        if own is not None and own.strip() == "1":
            frozen = path
        path = os.path.dirname(path)
    return printable(f"{root}/freezer{frozen}")


def quota_group(groups: Mapping[str, str], root: str = ROOT) -> str | None:
    """Folder of the nearest group with a CPU quota, `None` without one."""
    for base, path, name, unlimited in (
        (f"{root}/cpu", groups.get("cpu"), "cpu.cfs_quota_us", "-1"),
        (root, groups.get(UNIFIED), "cpu.max", "max"),
    ):
        while path not in (None, "", "/"):
            limit = read_text(f"{base}{path}/{name}")
            if limit is not None and limit.split()[:1] != [unlimited]:
                return f"{base}{path}"
            path = os.path.dirname(path or "")
    return None


def throttled_s(folder: str) -> float | None:
    """Seconds for which the group's quota has kept its members off the CPU so far, over all CPUs."""
    for line in (read_text(f"{folder}/cpu.stat") or "").split("\n"):
        key, _, value = line.partition(" ")
        if value.isdecimal() and key in ("throttled_time", "throttled_usec"):
            return int(value) / (1e9 if key == "throttled_time" else 1e6)
    return None
