"""Communicators of MPICH (and of what is made of it), out of the static data of its library.

It keeps the first ones of each kind in arrays within itself: MPI_COMM_WORLD and MPI_COMM_SELF, and eight that are made
later (src/include/mpir_objects.h, mpir_comm.h; seen in 4.0.2, 64-bit). None has a symbol outside of it. What tells them
are their handles, which begin them, and their names.

Messages are not numbered where a foreign eye finds it. But with UCX below (Debian's build), ranks of one host send them
through memory that they share: each has a ring of its own in it, of which all others fill the entries (uct/sm/mm/base/
mm_iface.h). Where every rank of the world has the rings of all others mapped, no message comes or goes that leaves them
as they are; who polls only reads them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyhangtrace.collect.memory import Read
from pyhangtrace.collect.procfs import printable, read_bytes
from pyhangtrace.model.groups import MpiFacts, ProcessGroupFacts

WORLD = "MPI_COMM_WORLD"
_SELF = "MPI_COMM_SELF"
# Kind of the handle (built in, direct, indirect), kind of the object, number.
_WORLD_HANDLE, _SELF_HANDLE, _FIRST_MADE = 0x44000000, 0x44000001, 0x84000000
_MADE_AT_ONCE = 8  # further ones lie elsewhere
_BEFORE_NAME = 512  # most bytes from the begin of one to its name
_NAME_BYTES = 128
# From the name backwards: kind, two groups, size of the own group, attributes, rank, size, two context ids.
_KIND, _LOCAL_SIZE, _RANK, _SIZE, _CONTEXT = -4, -28, -44, -48, -52
_BETWEEN_GROUPS = 1  # MPIR_COMM_KIND__INTERCOMM
# Of a context id: those that MPICH makes for itself, of one node or of one rank a node.
_OWN_PURPOSE = 0x6
_MOST_RANKS = 1 << 20
_LARGEST_DATA = 64 << 20
_PAGE = 4096
_PRESENT = 1 << 63
_LINE = re.compile(
    rb"(?P<low>[0-9a-f]+)-(?P<high>[0-9a-f]+) rw.p [0-9a-f]+ [0-9a-f:]+ [0-9]+ *(?P<path>[^\n]*)"
)
_LIBRARY = re.compile(rb"libmpi(ch|_\w+)?\.so")

# Memory that UCX shares: of shm_open() and shmget().
_SHARED = re.compile(
    rb"(?P<low>[0-9a-f]+)-(?P<high>[0-9a-f]+) rw.s [0-9a-f]+ (?P<device>[0-9a-f:]+) (?P<inode>[0-9]+) +"
    rb"/(dev/shm/ucx_shm_|SYSV)"
)
# A ring is of some pages; what is larger holds the contents of messages, which are told of in a ring.
_LARGEST_RING = 1 << 20
_MOST_OF_RINGS = 16 << 20

#: Address and content.
Part = tuple[int, bytes]
#: Device and inode.
File = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the memory of one process says. `size` is that of the world; `rings` are those it has mapped, with a digest
    of what is in them.
    """

    facts: MpiFacts
    size: int | None = None
    rings: frozenset[File] = frozenset()
    digest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Communicator:
    address: int
    name: str
    size: int
    rank: int
    for_itself: bool
    between_groups: bool = False


def find(pid: int, memory: Read, *, proc_root: str) -> Found | None:
    """What its memory says; None if it does not run MPICH."""
    maps = read_bytes(f"{proc_root}/{pid}/maps") or b""
    for begin, content in _data(pid, maps, memory, proc_root):
        found = read(pid, begin, content)
        if found is not None:
            mapped = rings(maps)
            pages = (span for _, low, high in mapped for span in _present(pid, low, high, proc_root))
            return replace(found, rings=frozenset(file for file, *_ in mapped), digest=_digest(memory, pages))
    return None


def rings(maps: bytes) -> list[tuple[File, int, int]]:
    """Rings of UCX that a process has mapped, each once, in an order that all processes see."""
    mapped: dict[File, tuple[int, int]] = {}
    for match in filter(None, map(_SHARED.match, maps.split(b"\n"))):
        low, high = int(match["low"], 16), int(match["high"], 16)
        if high - low <= _LARGEST_RING:
            mapped.setdefault((match["device"].decode(), int(match["inode"])), (low, high))
    return [(file, *mapped[file]) for file in sorted(mapped)]


def _digest(memory: Read, spans: Iterable[Sequence[int]]) -> int | None:
    import hashlib  # loads OpenSSL, which only ranks of MPI need

    digest = hashlib.blake2b(digest_size=8)
    left = _MOST_OF_RINGS
    for low, high in spans:
        left -= high - low
        content = memory(low, high - low) if left >= 0 else None
        if content is None:
            return None
        digest.update(content)
    return int.from_bytes(digest.digest(), "little") if left < _MOST_OF_RINGS else None


def counted(found: Mapping[int, Found]) -> dict[int, MpiFacts]:
    """With the digest of messages, for those of a world whose ranks are all here and share their rings.

    One that has no ring in common with each of the others may send by other ways.
    """
    result = {}
    for pid, one in found.items():
        world = [other for other in found.values() if not one.rings.isdisjoint(other.rings)]
        common = frozenset.intersection(one.rings, *(other.rings for other in world))
        size = one.size or 0
        whole = 1 < size == len(world) and all(other.size == size for other in world) and len(common) >= size
        result[pid] = replace(one.facts, messages=one.digest if whole else None)
    return result


