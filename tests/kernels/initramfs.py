"""The first file system of a guest: busybox, the modules that reach the host's root, and what mounts it."""

from __future__ import annotations

import gzip
import lzma
import stat
from collections.abc import Sequence
from pathlib import Path

from tests.kernels.packages import Kernel

INIT = Path(__file__).with_name("init.sh")
# What the guest needs before it sees the host's files, from which it takes the rest.
WANTED = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


def initramfs(kernel: Kernel, busybox: Path) -> bytes:
    """A gzipped cpio archive (format newc)."""
    archive = _Archive()
    for folder in ("bin", "proc", "sys", "dev", "host", "new", "modules"):
        archive.add(folder, b"", stat.S_IFDIR | 0o755)
    archive.add("bin/busybox", busybox.read_bytes(), stat.S_IFREG | 0o755)
    archive.add("init", INIT.read_bytes(), stat.S_IFREG | 0o755)
    order = _module_files(kernel, WANTED)
    for path in order:
        archive.add(f"modules/{_plain(path)}", _content(path), stat.S_IFREG | 0o644)
    archive.add(
        "modules/order", "".join(f"{_plain(path)}\n" for path in order).encode(), stat.S_IFREG | 0o644
    )
    return gzip.compress(archive.end(), compresslevel=1)


def _module_files(kernel: Kernel, names: Sequence[str]) -> list[Path]:
    """Files of the modules and of all they depend on, in the order in which they load; built-in ones have none."""
    depends = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        file, _, needs = line.partition(":")
        depends[_name(file)] = (file, needs.split())
    order: list[Path] = []
    for name in names:
        if name in depends:
            file, needs = depends[name]
            # modules.dep names the farthest dependency last.
            for each in (*reversed(needs), file):
                if (path := kernel.modules / each) not in order:
                    order.append(path)
    return order


def _name(file: str) -> str:
    return Path(file).name.split(".ko")[0].replace("-", "_")


def _plain(path: Path) -> str:
    return f"{_name(path.name)}.ko"


def _content(path: Path) -> bytes:
    packed = path.read_bytes()
    return lzma.decompress(packed) if path.suffix == ".xz" else packed


class _Archive:
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._number = 0

    def add(self, name: str, content: bytes, mode: int) -> None:
        self._number += 1
        fields = (self._number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self._parts += [_padded(head), _padded(content)]

    def end(self) -> bytes:
        self.add("TRAILER!!!", b"", 0)
        return b"".join(self._parts)


def _padded(part: bytes) -> bytes:
    return part + b"\0" * (-len(part) % 4)
