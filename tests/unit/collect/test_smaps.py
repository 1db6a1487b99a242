"""When page tables are walked, and what is read of them."""

from __future__ import annotations

import mmap
import os
import signal
from pathlib import Path

import pytest

from pyhangtrace.collect import smaps
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.evidence import ProcessMemory
from pyhangtrace.model.kinds import SourceState

MIB = 1 << 20
GIB = 1 << 30


def memory(anon: int, file: int) -> ProcessMemory:
    return ProcessMemory(rss=anon + file, anon=anon, file=file, shmem=0)


@pytest.mark.parametrize(
    ("memories", "why"),
    [
        ({}, "no process"),
        ({1: ProcessMemory()}, "no process"),
        ({1: memory(GIB, 10 * MIB), 2: memory(GIB, 10 * MIB)}, "status say enough"),
        ({pid: memory(GIB, 400 * GIB) for pid in range(8)}, "would take about 5"),
        ({pid: memory(0, 300 * MIB) for pid in range(100)}, "hold up the targets' mmap"),
    ],
)
def test_walks_that_are_not_worth_it(memories: dict[int, ProcessMemory], why: str) -> None:
    assert why in (smaps.reason_to_skip(memories) or "")


def test_small_processes_that_share_are_walked() -> None:
    assert smaps.reason_to_skip({pid: memory(100 * MIB, 200 * MIB) for pid in range(8)}) is None


def test_shares_of_a_page_mapped_by_parent_and_child(tmp_path: Path) -> None:
    pytest.importorskip("pyhangtrace._native", reason="the extension is not built")
    size = 32 * MIB
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * size)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), size, prot=mmap.PROT_READ) as view:
        assert sum(view[:: mmap.PAGESIZE]) == size // mmap.PAGESIZE
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            touched = sum(view[:: mmap.PAGESIZE])
            os.write(tell, b"." if touched else b"!")
            while True:
                signal.pause()
        try:
            os.read(ready, 1)
            memories = {pid: memory(MIB, 2 * size) for pid in (os.getpid(), child)}
            with GuardedReader(TASKS) as reader:
                found, status = smaps.exact(reader, memories, deadline_s=10)
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(ready)
            os.close(tell)
    assert status.state is SourceState.USED
    pss = [found[pid].pss for pid in (os.getpid(), child)]
    uss = found[child].uss
    assert uss is not None
    # Three map it meanwhile, the reader's helper too (forked from us): the child pays for a share, not for all.
    assert pss[1] is not None
    assert size // 4 <= pss[1] - uss <= size


def test_a_process_that_is_gone_is_left_as_it_was() -> None:
    pytest.importorskip("pyhangtrace._native", reason="the extension is not built")
    nobody = 4_194_303
    memories = {nobody: memory(MIB, 64 * MIB), nobody - 1: memory(MIB, 64 * MIB)}
    with GuardedReader(TASKS) as reader:
        found, status = smaps.exact(reader, memories, deadline_s=10)
    assert found == memories
    assert status.state is SourceState.REFUSED
