"""The ring of torch.distributed, made by hand, and what is made of one that is damaged."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhangtrace.collect import flight_recorder
from pyhangtrace.collect.flight_recorder import LAYOUTS, Layout
from tests.unit.collect.helpers import Memory

POINTER, HEAD, RING = 0x1000_0000, 0x2000_0000, 0x3000_0000


def text(image: Memory, into: bytearray, at: int, base: int, value: str) -> None:
    raw = value.encode()
    if len(raw) <= 15:
        struct.pack_into("<QQ16s", into, at, base + at + 16, len(raw), raw)
    else:
        struct.pack_into("<QQ", into, at, image.put(raw), len(raw))


def numbers(image: Memory, into: bytearray, at: int, base: int, values: tuple[int, ...], inside: int) -> None:
    raw = struct.pack(f"<{len(values)}q", *values)
    pointer = base + at + 16 if len(values) <= inside else image.put(raw)
    struct.pack_into("<QII", into, at, pointer, len(values), max(inside, len(values)))
    if len(values) <= inside:
        into[at + 16 : at + 16 + len(raw)] = raw


def entry(image: Memory, layout: Layout, index: int, fields: Mapping[str, object]) -> bytes:
    what = {"group": "0", "description": "default_pg", "op": "gloo:all_reduce", "seq": 1, "done": False}
    what |= {"shape": (4, 2), "pg_id": 0, "p2p": False, "epoch": 0, **fields}
    base = RING + index * layout.size
    made = bytearray(layout.size)
    # Strings and vectors point into the entry itself, so they are made at their offset from the ring's start.
    at = bytearray(layout.size)
    struct.pack_into("<Q", at, layout.pg_id, what["pg_id"])
    if layout.epoch:
        struct.pack_into("<Q", at, layout.epoch, what["epoch"])
    text(image, at, layout.name, base, str(what["group"]))
    text(image, at, layout.description, base, str(what["description"]))
    text(image, at, layout.operation, base, str(what["op"]))
    struct.pack_into("<QQ", at, layout.sequence, what["seq"], what["seq"])
    at[layout.is_p2p] = bool(what["p2p"])
    at[layout.retired] = bool(what["done"])
    shape = what["shape"]
    assert isinstance(shape, tuple)
    numbers(image, at, layout.input_dims, base, (len(shape),), 4)
    numbers(image, at, layout.output_dims, base, (len(shape),), 4)
    numbers(image, at, layout.sizes, base, (*shape, *shape), 8)
    types = image.put(b"\x06")
    struct.pack_into("<QQ", at, layout.input_dtypes, types, types + 1)
    made[:] = at
    return bytes(made)


def recorder(
    *entries: Mapping[str, object], layout: Layout = LAYOUTS[0], most: int = 2000, after: int | None = None
) -> Memory:
    image = Memory()
    ring = b"".join(entry(image, layout, index, fields) for index, fields in enumerate(entries))
    end = RING + len(ring)
    count = len(entries) + (most if after is not None and len(entries) == most else 0)
    numbers_of_ring = struct.pack(
        "<6Q", RING, end, end, most, after if after is not None else len(entries), count
    )
    image.pieces[HEAD] = bytearray(b"\x01\x00" + bytes(6) + bytes(40) + numbers_of_ring + bytes(64))
    image.pieces[RING] = bytearray(ring)
    image.pieces[POINTER] = bytearray(HEAD.to_bytes(8, "little"))
    return image


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_has_not_ended_and_the_last_of_each_group(layout: Layout) -> None:
    image = recorder(
        {"seq": 1, "done": True},
        {"seq": 2, "done": True},
        {"seq": 1, "group": "7", "description": "tp", "pg_id": 7, "op": "gloo:broadcast"},
        {"seq": 3, "shape": (16, 4, 2, 3, 5)},
        layout=layout,
    )
    found = flight_recorder.read(image.read, POINTER)
    assert found is not None
    assert [(one.group, one.operation, one.sequence, one.done) for one in found.entries] == [
        ("7", "broadcast", 1, False),
        ("0", "all_reduce", 3, False),
    ]
    assert found.entries[1].inputs == ((16, 4, 2, 3, 5),)
    assert (found.entries[1].dtype, found.entries[1].backend) == ("float32", "gloo")
    assert found.whole


def test_names_that_do_not_fit_into_the_string_itself() -> None:
    hashed = "d2a84f4b8b650937ec8f73cd8be2c74add5a911b"
    image = recorder({"op": "nccl:_all_gather_base", "group": hashed})
    found = flight_recorder.read(image.read, POINTER)
    assert found is not None
    assert (found.entries[0].group, found.entries[0].operation) == (hashed, "_all_gather_base")


def test_a_ring_that_has_gone_round_begins_where_it_will_go_on() -> None:
    image = recorder({"seq": 9}, {"seq": 7}, {"seq": 8}, most=3, after=1)
    found = flight_recorder.read(image.read, POINTER)
    assert found is not None
    assert [one.sequence for one in found.entries] == [7, 8, 9]
    assert not found.whole


def test_entries_of_before_a_reset_are_no_part_of_it() -> None:
    image = recorder({"seq": 9, "epoch": 0}, {"seq": 1, "epoch": 1})
    found = flight_recorder.read(image.read, POINTER)
    assert found is not None
    assert [one.sequence for one in found.entries] == [1]


def test_one_that_is_off_or_not_there() -> None:
    image = recorder()
    image.pieces[HEAD][0] = 0
    image.pieces[HEAD][48:96] = bytes(48)
    found = flight_recorder.read(image.read, POINTER)
    assert found is not None
    assert not found.enabled
    image.pieces[POINTER][:] = bytes(8)
    assert flight_recorder.read(image.read, POINTER) is None


def test_one_that_goes_on_while_it_is_read_gives_nothing() -> None:
    image = recorder({"seq": 1}, {"seq": 2})

    def read(address: int, size: int) -> bytes | None:
        count = int.from_bytes(image.pieces[HEAD][88:96], "little")
        image.pieces[HEAD][88:96] = (count + 1).to_bytes(8, "little")
        return image.read(address, size)

    assert flight_recorder.read(read, POINTER) is None


@given(damage=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=40))
def test_damage_never_raises_and_never_reads_without_bounds(damage: list[tuple[int, int]]) -> None:
    image = recorder(*({"seq": number, "group": "a" * 20} for number in range(1, 5)))

    def read(address: int, size: int) -> bytes | None:
        assert 0 <= size <= flight_recorder.MAX_ENTRIES * LAYOUTS[0].size
        return image.read(address, size)

    pieces = list(image.pieces.values())
    for at, value in damage:
        piece = pieces[at % len(pieces)]
        piece[at % len(piece)] = value
    flight_recorder.read(read, POINTER)
