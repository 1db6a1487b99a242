"""Debian's kernels, by apt alone and into a cache of its own: nothing of the machine's apt is read or changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org"
# A download that does not move ends, so that a machine without a network is told within a minute.
NETWORK = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=1")
KIND = "amd64"


@dataclass(frozen=True, slots=True)
class Suite:
    """A release of Debian and the kernel it brings."""

    name: str
    archive: str
    """Path at the mirror."""
    kernel: str
    """The release its kernel is expected to have, as a name of the row; the real one is read from the package."""


SUITES = (
    Suite("bullseye-security", "debian-security", "5.10"),
    Suite("bookworm", "debian", "6.1"),
    Suite("trixie", "debian", "6.12"),
    Suite("trixie-backports", "debian", "7.3"),
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel ready to be booted."""

    name: str
    release: str
    image: Path
    root: Path
    """Holds lib/modules/RELEASE."""

    @property
    def modules(self) -> Path:
        return self.root / "lib/modules" / self.release


class NoPackages(Exception):
    """What cannot be had, and why."""


def cache_folder() -> Path:
    """Outside of the repository; $HANGTRACE_KERNELS names another."""
    chosen = os.environ.get("HANGTRACE_KERNELS")
    return Path(chosen) if chosen else Path.home() / ".cache/hangtrace-kernels"


def kernel_of(suite: Suite, *, cache: Path) -> Kernel:
    """The newest kernel of a suite, downloaded if the cache has none.

    Raises:
        NoPackages: apt or the network does not give it.
    """
    root = cache / suite.kernel
    if not root.is_dir():
        unpack(download(suite, [], cache=cache, kernel=True), root)
    return ready(suite.kernel, root)


def busybox(*, cache: Path) -> Path:
    """A static busybox, for the first minutes of a guest.

    Raises:
        NoPackages: apt or the network does not give it.
    """
    found = cache / "busybox"
    if not found.exists():
        with unpacked(download(SUITES[1], ["busybox-static"], cache=cache)) as root:
            shutil.copy(next(iter(root.glob("**/bin/busybox"))), found)
    return found


def download(suite: Suite, packages: Sequence[str], *, cache: Path, kernel: bool = False) -> list[Path]:
    """Packages of a suite, and those of its newest kernel if asked for, as files. Raises NoPackages."""
    folder = cache / "apt" / suite.name
    options = _options(suite, folder)
    _run(["apt-get", *options, "update"])
    wanted = [*packages, *(_image_packages(options) if kernel else ())]
    _run(["apt-get", *options, "download", *wanted], within=_empty(folder / "debs"))
    return sorted((folder / "debs").glob("*.deb"))


@contextmanager
def unpacked(packages: Sequence[Path]) -> Iterator[Path]:
    """What these packages hold, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        for package in packages:
            _run(["dpkg-deb", "-x", str(package), folder])
        yield Path(folder)


def unpack(packages: Sequence[Path], root: Path) -> None:
    """Lays image and modules of a kernel's packages under `root`, whole or not at all."""
    fresh = _empty(root.with_name(root.name + ".new"))
    with unpacked(packages) as found:
        for modules in (*found.glob("lib/modules/*"), *found.glob("usr/lib/modules/*")):
            shutil.copytree(modules, fresh / "lib/modules" / modules.name, symlinks=True, dirs_exist_ok=True)
        images = [*found.glob("boot/vmlinuz*"), *found.glob("usr/lib/modules/*/vmlinuz")]
        if not images:
            raise NoPackages(f"no kernel image in {', '.join(package.name for package in packages)}")
        shutil.copy(images[0], fresh / "vmlinuz")
    _run(["depmod", "-b", str(fresh), next((fresh / "lib/modules").iterdir()).name])
    fresh.rename(root)


def ready(name: str, root: Path) -> Kernel:
    (modules,) = (root / "lib/modules").iterdir()
    return Kernel(name=name, release=modules.name, image=root / "vmlinuz", root=root)


def _options(suite: Suite, folder: Path) -> list[str]:
    for each in ("lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(
        f"deb [signed-by={KEYRING}] {MIRROR}/{suite.archive} {suite.name} main\n"
    )
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Architecture": KIND,
        "APT::Sandbox::User": "root",
    }
    return [*NETWORK, *(part for key, value in settings.items() for part in ("-o", f"{key}={value}"))]


def _image_packages(options: Sequence[str]) -> list[str]:
    """The package of the image, and those that hold its files: newer kernels have two more."""
    wanted = _depends(options, f"linux-image-{KIND}")
    images = [name for name in wanted if re.match(r"linux-image-\d", name)]
    parts = [name for image in images for name in _depends(options, image)]
    return [*images, *(name for name in parts if re.match(r"linux-(binary|modules)-\d", name))]


def _depends(options: Sequence[str], package: str) -> list[str]:
    text = _run(["apt-cache", *options, "depends", "--important", package])
    return re.findall(r"Depends: ([^<>\s]+)", text)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _run(command: Sequence[str], *, within: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=within, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise NoPackages(f"{command[0]}: {failed}") from failed
    if done.returncode != 0:
        raise NoPackages(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
