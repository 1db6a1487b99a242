"""What the page cache holds of a file."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace.collect import cached

MIB = 1 << 20


@pytest.fixture
def half(tmp_path: Path) -> Iterator[int]:
    """A file of which a part is in memory, as far as the file system lets go of the rest."""
    path = tmp_path / "data"
    path.write_bytes(b"x" * (8 * MIB))
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 2 * MIB, 4 * MIB, os.POSIX_FADV_DONTNEED)
        yield descriptor
    finally:
        os.close(descriptor)


def soon() -> float:
    return time.monotonic() + 10


def test_without_cachestat_mincore_says_the_same(half: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = cached.cached_bytes(half, 8 * MIB, soon())
    monkeypatch.setattr(cached, "_SYS_CACHESTAT", 9999)
    told = cached.cached_bytes(half, 8 * MIB, soon())
    assert told is not None
    if known is not None:
        assert told == known
    assert told >= 4 * MIB - mmap.PAGESIZE
    # Asking has brought nothing in.
    assert cached.cached_bytes(half, 8 * MIB, soon()) == told
    monkeypatch.setattr(cached, "_STEP", MIB)
    assert cached.cached_bytes(half, 8 * MIB, soon()) == told


def test_an_empty_file_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    descriptor = os.open(tmp_path / "empty", os.O_RDONLY)
    try:
        monkeypatch.setattr(cached, "_SYS_CACHESTAT", 9999)
        assert cached.cached_bytes(descriptor, 0, soon()) == 0
        assert cached.cached_bytes(descriptor, 0, time.monotonic() - 1) is None
    finally:
        os.close(descriptor)


def test_nothing_is_said_of_files_of_others(half: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would say that all of it is there."""
    monkeypatch.setattr(cached, "_SYS_CACHESTAT", 9999)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cached.cached_bytes(half, 8 * MIB, soon()) is None
