"""A Linux that runs as a process (user-mode Linux): as fast as the machine, for what is the same on all processors.

Control groups, memory, swap and kills are; it has neither BPF that may be loaded, nor /proc/PID/syscall.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.kernels.guest import REPOSITORY, Ran, ended, start_script
from tests.kernels.packages import Suite, download, unpacked

# Debian 13's needs a newer C library than that of Debian 12.
SUITES = (Suite("bullseye", "debian", "5.10"), Suite("bookworm", "debian", "6.1"))
INIT = Path(__file__).with_name("uml_init.sh")
MEMORY_MB = 700
DISK_MB = 1500
SWAP_MB = 300


def kernel_program(suite: Suite, *, cache: Path) -> Path:
    """The program that is the kernel of a suite, downloaded if the cache has none. Raises NoPackages."""
    found = cache / f"uml-{suite.kernel}"
    if not found.exists():
        with unpacked(download(suite, ["user-mode-linux"], cache=cache)) as root:
            shutil.copy(root / "usr/bin/linux.uml", found)
    return found


def run(program: Path, command: Sequence[str], *, out: Path, timeout: float) -> Ran:
    """Runs `command` in the repository as root, on that kernel; `out` is $OUT there."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "start.sh").write_text(start_script(command))
    for name, size in (("disk", DISK_MB), ("swap", SWAP_MB)):
        with (out / name).open("wb") as file:
            os.truncate(file.fileno(), size << 20)
    line = [
        str(program),
        f"mem={MEMORY_MB}M",
        *("rootfstype=hostfs", "rootflags=/", "ro", f"init={INIT}", "con=null", "con0=null,fd:1"),
        *(f"ubda={out}/disk", f"ubdb={out}/swap", f"out={out}", f"uml_dir={out}"),
    ]
    try:
        return ended(line, out, timeout=timeout, within=REPOSITORY)
    finally:
        for name in ("disk", "swap"):
            (out / name).unlink(missing_ok=True)
