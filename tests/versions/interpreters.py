"""The CPython interpreters on this machine that tests may run as targets."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Minor versions that are looked for, with "t" for the free-threaded build.
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t", "3.15", "3.15t")

#: Where distributions put the Python of their own, which is often built in another way.
SYSTEM = Path("/usr/bin/python3")
#: What `interpreter` knows: the versions, and the system's own.
EVERY = (*VERSIONS, "system")

ASK = (
    "import ctypes, json, multiprocessing, sys, sysconfig\n"
    "print('%d.%d' % sys.version_info[:2] + ('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))\n"
)
ASK_SECONDS = 60.0


def _given() -> Iterator[Path]:
    """What ``HANGTRACE_PYTHONS`` names: interpreters, or folders with interpreters, separated by colons."""
    for name in os.environ.get("HANGTRACE_PYTHONS", "").split(":"):
        path = Path(name)
        if name and path.is_dir():
            yield from sorted(one for one in path.iterdir() if re.fullmatch(r"python3\.\d+t?", one.name))
        elif name:
            yield path


def _candidates(version: str) -> Iterator[Path]:
    yield from (path for path in _given() if path.name == f"python{version}")
    yield from (path for path in _given() if path.name != f"python{version}")
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    plain = version.removesuffix("t")
    end = "t" if version.endswith("t") else ""
    yield from sorted(kept.glob(f"{plain}.*{end}/bin/python{version}"), reverse=True)
    yield Path(sys.executable)
    if (on_path := shutil.which(f"python{version}")) is not None:
        yield Path(on_path)


@functools.cache
def version_of(path: Path) -> str | None:
    """What an interpreter says it is, as in `VERSIONS`; None if it does not start or lacks what tests need."""
    try:
        done = subprocess.run(
            [path, "-c", ASK], capture_output=True, timeout=ASK_SECONDS, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def find(version: str) -> Path | None:
    """Path of an interpreter of a version in `VERSIONS`; None if there is none here that starts."""
    return next((path for path in _candidates(version) if version_of(path) == version), None)


def interpreter(version: str) -> str:
    """Path of an interpreter out of `EVERY`; skips the test if there is none."""
    if version == "system":
        if not SYSTEM.exists():
            pytest.skip("the system has no Python")
        return str(SYSTEM)
    if (path := find(version)) is None:
        pytest.skip(f"no Python {version} here")
    return str(path)
