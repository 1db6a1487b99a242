"""Lines of /proc/PID/maps. The file takes the target's mmap lock: it is read in the guarded reader only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

# fs/proc/task_mmu.c (`show_map_vma`): rights, offset, device and inode, room, and the path to the end of the line.
_MAPPING = re.compile(
    rb"(?P<low>[0-9a-f]{1,16})-(?P<high>[0-9a-f]{1,16}) (?P<rights>[-rwxsp]{4}) "
    rb"(?P<offset>[0-9a-f]{1,16}) (?P<device>[0-9a-f]{2,3}:[0-9a-f]{2,5}) (?P<inode>[1-9][0-9]{0,19}) +(?P<path>[^\n]+)"
)


def mapped_files(content: bytes) -> Iterator[re.Match[bytes]]:
    """Mappings of files, with groups `low`, `high`, `rights`, `offset`, `device` (hexadecimal), `inode`, `path`."""
    # Not splitlines: the kernel escapes newlines in names, and no other character that ends a line for Python.
    return filter(None, map(_MAPPING.match, content.split(b"\n")))


def device_of(mapping: re.Match[bytes]) -> int:
    """The device of a mapped file as st_dev."""
    major, _, minor = mapping["device"].partition(b":")
    return os.makedev(int(major, 16), int(minor, 16))
