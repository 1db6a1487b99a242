"""When page tables are walked, and what is read of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyhangtrace.collect import smaps
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.processes import ProcessMemory
from tests.unit.collect.helpers import program

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


_MAPS = """
    import mmap, signal, sys
    file = open(sys.argv[1], "rb")
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    touched = sum(view[:: mmap.PAGESIZE])
    print("ready", touched, flush=True)
    signal.pause()
"""


def test_shares_of_a_page_that_two_map(tmp_path: Path) -> None:
    pytest.importorskip("pyhangtrace._native", reason="the extension is not built")
    size = 32 * MIB
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * size)
    with program(_MAPS, str(path)) as one, program(_MAPS, str(path)) as other:
        memories = {child.pid: memory(MIB, 2 * size) for child in (one, other)}
        with GuardedReader(TASKS) as reader:
            found, status = smaps.exact(reader, memories, deadline_s=10)
    assert status.state is SourceState.USED
    for child in (one, other):
        pss, uss = found[child.pid].pss, found[child.pid].uss
        assert pss is not None
        assert uss is not None
        # Half of the file, and shares of the interpreter and its libraries.
        assert size // 2 <= pss - uss < size


def test_a_process_that_is_gone_is_left_as_it_was() -> None:
    pytest.importorskip("pyhangtrace._native", reason="the extension is not built")
    nobody = 4_194_303
    memories = {nobody: memory(MIB, 64 * MIB), nobody - 1: memory(MIB, 64 * MIB)}
    with GuardedReader(TASKS) as reader:
        found, status = smaps.exact(reader, memories, deadline_s=10)
    assert found == memories
    assert status.state is SourceState.REFUSED
