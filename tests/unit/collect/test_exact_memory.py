"""What processes hold together, to the page: programs whose pages are known, and walks that are not whole."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace.collect import exact_memory
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.memory_counters import hugetlb_in_use
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.memory import ExactMemory, ExactProcess
from pyhangtrace.model.processes import ProcessMemory
from tests.unit.collect.helpers import blocked, program

pytest.importorskip("pyhangtrace._native", reason="the extension is not built")

MIB = 1 << 20
SIZE = 64 * MIB
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def walk(*pids: int, budget_s: float = 30.0, workers: int | None = None) -> ExactMemory:
    memories = {pid: ProcessMemory(rss=SIZE) for pid in pids}
    with GuardedReader(TASKS) as reader:
        found, _ = exact_memory.collect(reader, memories, {}, budget_s=budget_s, workers=workers)
    assert found.complete, found
    return found


def frames_of(memory: ExactMemory) -> int:
    if memory.frames is None:
        pytest.skip("page frames are shown with CAP_SYS_ADMIN only")
    return memory.frames


def of(memory: ExactMemory, pid: int) -> ExactProcess:
    (found,) = [process for process in memory.processes if process.pid == pid]
    assert found.problem is None
    return found


# Forks children that write to a part of what they have got from their parent; prints all pids.
_FORKS = """
    import mmap, os, signal, sys
    size, share, children = map(int, sys.argv[1:4])
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if len(sys.argv) > 4:
        memory.madvise(int(sys.argv[4]))
    memory.write(b"x" * size)
    read, write = os.pipe()
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            for at in range(0, share, mmap.PAGESIZE):
                memory[at] = 1
            os.write(write, b"x")
            signal.pause()
        pids.append(pid)
    for _ in pids:
        os.read(read, 1)
    print("ready", *pids, flush=True)
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
"""
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE = 14, 15


@contextlib.contextmanager
def forked(share: int, children: int, advice: int) -> Iterator[list[int]]:
    with program(_FORKS, str(SIZE), str(share), str(children), str(advice)) as parent:
        pids = [
            int(child) for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ]
        assert len(pids) == children
        for pid in (parent.pid, *pids):
            blocked(pid, lambda sample: sample.state == "S")  # until then it may touch a page more
        try:
            yield [parent.pid, *pids]
        finally:
            assert parent.stdin is not None
            parent.stdin.close()
            parent.wait(30)


def test_pages_copied_on_write_are_many_and_the_others_one() -> None:
    written = SIZE // 8
    with forked(written, 3, _MADV_NOHUGEPAGE) as pids:
        found = walk(*pids)
        alone = walk(pids[0])
    group, rest = frames_of(found), frames_of(alone) - SIZE
    # The parent's pages, what each child has written, and what else a Python program has.
    assert SIZE + 3 * written <= group <= SIZE + 3 * written + 4 * rest
    for pid in pids[1:]:
        process = of(found, pid)
        assert process.unique is not None
        assert written <= process.unique <= written + rest
    assert found.unique is not None
    # The parent's copy of what all three have written is its own.
    assert 4 * written <= found.unique <= 4 * written + 4 * rest
    assert sum(process.rss or 0 for process in found.processes) > 3 * SIZE


def test_huge_pages_are_counted_whole() -> None:
    with forked(0, 1, _MADV_HUGEPAGE) as pids:
        found = walk(*pids)
    huge = of(found, pids[0]).anon_huge
    if not huge:
        pytest.skip("no transparent huge pages here")
    assert SIZE <= frames_of(found) <= SIZE + 40 * MIB
    shared = frames_of(found) - (found.unique or 0)
    assert SIZE - 2 * MIB <= shared <= SIZE + 40 * MIB


_MAPS = """
    import mmap, os, signal, sys
    size = int(sys.argv[2])
    if sys.argv[1] == "memfd":
        file = os.open(sys.argv[3], os.O_RDWR)
    else:
        file = os.open(sys.argv[1], os.O_RDWR)
    view = mmap.mmap(file, size)
    touched = sum(view[:: mmap.PAGESIZE])
    print("ready", touched, flush=True)
    sys.stdin.read()
