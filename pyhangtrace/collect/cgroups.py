"""What control groups do to processes: keep them frozen, or off the CPU. Both versions of the hierarchy.

Source: the kernel's Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst, scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhangtrace.collect.procfs import PROC, printable, read_text

ROOT = "/sys/fs/cgroup"
_DEEPEST = 64
UNIFIED = ""  # in place of a controller's name
BESIDE_V1 = "unified"  # where systemd and others mount it beside the first version


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
    above = _with_those_above(groups.get("freezer"))
    state = read_text(f"{root}/freezer{above[0]}/freezer.state") if above else None
    if state is not None and state.strip() == "FROZEN":
        return _culprit_v1(root, above)
    return _frozen_unified(root, _with_those_above(groups.get(UNIFIED)))


def _frozen_unified(root: str, above: Sequence[str]) -> str | None:
    # Beside groups of the first version the unified hierarchy has a place of its own, and a freezer in any case.
    for base in (f"{root}/{BESIDE_V1}", root):
        events = read_text(f"{base}{above[0]}/cgroup.events") if above else None
        if events is None:
            continue
        if "frozen 1" not in events.split("\n"):
            return None
        asked = [path for path in above if (read_text(f"{base}{path}/cgroup.freeze") or "").strip() == "1"]
        return printable(f"{base}{asked[-1] if asked else above[0]}")
    return None


def _with_those_above(path: str | None) -> list[str]:
    """A group's path and those of the groups it is in, nearest first, without the root, which has no limits.

    What lies outside of our own namespace of control groups, above its root, cannot be read.
    """
    names = (path or "").split("/")
    if names[0] or ".." in names:
        return []
    names = [name for name in names if name][:_DEEPEST]
    return ["/" + "/".join(names[:size]) for size in range(len(names), 0, -1)]


def _culprit_v1(root: str, above: Sequence[str]) -> str:
    # A group is frozen with the one above it: it is that one that has to be thawed.
    frozen = above[0]
    for path in above:
        own = read_text(f"{root}/freezer{path}/freezer.self_freezing")
        if own is not None and own.strip() == "1":
            frozen = path
    return printable(f"{root}/freezer{frozen}")


def quota_group(groups: Mapping[str, str], root: str = ROOT) -> str | None:
    """Folder of the nearest group with a CPU quota, `None` without one."""
    for base, path, name, unlimited in (
        (f"{root}/cpu", groups.get("cpu"), "cpu.cfs_quota_us", "-1"),
        (root, groups.get(UNIFIED), "cpu.max", "max"),
        (f"{root}/{BESIDE_V1}", groups.get(UNIFIED), "cpu.max", "max"),
    ):
        for each in _with_those_above(path):
            limit = read_text(f"{base}{each}/{name}")
            if limit is not None and limit.split()[:1] != [unlimited]:
                return f"{base}{each}"
    return None


def throttled_s(folder: str) -> float | None:
    """Seconds for which the group's quota has kept its members off the CPU so far, over all CPUs."""
    for line in (read_text(f"{folder}/cpu.stat") or "").split("\n"):
        key, _, value = line.partition(" ")
        if value.isdecimal() and key in ("throttled_time", "throttled_usec"):
            return int(value) / (1e9 if key == "throttled_time" else 1e6)
    return None
