"""Control groups for tests, in whichever version of the hierarchy this machine has mounted."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def parent_of_groups(controller: str) -> Path | None:
    """Where groups of this controller can be made: its own folder (version 1), else the unified one (version 2)."""
    own = ROOT / controller
    if (own / "tasks").is_file():
        return own if os.access(own, os.W_OK) else None
    control = ROOT / "cgroup.subtree_control"
    try:
        if controller not in control.read_text().split():
            control.write_text(f"+{controller}")
    except OSError:
        return None
    return ROOT


def limit_memory(group: Path, size: int) -> None:
    """Sets how many bytes a group may have."""
    version_2 = group / "memory.max"
    (version_2 if version_2.exists() else group / "memory.limit_in_bytes").write_text(str(size))


def limit_cpu(group: Path, quota_us: int | None, *, period_us: int = 100_000) -> None:
    """Sets how much of each period all members of a group may run; None takes the limit away."""
    version_2 = group / "cpu.max"
    if version_2.exists():
        version_2.write_text(f"{'max' if quota_us is None else quota_us} {period_us}")
        return
    (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