def _data(pid: int, maps: bytes, memory: Read, proc_root: str) -> Iterator[Part]:
    """Writable data of the library with MPI, as far as it is in memory: pages that were never touched are zeros."""
    for low, high in spans(maps):
        if high - low > _LARGEST_DATA:
            continue
        content = bytearray(high - low)
        for start, end in _present(pid, low, high, proc_root):
            content[start - low : end - low] = memory(start, end - start) or bytes(end - start)
        yield low, bytes(content)


def spans(maps: bytes) -> list[tuple[int, int]]:
    """Private writable mappings of a library with MPI, and what follows them without a gap or a file: its .bss."""
    found: list[tuple[int, int]] = []
    for match in filter(None, map(_LINE.match, maps.split(b"\n"))):
        low, high, path = int(match["low"], 16), int(match["high"], 16), match["path"]
        if _LIBRARY.match(path[path.rfind(b"/") + 1 :]):
            follows = bool(found) and found[-1][1] == low
        else:
            follows = not path and bool(found) and found[-1][1] == low
            if not follows:
                continue
        if follows:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def _present(pid: int, low: int, high: int, proc_root: str) -> list[tuple[int, int]]:
    try:
        descriptor = os.open(f"{proc_root}/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw = os.pread(descriptor, (high - low) // _PAGE * 8, low // _PAGE * 8)
        finally:
            os.close(descriptor)
    except OSError:
        return []
    pages = struct.unpack(f"<{len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
    ranges: list[tuple[int, int]] = []
    for number, page in enumerate(pages):
        start = low + number * _PAGE
        if not page & _PRESENT:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], start + _PAGE)
        else:
            ranges.append((start, start + _PAGE))
    return ranges


def read(pid: int, begin: int, data: bytes) -> Found | None:
    """Of the library's data. No communicators where one is not understood, or may lie elsewhere."""
    for name_at in _all(data, WORLD.encode() + b"\0"):
        for at in _all(data, struct.pack("<I", _WORLD_HANDLE), name_at - _BEFORE_NAME, name_at):
            own = data.find(_SELF.encode() + b"\0", name_at)
            stride = own - name_at
            if stride <= 0 or _handle(data, at + stride) != _SELF_HANDLE:
                continue
            found = _communicators(begin, data, (at, at + stride), name_at - at, stride)
            world = found[0] if found else None
            return Found(
                facts=MpiFacts(
                    pid=pid,
                    communicators=_facts(pid, found),
                    between_groups=any(one.between_groups for one in found or ()),
                ),
                size=world.size if world is not None and world.name == WORLD else None,
            )
    return None


def _communicators(
    begin: int, data: bytes, built_in: Sequence[int], name_at: int, stride: int
) -> list[_Communicator] | None:
    """All that live; None if one makes no sense, or there may be more."""
    made = [
        [at + number * stride for number in range(_MADE_AT_ONCE)]
        for at in _all(data, struct.pack("<I", _FIRST_MADE))
        # Objects of MPICH are of words; the second one tells the array from a handle that lies somewhere.
        if at % 8 == 0 and _handle(data, at + stride) == _FIRST_MADE + 1
    ]
    if len(made) > 1:
        return None
    found = []
    for at in (*built_in, *(made[0] if made else ())):
        if at + name_at + _NAME_BYTES > len(data):
            return None
        if struct.unpack_from("<i", data, at + 4)[0] <= 0:  # references: it was freed, or never made
            continue
        one = _communicator(begin, data, at, at + name_at)
        if one is None:
            return None
        found.append(one)
    full = len(found) == _MADE_AT_ONCE + len(built_in)
    return None if full or len(found) < len(built_in) else found


def _communicator(begin: int, data: bytes, at: int, name: int) -> _Communicator | None:
    (kind,), (local,), (rank,), (size,), (context,) = (
        struct.unpack_from(form, data, name + place)
        for form, place in (
            ("<i", _KIND),
            ("<i", _LOCAL_SIZE),
            ("<i", _RANK),
            ("<i", _SIZE),
            ("<H", _CONTEXT),
        )
    )
    if kind == _BETWEEN_GROUPS and 0 < local <= _MOST_RANKS and 0 < size <= _MOST_RANKS:
        # Its members are not understood.
        return _Communicator(
            address=begin + at, name="", size=size, rank=rank, for_itself=False, between_groups=True
        )
    if kind != 0 or local != size or not 0 < size <= _MOST_RANKS or not 0 <= rank < size:
        return None
    text = data[name : name + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
    return _Communicator(
        address=begin + at, name=text, size=size, rank=rank, for_itself=bool(context & _OWN_PURPOSE)
    )


def _facts(pid: int, found: list[_Communicator] | None) -> tuple[ProcessGroupFacts, ...]:
    """Those of all ranks; () if there is one of some of them, whose members are not known."""
    if any(one.between_groups for one in found or ()):
        return ()
    if not found or (found[0].name, found[1].name, found[1].size) != (WORLD, _SELF, 1):
        return ()
    world = found[0]
    groups: list[ProcessGroupFacts] = []
    for one in found:
        if one.for_itself or one.size == 1:
            continue
        # In another order of ranks it is another one, which is not understood.
        if (one.size, one.rank) != (world.size, world.rank):
            return ()
        name = printable(one.name) or f"communicator {len(groups)}"
        groups.append(
            ProcessGroupFacts(
                pid=pid,
                name=name,
                description=name,
                address=one.address,
                ranks=tuple(range(world.size)),
                rank=world.rank,
                is_default=one is world,
            )
        )
    return tuple(groups)


def _handle(data: bytes, at: int) -> int | None:
    return int(struct.unpack_from("<I", data, at)[0]) if 0 <= at <= len(data) - 4 else None


def _all(data: bytes, word: bytes, low: int = 0, high: int | None = None) -> Iterator[int]:
    at = data.find(word, max(0, low), high)
    while at >= 0:
        yield at
        at = data.find(word, at + 1, high)
