#!/usr/bin/env python3
"""Writes what the iterators' programs ask of a kernel's type information, and nothing else, as type information.

    reduce_btf.py /sys/kernel/btf/vmlinux ../data/btf/6.18.btf

Of a kernel that does not run here: `objcopy --dump-section .BTF=FILE vmlinux /dev/null`.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

KEPT = {
    "task_struct": ("pid", "tgid", "on_cpu", "se", "mm", "signal"),
    "sched_entity": ("sum_exec_runtime",),
    "signal_struct": ("real_timer",),
    "hrtimer": ("node", "state", "is_queued"),
    "timerqueue_node": ("expires",),
    "timerqueue_linked_node": ("expires",),
    "mm_struct": ("mmap_lock",),
    "rw_semaphore": ("owner",),
    "file": ("f_inode",),
    "inode": ("i_ino", "i_mode", "i_pipe"),
    "socket": ("sk",),
    "sock": ("sk_rcvtimeo", "sk_sndtimeo", "sk_protocol"),
    "inet_connection_sock": ("icsk_user_timeout",),
    "pipe_inode_info": ("head", "tail", "max_usage", "ring_size", "bufs"),
    "pipe_buffer": ("len",),
}
FUNCTIONS = ("bpf_iter_task", "bpf_iter_task_file")
# BTF_KIND_*, and the bytes behind a struct btf_type of each, for all and for each of its parts.
INT, STRUCT, UNION, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNCTION, TYPE_TAG = 1, 4, 5, 8, 9, 10, 11, 12, 18
BEHIND = {
    INT: (4, 0),
    3: (12, 0),
    STRUCT: (0, 12),
    UNION: (0, 12),
    6: (0, 8),
    13: (0, 8),
    14: (4, 0),
    15: (0, 12),
}
BEHIND |= {17: (4, 0), 19: (0, 12)}
PLACEHOLDER = 1


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    kind: int
    flag: bool
    size_or_type: int
    behind: bytes


def read(content: bytes) -> tuple[list[Type | None], bytes]:
    """All types by their id, and the strings."""
    head, types_at, types_size, strings_at, strings_size = struct.unpack_from("<5I", content, 4)
    texts = content[head + strings_at : head + strings_at + strings_size]

    found: list[Type | None] = [None]
    at = head + types_at
    while at < head + types_at + types_size:
        name, info, size_or_type = struct.unpack_from("<3I", content, at)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        alone, each = BEHIND.get(kind, (0, 0))
        end = at + 12 + alone + each * count
        text = texts[name : texts.index(b"\0", name)].decode()
        found.append(Type(text, kind, bool(info >> 31), size_or_type, content[at + 12 : end]))
        at = end
    return found, texts


class Reduced:
    """Type information in the making."""

    def __init__(self, types: list[Type | None], texts: bytes) -> None:
        self._types = types
        self._texts = texts
        self._parts: list[bytes] = []
        self._strings = bytearray(1)
        self._made: dict[tuple[int, str], int] = {}
        self._numbers: dict[int, int] = {}
        assert self._number(4) == PLACEHOLDER

    def structure(self, number: int, outer: str = "") -> int:
        """The id that a struct or union has here; a member without a name is part of the one called `outer`."""
        if (number, outer) not in self._made:
            one = self._types[number]
            assert one is not None
            members = self._members(one, outer)
            behind = b"".join(struct.pack("<3I", self._string(name), *rest) for name, *rest in members)
            self._made[number, outer] = self._add(
                one.name, one.kind, len(members), one.size_or_type, behind, flag=one.flag
            )
        return self._made[number, outer]

    def _number(self, size: int) -> int:
        if size not in self._numbers:
            self._numbers[size] = self._add(f"u{8 * size}", INT, 0, size, struct.pack("<I", 8 * size))
        return self._numbers[size]

    def function(self, name: str) -> None:
        self._add(name, FUNCTION, 0, PLACEHOLDER, b"")

    def content(self) -> bytes:
        types = b"".join(self._parts)
        head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._strings))
        return head + types + bytes(self._strings)

    def _members(self, one: Type, outer: str) -> list[tuple[str, int, int]]:
        found = []
        wanted = KEPT.get(outer or one.name, ())
        for offset, target, place in struct.iter_unpack("<3I", one.behind):
            name = self._texts[offset : self._texts.index(b"\0", offset)].decode()
            actual = self._plain(target)
            inner = self._types[actual] if actual else None
            compound = inner is not None and inner.kind in (STRUCT, UNION)
            if name == "" and compound and inner is not None:
                if self._members(inner, outer or one.name):
                    found.append((name, self.structure(actual, outer or one.name), place))
            elif name in wanted:
                kept = compound and inner is not None and inner.name in KEPT
                other = self._number(inner.size_or_type) if inner and inner.kind == INT else PLACEHOLDER
                found.append((name, self.structure(actual) if kept else other, place))
        return found

    def _plain(self, number: int) -> int:
        one = self._types[number] if number else None
        while one is not None and one.kind in (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG):
            number = one.size_or_type
            one = self._types[number] if number else None
        return number

    def _string(self, text: str) -> int:
        if not text:
            return 0
        at = len(self._strings)
        self._strings += text.encode() + b"\0"
        return at

    def _add(
        self, name: str, kind: int, count: int, size_or_type: int, behind: bytes, *, flag: bool = False
    ) -> int:
        info = int(flag) << 31 | kind << 24 | count
        self._parts.append(struct.pack("<3I", self._string(name), info, size_or_type) + behind)
        return len(self._parts)


def reduce(content: bytes) -> bytes:
    types, texts = read(content)
    reduced = Reduced(types, texts)
    seen = set()
    for number, one in enumerate(types):
        # The first of a name, as the reader takes it.
        if one is None or (one.kind, one.name) in seen:
            continue
        if one.kind == STRUCT and one.name in KEPT:
            reduced.structure(number)
        elif one.kind == FUNCTION and one.name in FUNCTIONS:
            reduced.function(one.name)
        else:
            continue
        seen.add((one.kind, one.name))
    return reduced.content()


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(reduce(Path(sys.argv[1]).read_bytes()))
