"""A virtual machine that runs one command on a kernel, with this machine's files under a layer of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.initramfs import initramfs
from tests.kernels.packages import Kernel

QEMU = "qemu-system-x86_64"
REPOSITORY = Path(__file__).parents[2]
MEMORY_MB = 768
# What the command in the guest may need of the caller's surroundings.
PASSED_ON = ("PATH", "HOME", "LANG")
# One second of the guest is so many instructions, however busy the machine is: its deadlines mean what they say. The
# processor is emulated, since nested virtualisation is seldom to be had; with one of them, as they would take turns.
PROCESSOR = ("-machine", "q35,accel=tcg", "-icount", "shift=0", "-cpu", "max,la57=off", "-smp", "1")
# Mitigations flush what the emulator has translated at each system call.
KERNEL_LINE = ("console=ttyS0", "panic=-1", "quiet", "loglevel=4", "mitigations=off")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command in a guest ended."""

    status: int | None
    """Its exit status; none where the guest did not come to its end."""
    out: Path
    """The folder that the command saw as $OUT; `console` and `output` are in it, too."""


def why_none() -> str | None:
    """Why no guest can be run here, if none can."""
    missing = [tool for tool in (QEMU, "apt-get", "dpkg-deb", "depmod") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt install qemu-system-x86 kmod)"
    return None if os.geteuid() == 0 else "needs root, as which the guest reads this machine's files"


def run(
    kernel: Kernel, command: Sequence[str], *, busybox: Path, out: Path, cgroups: str, timeout: float
) -> Ran:
    """Boots `kernel` and runs `command` in the repository, as root; `out` is $OUT there."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "initramfs").write_bytes(initramfs(kernel, busybox))
    modules = shlex.quote(str(kernel.root / "lib/modules"))
    (out / "start.sh").write_text(
        f"mkdir -p /lib/modules && mount --bind {modules} /lib/modules\n"
        + start_script(command)
        + "sync\necho o >/proc/sysrq-trigger\nsleep 20\n"
    )
    machine = [
        *(QEMU, "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", *PROCESSOR),
        *("-m", str(MEMORY_MB), "-kernel", str(kernel.image), "-initrd", str(out / "initramfs")),
        *("-append", " ".join((*KERNEL_LINE, f"cgroups={cgroups}"))),
        *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=root,mount_tag=root"),
        *("-fsdev", f"local,id=out,path={out},security_model=none"),
        *("-device", "virtio-9p-pci,fsdev=out,mount_tag=out", "-device", "virtio-rng-pci"),
    ]
    return ended(machine, out, timeout=timeout, within=REPOSITORY)


def ended(machine: Sequence[str], out: Path, *, timeout: float, within: Path) -> Ran:
    """Runs a machine to its end, or to the timeout; what its console says goes to $OUT/console."""
    status = out / "status"
    status.unlink(missing_ok=True)
    with (out / "console").open("wb") as console:
        try:
            subprocess.run(
                machine,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd=within,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pass  # no status says it
    return Ran(status=int(status.read_text()) if status.exists() else None, out=out)


def start_script(command: Sequence[str]) -> str:
    """What a guest's first process runs when everything is mounted."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return "".join(
        (
            *(f"export {name}={shlex.quote(value)}\n" for name, value in passed.items()),
            "export OUT=/mnt/out PYTHONDONTWRITEBYTECODE=1\n",
            f"cd {shlex.quote(str(REPOSITORY))}\n",
            f"{shlex.join(command)} </dev/null >$OUT/output 2>&1\n",
            "echo $? >$OUT/status\n",
        )
    )
