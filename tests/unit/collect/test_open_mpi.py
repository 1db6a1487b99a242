"""Communicators of Open MPI and its messages, in memory made by hand."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhangtrace.collect import mpi, open_mpi
from pyhangtrace.collect.open_mpi import Symbols
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import Memory

ARRAY, COMMUNICATOR_CLASS, GROUP_CLASS, LAYER_CLASS, PEER_CLASS, LIST_CLASS = (
    0x10000 * number for number in range(1, 7)
)
SYMBOLS = Symbols(
    communicators=ARRAY,
    communicator_class=COMMUNICATOR_CLASS,
    group_class=GROUP_CLASS,
    ob1=(LAYER_CLASS, PEER_CLASS),
    list_class=LIST_CLASS,
)
NAME_AT = 136


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def posted(memory: Memory, communicator: int, peer: int, tag: int) -> int:
    """A receive in a list of its own; returns the address of the list's sentinel that it leads back to."""
    request = bytearray(800)
    struct.pack_into("<QQQQ", request, 0, 0x7F00, 1, 0, 0)
    struct.pack_into("<Q", request, 176, communicator)
    struct.pack_into("<QQiiQ", request, 456, 0x7F0000, 16, peer, tag, 0x55000)
    return memory.put(bytes(request))


def posted_list(memory: Memory, item: int, sentinel: int) -> bytes:
    if item == 0:
        return words(LIST_CLASS, 1, 0, 0, sentinel, sentinel, 0, 0)
    memory.pieces[item][16:32] = words(sentinel, sentinel)
    return words(LIST_CLASS, 1, 0, 0, item, item, 0, 1)


def job(*, awaits: tuple[int, int] | None = None, counter: int = 5) -> Memory:
    """Rank 0 of three, with the world, its own communicator, and one of ranks 2 and 0."""
    memory = Memory()
    for kind, size in ((LAYER_CLASS, 176), (PEER_CLASS, 128)):
        memory.put(bytes(56) + words(size), kind)
    processes = [memory.put(words(0x9000, number)) for number in range(3)]
    addresses = []
    for name, members, own in (
        ("MPI_COMM_WORLD", (0, 1, 2), 0),
        ("MPI_COMM_SELF", (0,), 0),
        ("MPI_COMM_NULL", (), 0),
        ("halves", (2, 0), 1),
    ):
        table = memory.put(words(*(processes[member] for member in members)))
        group = memory.put(words(GROUP_CLASS, 1) + struct.pack("<iiiiQ", len(members), own, 0, 0, table))
        address = memory.put(bytes(512))
        peers = [0] * max(1, len(members))
        if name == "MPI_COMM_WORLD":
            item = posted(memory, address, *awaits) if awaits else 0
            sentinel = 0x300 + address
            memory.put(words(0, 0, item, item), sentinel)
            content = words(PEER_CLASS, 1, processes[1], counter, 0) + posted_list(memory, item, sentinel)
            peers[1] = memory.put(content.ljust(128, b"\0"))
        layer = words(LAYER_CLASS, 1, counter, memory.put(words(*peers)), len(peers)).ljust(176, b"\0")
        content = bytearray(512)
        content[:16] = words(COMMUNICATOR_CLASS, 1)
        content[NAME_AT : NAME_AT + 64] = name.encode().ljust(64, b"\0")
        struct.pack_into("<Ii", content, NAME_AT + 64, 7, own)
        struct.pack_into("<QQ", content, 240, group, memory.put(layer))
        memory.pieces[address][:] = content
        addresses.append(address)
    table = memory.put(words(*addresses, 0, 0, 0, 0))
    memory.put(
        words(0x7000, 1, *([0] * 8)) + struct.pack("<iiiii4x", 4, 4, 8, 100, 8) + words(0x6000, table, 0),
        ARRAY,
    )
    memory.pieces[ARRAY].extend(bytes(256))
    return memory


def test_communicators_have_names_and_members_by_rank_in_the_world() -> None:
    facts = open_mpi.read(7, job().read, SYMBOLS)
    assert [(one.name, one.ranks, one.rank, one.is_default) for one in facts.communicators] == [
        ("MPI_COMM_WORLD", (0, 1, 2), 0, True),
        ("MPI_COMM_SELF", (0,), 0, False),
        ("halves", (2, 0), 0, False),
    ]


def test_a_message_that_came_shows_and_else_nothing_changes() -> None:
    first, same, later = (open_mpi.read(7, job(counter=n).read, SYMBOLS).messages for n in (5, 5, 6))
    assert first is not None
    assert first == same
    assert first != later


@pytest.mark.parametrize("tag", [7, 0, -12])
def test_a_posted_receive_tells_peer_and_tag(tag: int) -> None:
    facts = open_mpi.read(7, job(awaits=(1, tag)).read, SYMBOLS)
    assert facts.communicators[0].awaits == ((1, tag),)


def test_another_point_to_point_layer_has_no_counters() -> None:
    other = Symbols(
        communicators=ARRAY, communicator_class=COMMUNICATOR_CLASS, group_class=GROUP_CLASS, ob1=None
    )
    facts = open_mpi.read(7, job().read, other)
    assert facts.messages is None
    assert len(facts.communicators) == 3


def test_what_makes_no_sense_gives_nothing() -> None:
    memory = job()
    del memory.pieces[ARRAY]
    assert open_mpi.read(7, memory.read, SYMBOLS).communicators == ()
    memory = job()
    memory.pieces[ARRAY][84:88] = struct.pack("<i", 1 << 30)
    assert open_mpi.read(7, memory.read, SYMBOLS).messages is None


@given(damage=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=40))
def test_damage_never_raises_and_never_reads_without_bounds(damage: list[tuple[int, int]]) -> None:
    memory = job(awaits=(1, 3))

    def read(address: int, size: int) -> bytes | None:
        assert 0 <= size <= 1 << 16
        return memory.read(address, size)

    pieces = [piece for piece in memory.pieces.values() if piece]
    for at, value in damage:
        piece = pieces[at % len(pieces)]
        piece[at % len(piece)] = value
    open_mpi.read(7, read, SYMBOLS)


def test_who_uses_mpi_is_told_by_its_frames() -> None:
    def sample(**frame: Any) -> ThreadSample:
        return ThreadSample(pid=1, tid=1, comm="a", frames=(Frame(kind=FrameKind.NATIVE, **frame),))

    assert mpi.waits_in_mpi([sample(function="PMPI_Recv")])
    assert mpi.waits_in_mpi([sample(function="", module="/usr/lib/libmpi.so.40.30.4")])
    assert not mpi.waits_in_mpi([sample(function="poll", module="/usr/lib/libc.so.6")])
