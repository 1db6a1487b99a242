"""Builds the programs of the table with the compilers that are there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.hangs import processes
from tests.primitives.rows import Flavour

PROGRAMS = Path(__file__).parent / "programs"

_COMMON = ("-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")
_C = ("-std=c11", "-O1", *_COMMON)

# Compiler, its flags, source.
_HOW: dict[Flavour, tuple[str, tuple[str, ...], str]] = {
    Flavour.C: (os.environ.get("CC", "cc"), _C, "waits.c"),
    Flavour.CPP: (os.environ.get("CXX", "c++"), ("-std=c++20", "-O2", *_COMMON), "waits.cpp"),
    Flavour.MUSL: ("musl-gcc", _C, "waits.c"),
    Flavour.MUSL_STATIC: ("musl-gcc", (*_C, "-static"), "waits.c"),
    Flavour.GOMP: ("gcc", (*_C, "-fopenmp"), "team.c"),
    Flavour.OMP: ("clang", (*_C, "-fopenmp"), "team.c"),
}


class Unavailable(Exception):
    """The compiler or a library that a flavour needs is not installed."""


def build(flavour: Flavour, folder: Path) -> Path:
    """The executable of a flavour, built into `folder` unless it is there.

    Raises Unavailable if this machine cannot build it, RuntimeError if it should but does not.
    """
    compiler, flags, source = _HOW[flavour]
    target = folder / flavour.name.lower()
    if target.exists():
        return target
    if shutil.which(compiler) is None:
        raise Unavailable(f"no {compiler} here")
    command = [compiler, *flags, "-I", str(processes.PROGRAMS), "-o", str(target), str(PROGRAMS / source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        if flavour is Flavour.OMP and ("omp.h" in done.stderr or "-lomp" in done.stderr):
            raise Unavailable("no libomp for clang here")
        raise RuntimeError(f"cannot build {source} as {flavour.value}: {done.stderr[-2000:]}")
    return target
