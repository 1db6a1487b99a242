"""Which processes run in the memory of their parent."""

from __future__ import annotations

import subprocess

import pytest

from pyhangtrace.collect import same_memory
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.model.processes import ProcessFacts, ProcessMemory

TASKS = {same_memory.SAME_MEMORY_TASK: same_memory.same_memory_task}

# The child of vfork runs in the memory of its parent until it ends, when its standard input does.
VFORK = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char** argv) {
  char byte;
  pid_t child = strcmp(argv[1], "vfork") == 0 ? vfork() : fork();
  if (child == 0) {
    char line[32];
    int length = snprintf(line, sizeof line, "%d\n", (int)getpid());
    write(1, line, length);
    read(0, &byte, 1);
    _exit(0);
  }
  read(0, &byte, 1);
  return 0;
}
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("forks")
    (folder / "forks.c").write_text(VFORK)
    subprocess.run(["gcc", "-w", "-o", "forks", "forks.c"], cwd=folder, check=True, timeout=60)
    return str(folder / "forks")


def facts(pid: int, ppid: int, *, stack: int = 0x7FF0, rss: int = 1000) -> ProcessFacts:
    return ProcessFacts(pid=pid, ppid=ppid, stack_start=stack, memory=ProcessMemory(rss=rss))


@pytest.mark.parametrize(("how", "shared"), [("vfork", True), ("fork", False)])
def test_a_child_of_vfork_runs_in_the_memory_of_its_parent(forks: str, how: str, shared: bool) -> None:
    with (
        GuardedReader(TASKS) as reader,
        subprocess.Popen([forks, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent,
    ):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        known = {parent.pid: facts(parent.pid, 1), child: facts(child, parent.pid)}
        found = same_memory.collect(reader, known, deadline_s=5.0)
        parent.communicate(timeout=10)
    told = {pid: one.same_memory for pid, one in found.items()}
    assert told == ({parent.pid: (child,), child: (parent.pid,)} if shared else {})


def test_nobody_is_asked_about_whom_it_cannot_be_so() -> None:
    class Reader:
        def run(self, *_: object, **__: object) -> None:
            raise AssertionError("asked")

    for other in (facts(8, 7, stack=0x7FE0), facts(8, 7, rss=5000), facts(8, 1)):
        found = same_memory.collect(Reader(), {7: facts(7, 1), 8: other}, deadline_s=1.0)  # type: ignore[arg-type]
        assert found == {}
