"""Programs with NCCL linked into them: found by its own words, also where they have no symbols."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyhangtrace.collect import nccl, nccl_version
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.kinds import SourceState

SOURCE = """
#include <stdio.h>
#include <unistd.h>
int main(void) {
  puts("%s");
  fflush(stdout);
  for (;;) pause();
}
"""


@contextmanager
def stripped(folder: Path, words: str) -> Iterator[tuple[int, Path]]:
    """A program without symbols that has said these words, and waits."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    (folder / "job.c").write_text(SOURCE % words)
    made = [compiler, "-s", "-o", str(folder / "job"), str(folder / "job.c")]
    subprocess.run(made, check=True, timeout=60)
    child = subprocess.Popen([folder / "job"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline().decode().rstrip() == words
        yield child.pid, folder / "job"
    finally:
        child.kill()
        child.communicate()


def test_what_has_no_symbols_is_said_to_have_nccl(tmp_path: Path) -> None:
    with (
        GuardedReader(TASKS) as reader,
        stripped(tmp_path, "NCCL version 2.27.7+cuda12.4") as (pid, path),
    ):
        linked = nccl_version.linked(reader, [pid], deadline_s=20.0)
        assert linked == {pid: (str(path), "2.27.7")}
        picture, status = nccl.collect(reader, [pid], (), linked=linked, at_s=0.0, deadline_s=20.0)
        assert picture.states == ()
        assert status.state is SourceState.FAILED
        assert status.reason == (
            f"process {pid}: NCCL 2.27.7 was linked into {path}, which has no symbols of it"
        )
        assert "strip" in status.fix


def test_a_program_without_it_is_not_said_to_have_it(tmp_path: Path) -> None:
    with GuardedReader(TASKS) as reader, stripped(tmp_path, "NCCL version unknown") as (pid, _):
        assert nccl_version.linked(reader, [pid], deadline_s=20.0) == {}
