"""`attach --lines`: file, line and inlined functions of native frames, and the same verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.targets import running

START = "import sys; from pyhangtrace.cli.entry import start; sys.exit(start())"
PROGRAM = """\
#include <stdio.h>
#include <unistd.h>

static inline __attribute__((always_inline)) long innermost(int fd) {
  char byte;
  long got = read(fd, &byte, 1);
  __asm__ volatile("" ::: "memory");
  return got;
}

static inline __attribute__((always_inline)) long middle(int fd) {
  long got = innermost(fd) + 1;
  __asm__ volatile("" ::: "memory");
  return got;
}

int main(void) {
  puts("ready");
  fflush(stdout);
  return (int)middle(0);
}
"""


def attach(pid: int, *options: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", START, "attach", "--json", "--no-bpf", "-d", "0.1", *options, str(pid)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stack(report: Any, pid: int) -> list[tuple[str, int | None, str]]:
    [process] = [process for process in report["processes"] if process["pid"] == pid]
    return [(frame["function"], frame["line"], frame["found_by"]) for frame in process["threads"][0]["stack"]]


@pytest.fixture
def program(tmp_path: Path, c_compiler: str) -> Path:
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    binary = tmp_path / "program"
    subprocess.run([c_compiler, "-O2", "-g", source, "-o", binary], check=True, timeout=60)
    return binary


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), start=1) if text in line)


def test_lines_and_inlined_functions(program: Path) -> None:
    with running(program) as pid:
        plain = attach(pid)
        report = attach(pid, "--lines")
    frames = stack(report, pid)
    at = frames.index(("innermost", line_of("read(fd"), "inlined"))
    assert frames[at + 1 : at + 3] == [
        ("middle", line_of("innermost(fd) + 1"), "inlined"),
        ("main", line_of("middle(0)"), "cfi"),
    ]
    assert report["verdict"] == plain["verdict"]
    assert not [frame for frame in stack(plain, pid) if frame[1] is not None]
    [line] = [line for line in report["coverage"] if line["source"] == "source lines"]
    assert line["state"] == "used"
    assert not [line for line in plain["coverage"] if line["source"] == "source lines"]
