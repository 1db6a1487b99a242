"""Communicators of MPICH, in data of its library made by hand."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from pyhangtrace.collect import mpich
from pyhangtrace.model.groups import MpiFacts

BEGIN = 0x7F0000000000
NAME_AT, STRIDE = 116, 0x368
MADE_AT, BUILT_IN_AT, BYTES = 0x400, 0x2800, 0x4000


def put(
    data: bytearray,
    at: int,
    handle: int,
    *,
    name: str = "",
    size: int = 3,
    rank: int = 1,
    context: int = 0,
    references: int = 1,
) -> None:
    struct.pack_into("<Ii", data, at, handle, references)
    struct.pack_into("<HHii4xQi4xQQi", data, at + 64, context, context, size, rank, 0, size, 0, 0, 0)
    data[at + NAME_AT : at + NAME_AT + len(name)] = name.encode()


def library(**world: int) -> bytearray:
    """Rank 1 of three, with what MPICH makes for itself of the ranks of a node."""
    data = bytearray(BYTES)
    put(data, BUILT_IN_AT, 0x44000000, name="MPI_COMM_WORLD", **world)
    put(data, BUILT_IN_AT + STRIDE, 0x44000001, name="MPI_COMM_SELF", size=1, rank=0, context=0x10)
    for number in range(8):
        put(data, MADE_AT + number * STRIDE, 0x84000000 + number, references=0)
    put(data, MADE_AT, 0x84000000, context=2)
    put(data, MADE_AT + STRIDE, 0x84000001, size=1, rank=0, context=4)
    return data


def read(data: bytearray) -> list[tuple[str, tuple[int, ...], int | None, bool]]:
    found = mpich.read(7, BEGIN, bytes(data))
    assert found is not None
    facts = found.facts
    assert facts.messages is None
    assert not facts.receives
    return [(one.name, one.ranks, one.rank, one.is_default) for one in facts.communicators]


def test_the_world_and_what_has_the_same_ranks() -> None:
    data = library()
    assert read(data) == [("MPI_COMM_WORLD", (0, 1, 2), 1, True)]
    put(data, MADE_AT + 2 * STRIDE, 0x84000002, name="twin", context=0x1F0)
    assert read(data)[1:] == [("twin", (0, 1, 2), 1, False)]


def test_of_some_ranks_it_is_not_known_which() -> None:
    data = library()
    put(data, MADE_AT + 2 * STRIDE, 0x84000002, name="half", size=2, context=0x1F0)
    assert read(data) == []


def test_one_that_was_freed_is_none() -> None:
    data = library()
    put(data, MADE_AT + 2 * STRIDE, 0x84000002, name="half", size=2, context=0x1F0, references=0)
    assert [name for name, *_ in read(data)] == ["MPI_COMM_WORLD"]


def test_more_may_lie_elsewhere() -> None:
    data = library()
    for number in range(8):
        put(data, MADE_AT + number * STRIDE, 0x84000000 + number, context=2)
    assert read(data) == []


def test_what_makes_no_sense_is_not_believed() -> None:
    assert read(library(rank=3)) == []
    assert mpich.read(7, BEGIN, bytes(library()).replace(b"MPI_COMM_SELF", b"MPI_COMM_SOME")) is None
    assert mpich.read(7, BEGIN, b"MPI_COMM_WORLD\0") is None


@given(st.binary(max_size=64), st.integers(0, BYTES - 64))
def test_any_data(garbage: bytes, at: int) -> None:
    data = library()
    data[at : at + len(garbage)] = garbage
    mpich.read(7, BEGIN, bytes(data))
    mpich.read(7, BEGIN, bytes(data[: at + len(garbage)]))


def test_spans_are_the_library_s_data_with_its_bss() -> None:
    maps = b"""55a000000000-55a000001000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r--p 00000000 fe:00 11  /usr/lib/libmpich.so.12.2.2
7f0000001000-7f0000004000 rw-p 00001000 fe:00 11  /usr/lib/libmpich.so.12.2.2
7f0000004000-7f0000008000 rw-p 00000000 00:00 0 \n7f0000009000-7f000000a000 rw-p 00000000 00:00 0 \n"""
    assert mpich.spans(maps) == [(0x7F0000001000, 0x7F0000008000)]


# -- messages ------------------------------------------------------------------------------------------------


def member(pid: int, *rings: int, size: int | None = 3, digest: int | None = 5) -> tuple[int, mpich.Found]:
    files = frozenset(("00:1b", inode) for inode in rings)
    return pid, mpich.Found(facts=MpiFacts(pid=pid), size=size, rings=files, digest=digest)


def messages(*members: tuple[int, mpich.Found]) -> list[int | None]:
    return [facts.messages for facts in mpich.counted(dict(members)).values()]


def test_messages_show_in_rings_that_all_ranks_of_the_world_share() -> None:
    assert messages(*(member(pid, 1, 2, 3, digest=pid) for pid in (7, 8, 9))) == [7, 8, 9]
    # One that is not seen may send, and one by other ways.
    assert messages(*(member(pid, 1, 2, 3) for pid in (7, 8))) == [None, None]
    assert messages(member(7, 1, 2, 3), member(8, 1, 2, 3), member(9, 3)) == [None] * 3
    assert messages(*(member(pid, pid) for pid in (7, 8, 9))) == [None] * 3
    # What is shared by all is too little for a ring of each.
    assert messages(*(member(pid, 1, pid) for pid in (7, 8, 9))) == [None] * 3


def test_two_worlds_on_one_host_are_told_apart() -> None:
    both = [member(7, 1, 2, size=2), member(8, 1, 2, size=2), member(9, 4, 5, size=2)]
    assert messages(*both) == [5, 5, None]


def test_without_a_world_nothing_is_counted() -> None:
    assert messages(*(member(pid, 1, 2, size=None) for pid in (7, 8))) == [None, None]
    assert messages(member(7, 1, size=1)) == [None]
    assert messages(*(member(pid, 1, 2, size=2, digest=None) for pid in (7, 8))) == [None, None]


def test_rings_are_small_shared_memory_of_ucx() -> None:
    maps = b"""7f0000000000-7f0000003000 rw-s 00000000 00:01 15                       /SYSV00000000 (deleted)
7f0000100000-7f0000103000 rw-s 00000000 00:1b 12                       /dev/shm/ucx_shm_posix_8d648e4 (deleted)
7f0000200000-7f0000203000 rw-s 00000000 00:1b 12                       /dev/shm/ucx_shm_posix_8d648e4 (deleted)
7f0000300000-7f0000719000 rw-s 00000000 00:1b 13                       /dev/shm/ucx_shm_posix_4ba01c02 (deleted)
7f0000800000-7f0000803000 rw-p 00000000 00:1b 14                       /dev/shm/ucx_shm_posix_4ba01c03 (deleted)
7f0000900000-7f0000901000 rw-s 00000000 00:1b 16                       /dev/shm/other
"""
    assert mpich.rings(maps) == [
        (("00:01", 15), 0x7F0000000000, 0x7F0000003000),
        (("00:1b", 12), 0x7F0000100000, 0x7F0000103000),
    ]
