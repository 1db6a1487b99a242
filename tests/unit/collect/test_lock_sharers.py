"""Which processes have mapped the memory of a lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyhangtrace.collect import lock_sharers
from pyhangtrace.collect.guarded import Answers, GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.processes import ProcessFacts

MAPS = """
import mmap, sys
file = open(sys.argv[1], "r+b")
memory = mmap.mmap(file.fileno(), 4096, access=getattr(mmap, sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def mapping(path: Path, access: str) -> Iterator[int]:
    argv = [sys.executable, "-c", MAPS, str(path), access]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate()


def test_those_are_found_who_can_write_the_memory(tmp_path: Path) -> None:
    path, other = tmp_path / "lock", tmp_path / "other"
    for each in (path, other):
        each.write_bytes(bytes(4096))
    memory = (path.stat().st_dev, path.stat().st_ino)
    with (
        mapping(path, "ACCESS_WRITE") as one,
        mapping(path, "ACCESS_WRITE") as two,
        mapping(path, "ACCESS_READ") as reads,
        mapping(other, "ACCESS_WRITE") as elsewhere,
        GuardedReader(TASKS) as reader,
    ):
        facts = {one: ProcessFacts(pid=one)}
        pids = [one, two, reads, elsewhere]
        found = lock_sharers.collect(reader, facts, {one: {memory}}, pids, deadline_s=20)
        assert found[one].lock_sharers == tuple(sorted((one, two)))


def test_a_member_of_the_job_that_cannot_be_read_may_have_it() -> None:
    class Reader:
        def run(self, *_: object, **__: object) -> Answers:
            return Answers(values={1: ((8, 7),), 2: None, 3: None, 4: ()}, problems={})

    facts = {pid: ProcessFacts(pid=pid) for pid in (1, 2, 4, 5)}
    asked = lock_sharers.collect(Reader(), facts, {1: {(8, 7)}}, [1, 2, 3, 4, 5], deadline_s=1)  # type: ignore[arg-type]
    assert asked[1].lock_sharers == (1, 2, 5)


def test_one_that_has_ended_meanwhile_has_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(bytes(4096))
    memory = (path.stat().st_dev, path.stat().st_ino)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not os.path.exists(f"/proc/{ended.pid}")
    with mapping(path, "ACCESS_WRITE") as one, GuardedReader(TASKS) as reader:
        facts = {one: ProcessFacts(pid=one)}
        found = lock_sharers.collect(reader, facts, {one: {memory}}, [one, ended.pid], deadline_s=20)
        assert found[one].lock_sharers == (one,)
