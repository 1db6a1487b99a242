"""The file systems that a process sees, from /proc/PID/mountinfo, and which of them somebody has to serve."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from pyhangtrace.collect.procfs import PROC, printable, read_text

_LONGEST_DEVICE = 16  # "4095:1048575" and some room
# Asking one of these for the status of a file may take for ever; what fdinfo says has to do.
SERVED = ("fuse", "nfs", "cifs", "smb", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    id: int
    point: str
    fs_type: str
    device: int | None = None
    source: str = ""

    @property
    def place(self) -> str:
        """Where it is mounted, and from what: a device, or a server's export."""
        return self.point if self.source in ("", "none", self.fs_type) else f"{self.point} from {self.source}"

    @property
    def words(self) -> str:
        """What kind of file system it is, where, and from what; safe to store."""
        return printable(f"{self.fs_type} mounted at {self.place}")


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that an absolute path lies on; the last one of several at one place."""
    best: Mount | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def fuse_connection(fs_type: str | None, device: int | None) -> int | None:
    """The number of the connection to the server of a FUSE file system; the kernel numbers it as the device."""
    if device is None or not (fs_type or "").startswith("fuse"):
        return None
    return os.minor(device)


def _device_number(text: str) -> int | None:
    """`8:1` as st_dev."""
    major, _, minor = text.partition(":")
    try:
        return os.makedev(int(major), int(minor)) if len(text) < _LONGEST_DEVICE else None
    except (ValueError, OverflowError):
        return None


def read_mounts(pid: int, proc_root: str = PROC) -> list[Mount]:
    """The mounts that a process sees, in mount order; [] if they may not be seen."""
    return parse_mounts(read_text(f"{proc_root}/{pid}/mountinfo") or "")


def parse_mounts(text: str) -> list[Mount]:
    """Lines of /proc/PID/mountinfo, in mount order."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) > 4 and kind and words[0].isdecimal():
            device = _device_number(words[2])
            source = kind[1].replace("\\040", " ") if len(kind) > 1 else ""
            mounts.append(Mount(int(words[0]), words[4].replace("\\040", " "), kind[0], device, source))
    return mounts
