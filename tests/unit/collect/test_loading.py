"""Which big files are being read, and how far they have got between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyhangtrace.collect import loading, maps
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from tests.unit.collect.helpers import program

MIB = 1 << 20
SIZE = 32 * MIB

# Reads as many megabytes as each line says, and says that it has.
_READS = """
    import sys
    file = open(sys.argv[1], "rb", buffering=0)
    print("ready", flush=True)
    for line in sys.stdin:
        left = int(line) << 20
        while left:
            left -= len(file.read(min(left, 1 << 20)))
        print("read", flush=True)
"""


def shards(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    for path in paths:
        path.write_bytes(b"x" * SIZE)
    (folder / "model.json").write_bytes(b"x" * SIZE)
    (folder / "model-00009-of-00009.small").write_bytes(b"x")
    return paths


def test_positions_move_and_siblings_are_found(tmp_path: Path) -> None:
    first, second, third = shards(tmp_path, 3)
    with program(_READS, str(second)) as child, GuardedReader(TASKS) as reader:
        assert child.stdin is not None
        assert child.stdout is not None
        watch = loading.Watch(reader, {}, [child.pid], deadline_s=10)
        child.stdin.write("5\n")
        child.stdin.flush()
        assert child.stdout.readline() == "read\n"
        found = watch.finish(deadline_s=10)
    assert [file.path for file in found] == [str(first), str(second), str(third)]
    by_path = {file.path: file for file in found}
    assert by_path[str(second)].positions == ((child.pid, 0, 5 * MIB),)
    assert by_path[str(second)].readers == (child.pid,)
    assert [file.readers for file in (by_path[str(first)], by_path[str(third)])] == [(), ()]
    assert all(file.size == SIZE for file in found)
    # Just written, so all of it is in the page cache, where the kernel can tell (Linux 6.5).
    assert {file.cached_after for file in found} <= {SIZE, None}


def test_what_comes_in_pieces_is_looked_at_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = shards(tmp_path, 1)
    with program(_READS, str(path)) as child, GuardedReader(TASKS) as reader:
        watch = loading.Watch(reader, {}, [child.pid], deadline_s=10)
        watch.patience_s = 1.0

        def read_on(_: float) -> None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("5\n")
            child.stdin.flush()
            assert child.stdout.readline() == "read\n"

        monkeypatch.setattr(loading.time, "sleep", read_on)
        [found] = watch.finish(deadline_s=10)
    assert found.positions == ((child.pid, 0, 5 * MIB),)


_MAPS = """
    import mmap, sys
    file = open(sys.argv[1], "rb")
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    file.close()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_mapped_file_and_one_written_to(tmp_path: Path) -> None:
    (path,) = shards(tmp_path, 1)
    with program(_MAPS, str(path)) as child, GuardedReader(TASKS) as reader:
        mapped = maps.collect(reader, [child.pid], deadline_s=10)
        mappings = {pid: one.files for pid, one in mapped.items()}
        (found,) = loading.Watch(reader, mappings, [child.pid], deadline_s=10).finish(deadline_s=10)
    # Python's mapping keeps a descriptor, which stands at the begin.
    assert (found.path, found.mappers, found.positions) == (str(path), (child.pid,), ((child.pid, 0, 0),))


_WRITES = """
    import sys
    file = open(sys.argv[1], "r+b" if sys.argv[2] == "both" else "wb")
    file.truncate(32 << 20)
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_is_only_written_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.touch()
    for mode, expected in (("only", 0), ("both", 1)):
        with program(_WRITES, str(path), mode) as child, GuardedReader(TASKS) as reader:
            found = loading.Watch(reader, {}, [child.pid], deadline_s=10).finish(deadline_s=10)
        assert len(found) == expected
