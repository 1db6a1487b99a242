"""A local function entered by a tail call is named by what its caller called, however that call was compiled."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.targets import running, until, waits_in_read

LIBRARY = """\
#include <unistd.h>

static __attribute__((noinline, noclone)) long local_wait(int fd) {
  char byte;
  long got = read(fd, &byte, 1);
  __asm__ volatile("" ::: "memory");
  return got;
}

/* The optimizer makes a jump of this call. */
long exported_wait(int fd) {
  return local_wait(fd);
}
"""
PROGRAM = """\
#include <stdio.h>

long exported_wait(int fd);
#ifdef THROUGH_REGISTER
static long (*volatile wait)(int) = exported_wait;
#else
#define wait exported_wait
#endif

int main(void) {
  puts("ready");
  fflush(stdout);
  long got = wait(0);
  __asm__ volatile("" ::: "memory");
  return (int)got;
}
"""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="calls are read on x86-64")

# How the program calls -> what the frame of local_wait is then called.
CALLS = {
    "lazy PLT": (["-Wl,-z,lazy"], "exported_wait"),
    "PLT, bound at the start": (["-Wl,-z,now"], "exported_wait"),
    "second PLT of indirect branch tracking": (
        ["-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,lazy"],
        "exported_wait",
    ),
    "through the GOT, without PLT": (["-fno-plt"], "exported_wait"),
    "not position independent": (["-no-pie", "-fno-pie"], "exported_wait"),
    # Where the pointer came from is not to be seen any more.
    "through a register": (["-DTHROUGH_REGISTER"], ""),
}


def build(directory: Path, options: list[str], *, static: bool = False) -> Path:
    for tool in ("cc", "strip"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    (directory / "library.c").write_text(LIBRARY)
    (directory / "program.c").write_text(PROGRAM)
    library, program = directory / "libwork.so", directory / "program"
    if static:
        command = ["cc", "-O2", "-static", directory / "program.c", directory / "library.c", "-o", program]
        if subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
            pytest.skip("needs a static C library")
        subprocess.run(["strip", "--strip-all", program], check=True, timeout=60)
        return program
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-fvisibility=default", directory / "library.c", "-o", library],
        check=True,
        timeout=60,
    )
    subprocess.run(["strip", "--strip-all", library], check=True, timeout=60)
    subprocess.run(
        ["cc", "-O2", *options, directory / "program.c", library, f"-Wl,-rpath,{directory}", "-o", program],
        check=True,
        timeout=60,
    )
    return program


def frames(program: Path) -> list[Any]:
    """The stack of the main thread, once it waits in read."""
    with running(program) as pid:
        return list(until(waits_in_read, pid, python=False)["threads"][0]["frames"])


@pytest.mark.parametrize("call", CALLS)
def test_a_tail_called_local(call: str, tmp_path: Path) -> None:
    options, name = CALLS[call]
    found = frames(build(tmp_path, options))
    at = next(i for i, frame in enumerate(found) if frame[4].endswith("libwork.so"))
    assert found[at][1] == name
    assert found[at][6] == ("call_site" if name else "cfi")
    assert found[at + 1][1] == "main"


def test_a_static_stripped_program_names_nothing(tmp_path: Path) -> None:
    found = frames(build(tmp_path, [], static=True))
    assert len(found) >= 3
    assert {frame[1] for frame in found} == {""}
