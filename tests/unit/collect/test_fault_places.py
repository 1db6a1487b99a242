"""What page faults in a piece of addresses can be put down to."""

from __future__ import annotations

import pytest

from pyhangtrace.collect.fault_places import GONE, only_mapping

START, END = 0x20_0000, 0x40_0000


@pytest.mark.parametrize(
    ("mappings", "name"),
    [
        ([(0, 0x80_0000, "/data/model.bin")], "/data/model.bin"),
        ([(0, 0x30_0000, "/lib/libc.so.6"), (0x30_0000, END, "/lib/libc.so.6")], "/lib/libc.so.6"),
        ([(START, 0x30_0000, ""), (0x30_0000, END, "")], ""),
        # The most of it is no proof: the rest may have all the faults.
        ([(START, 0x3F_0000, "/lib/libc.so.6"), (0x3F_0000, END, "")], None),
        # Nor is what is left: memory that is free now may have been touched.
        ([(0x30_0000, END, "/lib/libc.so.6")], None),
        ([(0x30_0000, 0x30_1000, "")], None),
        # Where the kernel puts nothing else.
        ([(START, 0x28_0000, "[heap]")], "[heap]"),
        ([(0x38_0000, END, "[stack]")], "[stack]"),
        ([(START, 0x28_0000, "/app"), (0x28_0000, 0x30_0000, "[heap]")], None),
        ([(0, START, "/lib/before.so"), (END, 0x80_0000, "/lib/after.so")], GONE),
        ([], GONE),
    ],
)
def test_a_place_is_only_what_all_of_it_is(mappings: list[tuple[int, int, str]], name: str | None) -> None:
    assert only_mapping(mappings, START, END) == name
