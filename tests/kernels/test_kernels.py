"""The parts that need no virtual machine: the archive that boots one, and the table of what came of it."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

from tests.kernels.board import results, table
from tests.kernels.initramfs import initramfs
from tests.kernels.packages import Kernel


def contents(archive: bytes) -> dict[str, bytes]:
    """Files of a cpio archive (newc)."""
    found, at = {}, 0
    while True:
        assert archive[at : at + 6] == b"070701"
        size, name_size = (int(archive[at + place : at + place + 8], 16) for place in (54, 94))
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        begin = -(-(at + 110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found[name] = archive[begin : begin + size]
        at = -(-(begin + size) // 4) * 4


def test_modules_are_loaded_after_those_they_need(tmp_path: Path) -> None:
    modules = tmp_path / "lib/modules/6.1"
    modules.mkdir(parents=True)
    for name in ("virtio.ko", "virtio-ring.ko", "virtio_pci.ko", "9p.ko"):
        (modules / name).write_bytes(name.encode())
    (modules / "netfs.ko.xz").write_bytes(lzma.compress(b"netfs"))
    # As depmod writes it; overlay and 9pnet_virtio are built in here.
    (modules / "modules.dep").write_text(
        "virtio_pci.ko: virtio.ko virtio-ring.ko\nvirtio.ko: virtio-ring.ko\nvirtio-ring.ko:\n"
        "9p.ko: netfs.ko.xz\nnetfs.ko.xz:\n"
    )
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"a program")
    kernel = Kernel(name="6.1", release="6.1", image=tmp_path / "vmlinuz", root=tmp_path)
    files = contents(gzip.decompress(initramfs(kernel, busybox)))
    assert files["bin/busybox"] == b"a program"
    assert files["modules/order"].decode().split() == [
        "virtio_ring.ko",
        "virtio.ko",
        "virtio_pci.ko",
        "netfs.ko",
        "9p.ko",
    ]
    assert files["modules/netfs.ko"] == b"netfs"
    assert b"switch_root" in files["init"]


def test_the_table_counts_what_was_said_and_what_was_lacking(tmp_path: Path) -> None:
    absent = {"source": "alarms", "state": "absent", "reason": "too old"}
    given = {"source": "ebpf registers", "state": "used", "reason": ""}
    lines = [
        {"part": "kernel", "name": "5.10", "outcome": "booted"},
        {"part": "hangs", "name": "mutex", "outcome": "right", "coverage": [absent], "cost": {"wall_s": 0.5}},
        {"part": "kernel_waits", "name": "pipe", "outcome": "wrong", "reasons": ["no"], "coverage": [given]},
        {"part": "kernel_waits", "name": "fuse", "outcome": "skipped", "reasons": ["needs Linux 6.13"]},
    ]
    path = tmp_path / "results"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert table({"5.10": results(path), "6.1": results(tmp_path / "none")})[2:] == [
        "| 5.10 | 1 | 1 | 1 | 0.50 s |",
        "| 6.1 | 0 | 0 | 0 | – |",
        "",
        "5.10 pipe: wrong: no",
        "5.10 fuse: skipped: needs Linux 6.13",
        "5.10 could not see alarms: too old",
    ]
