"""Memory file systems that processes write to, in made-up /proc trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.collect import maps, shm_space
from pyhangtrace.collect.guarded import HelperState
from tests.unit.collect.helpers import write

PID = 7


def tree(
    root: Path, *, descriptors: dict[int, tuple[str, str]], fs_type: str = "tmpfs", log: str = ""
) -> Path:
    """A process whose file systems are folders here; of each descriptor the path and what fdinfo says."""
    seen = root / "seen"
    (seen / "cache").mkdir(parents=True)
    device = os.stat(seen).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    proc = root / "proc"
    lines = f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n41 20 {number} / /cache rw - {fs_type} none rw\n"
    write(proc / str(PID), {"mountinfo": lines})
    (proc / str(PID) / "root").symlink_to(seen)
    for descriptor, (path, info) in descriptors.items():
        write(proc / str(PID), {f"fdinfo/{descriptor}": info})
        link = proc / str(PID) / "fd" / str(descriptor)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path)
    if log:
        write(root, {"log": log})
        link = proc / str(PID) / "fd" / "2"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(root / "log")
    return proc


def spaces(
    proc: Path, written: dict[int, Any] | None = None, running_s: dict[int, float] | None = None
) -> list[str]:
    state = HelperState(proc_root=str(proc))
    ((pid, found),) = shm_space.shm_space_task(state, [PID], (written or {}, running_s or {}), lambda _: None)
    assert pid == PID
    assert all(space.size > 0 for space in found)
    return [space.point + (" refused" if space.refused else "") for space in found]


@pytest.mark.parametrize(
    ("path", "info", "told"),
    [
        ("/cache/x", "pos:\t0\nflags:\t0100002\nmnt_id:\t41\n", True),
        ("/cache/x", "pos:\t0\nflags:\t0100000\nmnt_id:\t41\n", False),  # only read
        ("/cache/x", "pos:\t0\nflags:\t0100002\nmnt_id:\t20\n", False),  # of another mount of that name
        ("/cached/x", "pos:\t0\nflags:\t0100002\nmnt_id:\t41\n", False),
        ("/cache/x", "pos:\t0\nflags:\tnonsense\nmnt_id:\t41\n", False),
    ],
)
def test_a_file_that_is_open_for_writing(tmp_path: Path, path: str, info: str, told: bool) -> None:
    assert spaces(tree(tmp_path, descriptors={5: (path, info)})) == (["/cache"] if told else [])


@pytest.mark.parametrize("fs_type", ["tmpfs", "ext4"])
def test_a_file_that_is_mapped_to_be_written_to(tmp_path: Path, fs_type: str) -> None:
    proc = tree(tmp_path, descriptors={}, fs_type=fs_type)
    device = os.stat(tmp_path).st_dev
    assert spaces(proc) == []
    assert spaces(proc, {PID: (device,)}) == (["/cache"] if fs_type == "tmpfs" else [])


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "NCCL WARN Error: failed to extend /cache/nccl-x to 9637892 bytes\nNo space left on device (28)\n",
            True,
        ),
        ("OSError: [Errno 28] No space left on device: '/cache/torch_7_1'\n", True),
        ("OSError: [Errno 28] No space left on device: '/data/out'\n", False),
        ("wrote /cache/x\n", False),
    ],
)
def test_a_log_that_tells_of_no_room(tmp_path: Path, log: str, told: bool) -> None:
    proc = tree(tmp_path, descriptors={}, log=log)
    assert spaces(proc, running_s={PID: 60.0}) == (["/cache refused"] if told else [])
    assert spaces(proc) == []  # of a run that is not known to be this one
    os.utime(tmp_path / "log", (0, 0))
    assert spaces(proc, running_s={PID: 60.0}) == []


def test_what_is_mounted_over_it_is_not_asked_for_it(tmp_path: Path) -> None:
    proc = tree(tmp_path, descriptors={5: ("/cache/x", "flags:\t02\nmnt_id:\t41\n")})
    text = (proc / str(PID) / "mountinfo").read_text()
    device = os.stat(tmp_path).st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    write(proc / str(PID), {"mountinfo": text.replace(here, "0:99999")})
    assert spaces(proc) == []


def test_devices_that_are_written_to() -> None:
    found = maps.parse(
        b"1000-2000 rw-s 00000000 00:1a 5 /dev/shm/a\n2000-3000 r--s 00000000 00:1b 6 /x\n"
        b"3000-4000 rw-p 00000000 00:1c 7 /y\n"
    )
    assert found.written == (os.makedev(0, 0x1A),)