"""


def shared_by_two(path: str, *more: str) -> None:
    with program(_MAPS, path, str(SIZE), *more) as one, program(_MAPS, path, str(SIZE), *more) as other:
        found = walk(one.pid, other.pid)
        single = walk(one.pid)
    rest = frames_of(single) - SIZE
    assert 0 < rest < 30 * MIB
    assert SIZE + rest <= frames_of(found) < SIZE + 2 * rest
    for pid in (one.pid, other.pid):
        process = of(found, pid)
        (file,) = [share for share in process.files if share.rss == SIZE]
        assert file.pss == pytest.approx(SIZE / 2, rel=0.01)
        assert process.unique is not None
        assert process.unique < rest


def test_a_segment_of_shm() -> None:
    path = Path(f"/dev/shm/hangtrace-test-{os.getpid()}")
    try:
        path.write_bytes(b"x" * SIZE)
        shared_by_two(str(path))
    finally:
        path.unlink()


def test_a_memfd() -> None:
    descriptor = os.memfd_create("weights")
    try:
        os.write(descriptor, b"x" * SIZE)
        shared_by_two("memfd", f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


@pytest.fixture
def huge_pool() -> Iterator[None]:
    """Some huge pages for a test, which are given back."""
    if os.geteuid() != 0 or not POOL.exists():
        pytest.skip("needs root and a pool of huge pages of 2 MiB")
    with POOL.open("r+") as pool:
        # Whoever tests here at the same time waits, or pages are left over.
        fcntl.flock(pool, fcntl.LOCK_EX)
        before = int(POOL.read_text())
        POOL.write_text(f"{before + 8}\n")
        try:
            if int(POOL.read_text()) < before + 8:
                pytest.skip("the machine has no eight huge pages to spare")
            yield
        finally:
            POOL.write_text(f"{before}\n")


_HUGE = """
    import mmap, sys
    MAP_HUGETLB = 0x40000
    view = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
    view.write(b"x" * len(view))
    import os, signal
    child = os.fork()
    if child == 0:
        sum(view[::4096])
        print("ready", flush=True)
        signal.pause()
    sys.stdin.read()
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.root
def test_the_pool_of_huge_pages_is_in_no_rss_and_in_the_union_once(huge_pool: None) -> None:
    with program(_HUGE) as parent:
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        found = walk(parent.pid, int(child))
        by_hand = len(frames_by_hand(parent.pid) | frames_by_hand(int(child))) * mmap.PAGESIZE
        in_use = hugetlb_in_use()
        assert parent.stdin is not None
        parent.stdin.close()
        parent.wait(30)
    assert found.hugetlb_frames == 8 * MIB
    assert frames_of(found) == pytest.approx(by_hand, rel=0.001)
    assert [process.hugetlb for process in found.processes] == [8 * MIB, 8 * MIB]
    assert all((process.rss or 0) < frames_of(found) for process in found.processes)
    assert in_use is not None
    assert in_use >= 8 * MIB


