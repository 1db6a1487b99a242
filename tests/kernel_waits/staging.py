"""What has to be done to running programs for a scene, and undone before they end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.control_groups import limit_cpu, parent_of_groups
from tests.hangs.processes import POLL_S, NotReached, Running

CGROUPS = Path("/sys/fs/cgroup")
DEADLINE_S = 10.0
CAP_SYS_ADMIN = 21


def no_freezer() -> str | None:
    """Why no group of the freezer of cgroup v1 can be made here."""
    folder = CGROUPS / "freezer"
    if (folder / "tasks").is_file() and os.access(folder, os.W_OK):
        return None
    return "needs the freezer controller of cgroup v1, writable"


def no_unified_freezer() -> str | None:
    """Why no group of the unified hierarchy can be made here."""
    folder = unified()
    if folder is not None and os.access(folder, os.W_OK):
        return None
    return "needs the unified hierarchy of control groups, mounted where it can be written"


def unified() -> Path | None:
    """Where the unified hierarchy is mounted."""
    for folder in (CGROUPS / "unified", CGROUPS):
        if (folder / "cgroup.procs").is_file():
            return folder
    return None


def no_quota() -> str | None:
    """Why no group with a quota can be made here."""
    return None if parent_of_groups("cpu") else "needs a cpu controller whose groups can be written"


def no_fuse() -> str | None:
    """Why no FUSE file system can be mounted here, or its server not be told."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        return "needs /dev/fuse and root"
    status = Path("/proc/self/status").read_text()
    rights = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    if not int(rights, 16) >> CAP_SYS_ADMIN & 1:
        return "needs CAP_SYS_ADMIN, to mount"
    kernel = tuple(int(word) for word in re.findall(r"\d+", os.uname().release)[:2])
    return None if kernel >= (6, 13) else "needs Linux 6.13, which tells the server of a FUSE file system"


def no_filelock() -> str | None:
    """Why no lock of `filelock` can be taken here."""
    from importlib.util import find_spec

    return None if find_spec("filelock") else "needs the package filelock"


@contextmanager
def _group(controller: str, pid: int) -> Iterator[Path]:
    """A group with this process in it, which goes back afterwards."""
    parent = (parent_of_groups(controller) if controller else unified()) or CGROUPS
    folder = parent / f"hangtrace-test-{pid}"
    folder.mkdir()
    try:
        (folder / "cgroup.procs").write_text(str(pid))
        yield folder
    finally:
        (parent / "cgroup.procs").write_text(str(pid))
        folder.rmdir()


@contextmanager
def frozen(stage: Running) -> Iterator[None]:
    """The waiter is frozen by its cgroup."""
    with _group("freezer", stage.members["waiter"].pid) as folder:
        state = folder / "freezer.state"
        try:
            state.write_text("FROZEN")
            _await(state, "FROZEN")
            yield
        finally:
            state.write_text("THAWED")
            _await(state, "THAWED")


@contextmanager
def frozen_unified(stage: Running) -> Iterator[None]:
    """The waiter is frozen by its cgroup of the unified hierarchy."""
    with _group("", stage.members["waiter"].pid) as folder:
        try:
            (folder / "cgroup.freeze").write_text("1")
            _await(folder / "cgroup.events", "frozen 1", line=1)
            yield
        finally:
            (folder / "cgroup.freeze").write_text("0")
            _await(folder / "cgroup.events", "frozen 0", line=1)


@contextmanager
def throttled(stage: Running) -> Iterator[None]:
    """The waiter gets two hundredths of a CPU."""
    with _group("cpu", stage.members["waiter"].pid) as folder:
        limit_cpu(folder, 2000)
        stat = folder / "cpu.stat"
        try:
            deadline = time.monotonic() + DEADLINE_S
            while "nr_throttled 0" in stat.read_text():
                if time.monotonic() > deadline:
                    raise NotReached("never throttled")
                time.sleep(POLL_S)
            yield
        finally:
            limit_cpu(folder, None)


def _await(file: Path, word: str, *, line: int = 0) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while file.read_text().splitlines()[line].strip() != word:
        if time.monotonic() > deadline:
            raise NotReached(f"{file} is not {word}")
        time.sleep(POLL_S)
