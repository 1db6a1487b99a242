"""The procfs functions of the extension: on ourselves, on recorded trees and on processes that are not there."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyhangtrace import _native


def test_thread_counters_lists_every_thread_and_skips_what_is_gone() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        counters = _native.thread_counters([os.getpid(), 2**30])
    finally:
        stop.set()
        thread.join()
    tids = {tid for _, tid, _, _ in counters}
    assert {os.getpid(), thread.native_id} <= tids
    assert {pid for pid, _, _, _ in counters} == {os.getpid()}
    run_ns = {tid: run for _, tid, run, _ in counters}
    assert run_ns[os.getpid()] > 0


def test_read_memory() -> None:
    buffer = ctypes.create_string_buffer(b"some bytes")
    address = ctypes.addressof(buffer)
    assert _native.read_memory(os.getpid(), address, 10) == b"some bytes"
    assert _native.read_memory(os.getpid(), 8, 4) is None
    assert _native.read_memory(2**30, address, 4) is None
    assert _native.read_memory(os.getpid(), address, 1 << 40) is None


def test_maps_names_the_mapping_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a file\nwith a newline"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096, offset=4096):
        found = [one for one in _native.maps(os.getpid()) if one[7] == str(path)]
        path.unlink()
        after = [one for one in _native.maps(os.getpid()) if one[7] == str(path)]
    assert len(found) == 1
    start, end, rights, offset, _, _, inode, _, deleted = found[0]
    assert (end - start, rights, offset, deleted) == (4096, "rw-s", 4096, False)
    assert [(one[0], one[6], one[8]) for one in after] == [(start, inode, True)]


def test_smaps_is_an_array_of_bytes() -> None:
    size = 4 << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    records, paths = _native.smaps(os.getpid())
    assert records.dtype.names == _native.SMAPS_FIELDS
    mine = records[(records["start"] <= address) & (address < records["end"])]
    assert len(mine) == 1
    assert mine["anonymous"][0] >= size
    assert mine["rss"][0] >= size
    assert int(mine["flags"][0]) & (_native.FLAG_READ | _native.FLAG_WRITE) == 3
    libraries = {paths[int(index)] for index in records["path"]}
    assert any("python" in path for path in libraries)
    copied, _ = pickle.loads(pickle.dumps((records, paths)))
    assert (copied == records).all()


def test_map_records_are_the_mappings_without_sizes() -> None:
    records, paths = _native.map_records(os.getpid())
    assert records.dtype.names == _native.MAP_FIELDS
    assert _native.SMAPS_FIELDS[: len(_native.MAP_FIELDS)] == _native.MAP_FIELDS
    assert any("python" in path for path in paths)
    assert len(paths) == len(set(paths))
    assert int(records["path"].max()) < len(paths)
    assert (records["start"] < records["end"]).all()


def test_pages_that_two_map_are_one_set(tmp_path: Path) -> None:
    size = 8 << 20
    path = tmp_path / "weights"
    path.write_bytes(b"x" * size)
    with path.open("rb") as file:
        one = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        other = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    assert sum(one[:: mmap.PAGESIZE]) == sum(other[:: mmap.PAGESIZE])
    records, paths = _native.map_records(os.getpid())
    mine = [record for record in records if paths[int(record["path"])] == str(path)]
    ranges = rows(*((int(record["start"]), int(record["end"]), 0) for record in mine))
    assert int((ranges[:, 1] - ranges[:, 0]).sum()) == 2 * size
    union = _native.PageUnion()
    assert union.add(os.getpid(), ranges, budget_s=60)
    (counts,) = union.counts
    assert (counts["pid"], counts["complete"]) == (os.getpid(), 1)
    assert counts["present"] * mmap.PAGESIZE == 2 * size
    assert counts["file"] == counts["present"]
    if not counts["numbered"]:
        pytest.skip("frames are shown with CAP_SYS_ADMIN only")
    assert counts["frames"] * mmap.PAGESIZE == size
    assert (union.frames, union.unique, union.unique_of(os.getpid())) == (counts["frames"],) * 3
    union.add(os.getpid(), ranges[:1], budget_s=60)
    again = union.counts[1]
    assert union.frames == counts["frames"]
    assert union.unique == counts["frames"] - again["frames"]


def rows(*ranges: tuple[int, int, int]) -> NDArray[np.uint64]:
    return np.array(ranges, np.uint64)


def test_a_walk_ends_with_its_budget() -> None:
    union = _native.PageUnion()
    assert not union.add(os.getpid(), rows((0, 1 << 46, 0)), budget_s=0)
    (counts,) = union.counts
    assert (counts["complete"], counts["present"]) == (0, 0)
    assert union.unique_of(os.getpid() + 1) is None
    with pytest.raises(FileNotFoundError):
        union.add(2**30, rows((0, 4096, 0)), budget_s=1)
    with pytest.raises(ValueError, match="a start, an end"):
        union.add(os.getpid(), np.zeros((2, 2), np.uint64), budget_s=1)
    assert len(union.counts) == 1


def test_rollups_of_several_as_records() -> None:
    records = _native.rollup_records([os.getpid(), 2**30, os.getpid()])
    assert records["pid"].tolist() == [os.getpid()] * 2
    alone = _native.smaps_rollup(os.getpid())
    assert records.dtype.names == ("pid", *_native.SMAPS_FIELDS[len(_native.MAP_FIELDS) :])
    assert int(records["rss"][0]) == pytest.approx(alone["rss"], rel=0.05)
    assert len(_native.rollup_records([])) == 0


def test_rollup_and_status_agree_with_smaps() -> None:
    _native.smaps(os.getpid())  # the first call loads numpy, after it has read
    records, _ = _native.smaps(os.getpid())
    rollup = _native.smaps_rollup(os.getpid())
    status = _native.status(os.getpid())
    rss = int(records["rss"].sum())
    assert rollup["rss"] == pytest.approx(rss, rel=0.05)
    # Kernels from 6.2 on count per CPU and let status lag behind.
    assert status["vm_rss"] == pytest.approx(rss, rel=0.2)
    assert status["tgid"] == os.getpid()
    assert status["uid"] == os.getuid()
    assert status["ns_pids"][0] == os.getpid()


def test_status_of_a_kernel_thread_has_no_memory() -> None:
    if not Path("/proc/2/stat").exists():
        pytest.skip("kernel threads are not visible in this pid namespace")
    status = _native.status(2)
    assert "vm_rss" not in status
    assert len(_native.smaps(2)[0]) == 0


@pytest.mark.parametrize(
    "function", [_native.maps, _native.map_records, _native.smaps, _native.smaps_rollup, _native.status]
)
def test_a_process_that_is_not_there_is_an_os_error(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FileNotFoundError) as caught:
        function(2**30)
    assert str(2**30) in str(caught.value.filename)


def test_recorded_trees_are_read_by_their_root(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "task/7").mkdir(parents=True)
    (process / "task/7/schedstat").write_text("11 22 33\n")
    (process / "maps").write_text("1000-3000 r-xp 00001000 08:02 99    /bin/x y (deleted)\n")
    (process / "status").write_text("Name:\ta b\nTgid:\t7\nVmRSS:\t  12 kB\n")
    root = str(tmp_path)
    assert _native.thread_counters([7, 8], root) == [(7, 7, 11, 33)]
    assert _native.maps(7, root) == [(0x1000, 0x3000, "r-xp", 0x1000, 8, 2, 99, "/bin/x y", True)]
    status = _native.status(7, root)
    assert (status["name"], status["vm_rss"]) == ("a b", 12288)
    assert "vm_swap" not in status