_SLEEP = """
    import sys
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_one_that_would_take_too_long_is_left_out_and_told() -> None:
    with program(_SLEEP) as small, program(_SLEEP) as big, GuardedReader(TASKS) as reader:
        memories = {small.pid: ProcessMemory(rss=MIB), big.pid: ProcessMemory(rss=400 << 30)}
        found, status = exact_memory.collect(reader, memories, {}, budget_s=1.0)
    assert not found.complete
    assert {process.pid: process.problem for process in found.processes} == {
        small.pid: None,
        big.pid: "no_time",
    }
    assert status.state is SourceState.TIMED_OUT
    assert "1 processes: not within the time given" in status.reason
    assert "--budget" in status.fix


def test_a_locked_memory_map_is_not_touched_and_its_thread_named() -> None:
    with program(_SLEEP) as one, GuardedReader(TASKS) as reader:
        memories = {one.pid: ProcessMemory(rss=MIB), 77: ProcessMemory(rss=MIB)}
        found, status = exact_memory.collect(reader, memories, {77: 79}, budget_s=10.0)
    (locked,) = [process for process in found.processes if process.pid == 77]
    assert (locked.problem, locked.problem_tid) == ("mmap_lock_held", 79)
    assert not found.complete
    assert "memory map locked" in status.reason


def test_one_that_has_ended_holds_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with program(_SLEEP) as one, GuardedReader(TASKS) as reader:
        memories = {one.pid: ProcessMemory(rss=MIB), gone.pid: ProcessMemory(rss=MIB)}
        found, _ = exact_memory.collect(reader, memories, {}, budget_s=10.0)
    assert found.complete, found
    assert {process.pid: process.problem for process in found.processes} == {one.pid: None, gone.pid: "gone"}


def frames_by_hand(pid: int) -> set[int]:
    """Page frames of a process by the rules of the kernel's documentation alone, from every page of every mapping."""
    found: set[int] = set()
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if line.endswith(("[vsyscall]", "[vvar]", "[vvar_vclock]")):
                continue
            start, end = (int(word, 16) // mmap.PAGESIZE for word in line.split(" ", 1)[0].split("-"))
            file.seek(start * 8)
            entries = struct.unpack(f"<{end - start}Q", file.read((end - start) * 8))
            found.update(entry & (1 << 55) - 1 for entry in entries if entry >> 63)
    return found


def test_it_is_the_union_that_the_kernels_documentation_describes() -> None:
    path = Path(f"/dev/shm/hangtrace-test-{os.getpid()}")
    memfd = os.memfd_create("weights")
    try:
        path.write_bytes(b"x" * SIZE)
        os.write(memfd, b"x" * SIZE)
        with contextlib.ExitStack() as stack:
            pids = [stack.enter_context(program(_MAPS, str(path), str(SIZE))).pid for _ in range(4)]
            weights = ("memfd", str(SIZE), f"/proc/{os.getpid()}/fd/{memfd}")
            pids += [stack.enter_context(program(_MAPS, *weights)).pid for _ in range(2)]
            pids += stack.enter_context(forked(SIZE // 8, 2, _MADV_NOHUGEPAGE))
            pids += stack.enter_context(forked(SIZE // 8, 1, _MADV_HUGEPAGE))
            found = frames_of(walk(*pids))
            by_hand = len(set().union(*map(frames_by_hand, pids))) * mmap.PAGESIZE
    finally:
        path.unlink()
        os.close(memfd)
    assert found == pytest.approx(by_hand, rel=0.001)


def test_walks_side_by_side_give_the_same() -> None:
    with forked(SIZE // 4, 3, _MADV_NOHUGEPAGE) as pids:
        serial, parallel = walk(*pids, workers=1), walk(*pids, workers=4)
    assert (serial.workers, parallel.workers) == (1, 4)
    assert serial.mode is parallel.mode
    assert frames_of(serial) == frames_of(parallel)
    assert [process.unique for process in serial.processes] == [
        process.unique for process in parallel.processes
    ]


@pytest.mark.root
def test_without_the_right_to_see_frames_shares_are_what_there_is() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give the right up")
    code = f"""
        import ctypes, os, sys
        CAP_SYS_ADMIN = 21
        ctypes.CDLL(None).prctl(24, CAP_SYS_ADMIN, 0, 0, 0)  # PR_CAPBSET_DROP
        if len(sys.argv) == 1:
            os.execv(sys.executable, [sys.executable, __file__, "again"])
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from pyhangtrace.collect import exact_memory
        from pyhangtrace.collect.guarded import GuardedReader
        from pyhangtrace.collect.tasks import TASKS
        from pyhangtrace.model.processes import ProcessMemory
        with GuardedReader(TASKS) as reader:
            found, status = exact_memory.collect(
                reader, {{os.getppid(): ProcessMemory(rss=1 << 20)}}, {{}}, budget_s=20.0
            )
        print(found.mode.value, found.frames, found.complete, found.processes[0].uss > 0, status.reason)
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "walk.py"
        script.write_text(textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.stdout.startswith("rollup None True True page frames need CAP_SYS_ADMIN"), done.stderr
