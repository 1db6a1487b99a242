"""Communicators of Open MPI, and whether messages came or went between two looks, out of a process' memory.

Who waits in Open MPI polls and burns its CPU, so that counters of the kernel say nothing of progress. Its messages are
numbered where they are matched: the objects of the point-to-point layer ob1 change with each of them. Layouts of
Open MPI 2 to 5 (opal/class/opal_object.h, opal_pointer_array.h, ompi/communicator/communicator.h, group/group.h,
mca/pml/ob1/pml_ob1_comm.h), 64-bit. No offset of a member is taken for granted where an object tells its class: what
is looked for are pointers to objects of the right one, as large as that class says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyhangtrace.collect.memory import Read
from pyhangtrace.collect.procfs import printable
from pyhangtrace.model.groups import MpiFacts, ProcessGroupFacts

WORLD = "MPI_COMM_WORLD"
# MPI_COMM_WORLD itself may have been moved into the executable; the array of all communicators is nothing that a
# program refers to.
_SYMBOLS = ("ompi_mpi_communicators", "ompi_communicator_t_class", "ompi_group_t_class")
_LIST_CLASS = "opal_list_t_class"  # of libopen-pal
_OB1_SYMBOLS = ("mca_pml_ob1_comm_t_class", "mca_pml_ob1_comm_proc_t_class")
_OB1 = ("mca_pml_ob1.so", "libmpi.so")

_COMMUNICATOR_BYTES = 512  # searched for what it points to
_ARRAY_BYTES = 256
_NAME_BYTES = 64  # MPI_MAX_OBJECT_NAME
_MOST_COMMUNICATORS = 1024
_MOST_RANKS = 4096
_CLASS_SIZE_AT = 56  # cls_sizeof in opal_class_t
_LARGEST_OBJECT = 4096
_LIST_WORDS = 8  # opal_list_t: object, sentinel (object, next, previous, a count), length
_NEXT_AT = 16  # in opal_list_item_t
_MOST_POSTED = 64
_REQUEST_BYTES = 640
_MOST_COUNT = 1 << 40
_LOWEST, _HIGHEST = 0x1000, 1 << 56  # addresses
_NOT_MPI = frozenset({"MPI_COMM_NULL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """Addresses in one process. `ob1` are the classes of the point-to-point layer's objects, None if it has another."""

    communicators: int
    communicator_class: int
    group_class: int
    ob1: tuple[int, int] | None = None
    list_class: int | None = None


def symbols_of(engine: Any, pid: int) -> Symbols | None:
    """Where its objects are told by; None if it does not run Open MPI."""
    found = engine.symbol_addresses(pid, "libmpi.so", list(_SYMBOLS))
    if not all(found):
        return None
    ob1 = next(
        (
            (classes[0], classes[1])
            for library in _OB1
            if all(classes := engine.symbol_addresses(pid, library, list(_OB1_SYMBOLS)))
        ),
        None,
    )
    (list_class,) = engine.symbol_addresses(pid, "libopen-pal.so", [_LIST_CLASS])
    return Symbols(
        communicators=found[0],
        communicator_class=found[1],
        group_class=found[2],
        ob1=ob1,
        list_class=list_class,
    )


def read(pid: int, memory: Read, symbols: Symbols) -> MpiFacts:
    """The communicators that make sense, and the digest of what ob1 keeps of their messages."""
    import hashlib  # loads OpenSSL, which only ranks of MPI need

    addresses = _addresses(memory, symbols)
    world = memory(addresses[0], _COMMUNICATOR_BYTES) if addresses else None
    name_at = world.find(WORLD.encode() + b"\0") if world is not None else -1
    if not addresses or world is None or name_at < 0:
        return MpiFacts(pid=pid)
    processes = _members(memory, symbols, world)
    known = {process: rank for rank, process in enumerate(processes)}
    groups = []
    whole = True
    digest = hashlib.blake2b(digest_size=8)
    counted = symbols.ob1 is not None
    for address in addresses:
        content = memory(address, _COMMUNICATOR_BYTES)
        if content is None or _words(content)[0] != symbols.communicator_class:
            whole = False
            continue
        name = content[name_at : name_at + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
        if name in _NOT_MPI:
            continue
        if len(_groups(memory, symbols, content)) > 1:
            return MpiFacts(pid=pid, between_groups=True)
        members = _members(memory, symbols, content)
        if not members or not all(member in known for member in members) or len(known) != len(processes):
            whole = False
            continue
        own = struct.unpack_from("<i", content, name_at + _NAME_BYTES + 4)[0]
        ranks = tuple(known[member] for member in members)
        groups.append(
            ProcessGroupFacts(
                pid=pid,
                name=printable(name),
                description=printable(name),
                address=address,
                ranks=ranks,
                rank=ranks[own] if 0 <= own < len(ranks) else None,
                is_default=address == addresses[0],
            )
        )
        layer = _layer(memory, symbols, content, len(ranks))
        counted = counted and layer is not None
        if layer is not None:
            digest.update(layer.own + b"".join(layer.peers.values()))
            awaits = _expected(memory, symbols, layer, address, ranks)
            groups[-1] = replace(groups[-1], awaits=awaits)
    whole = whole and any(group.is_default for group in groups)
    return MpiFacts(
        pid=pid,
        communicators=tuple(groups) if whole else (),
        messages=int.from_bytes(digest.digest(), "little") if whole and counted else None,
        receives=whole and counted and symbols.list_class is not None,
    )


def _words(content: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])


def _word(memory: Read, address: int) -> int:
    content = memory(address, 8) if address > 0x1000 and address % 8 == 0 else None
    return int.from_bytes(content, "little") if content is not None else 0


def _addresses(memory: Read, symbols: Symbols) -> list[int] | None:
    """Entries of the array of all communicators, of which the world is the first."""
    content = memory(symbols.communicators, _ARRAY_BYTES)
    if content is None:
        return None
    for index, pointer in enumerate(_words(content)):
        if index < 6 or _word(memory, _word(memory, pointer)) != symbols.communicator_class:
            continue
        # Before it: int lowest_free, number_free, size, max_size, block_size, and a pointer to the bits of free ones.
        lowest, free, size = struct.unpack_from("<iii", content, 8 * (index - 4))
        if not 0 <= free <= size <= _MOST_COMMUNICATORS or not 0 <= lowest <= size:
            return None
        entries = memory(pointer, 8 * size)
        return [entry for entry in _words(entries) if entry] if entries is not None else None
    return None


def _groups(memory: Read, symbols: Symbols, communicator: bytes) -> list[int]:
    """Its local group, and the remote one, which is the same but between two groups."""
    pointers = dict.fromkeys(_words(communicator))
    return [pointer for pointer in pointers if _word(memory, pointer) == symbols.group_class]


def _members(memory: Read, symbols: Symbols, communicator: bytes) -> tuple[int, ...]:
    """The local group's members, each known by the word that stands for its process."""
    for pointer in _groups(memory, symbols, communicator):
        group = memory(pointer, 40)
        if group is None:
            return ()
        # After class and reference count: int grp_proc_count, grp_my_rank, grp_f_to_c_index, ompi_proc_t **.
        count, _, _, _, processes = struct.unpack_from("<iiiiQ", group, 16)
        content = memory(processes, 8 * count) if 0 < count <= _MOST_RANKS and processes > 0x1000 else None
        members = _words(content) if content is not None else ()
        return members if all(members) and len(set(members)) == len(members) else ()
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What ob1 keeps for one communicator: its own object, and one for each member it has had to do with, by number."""

    own: bytes
    peers: dict[int, bytes]


def _layer(memory: Read, symbols: Symbols, communicator: bytes, size: int) -> _Layer | None:
    if symbols.ob1 is None:
        return None
    for pointer in _words(communicator):
        if _word(memory, pointer) == symbols.ob1[0]:
            own = _object(memory, pointer, symbols.ob1[0])
            return (
                _Layer(own=own, peers=_peers(memory, own, symbols.ob1[1], size)) if own is not None else None
            )
    return None


def _object(memory: Read, address: int, kind: int) -> bytes | None:
    size = _word(memory, kind + _CLASS_SIZE_AT)
    return memory(address, size) if 16 <= size <= _LARGEST_OBJECT else None


def _peers(memory: Read, own: bytes, kind: int, size: int) -> dict[int, bytes]:
    for pointer in _words(own)[2:]:
        content = memory(pointer, 8 * size) if pointer > 0x1000 and pointer % 8 == 0 else None
        peers = {number: peer for number, peer in enumerate(_words(content or b"")) if peer}
        if peers and all(_word(memory, peer) == kind for peer in peers.values()):
            found = {number: _object(memory, peer, kind) for number, peer in peers.items()}
            return {number: each for number, each in found.items() if each is not None}
    return {}


def _expected(
    memory: Read, symbols: Symbols, layer: _Layer, communicator: int, ranks: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """(rank, tag) of the messages for which a receive is posted and that have not come; rank -1 is any.

    The first list in either object holds the posted receives: of any source in the communicator's own, else in that of
    the sender. Collectives use tags below -1.
    """
    found: list[tuple[int, int]] = []
    for number, content in ((-1, layer.own), *sorted(layer.peers.items())):
        for request in _first_list(memory, symbols, content):
            tag = _tag(memory, request, communicator, number)
            if tag is not None:
                found.append((ranks[number] if number >= 0 else -1, tag))
    return tuple(dict.fromkeys(found))


def _first_list(memory: Read, symbols: Symbols, content: bytes) -> list[int]:
    """Items of the first opal_list_t within an object."""
    words = _words(content)
    at = next(
        (at for at, word in enumerate(words) if word == symbols.list_class and symbols.list_class), None
    )
    if at is None or at + _LIST_WORDS > len(words):
        return []
    # Class and reference count, then the sentinel: class and reference count, next, previous.
    if words[at + 7] == 0:
        return []
    item, last = words[at + 4], words[at + 5]
    items: list[int] = []
    sentinel = _previous(memory, item)
    while item != sentinel and len(items) < _MOST_POSTED:
        items.append(item)
        if item == last:
            return items
        item = _word(memory, item + _NEXT_AT)
    return []


def _previous(memory: Read, item: int) -> int:
    return _word(memory, item + _NEXT_AT + 8)


def _tag(memory: Read, request: int, communicator: int, peer: int) -> int | None:
    """The tag of a posted receive; None if it is not clear where in mca_pml_base_request_t it stands.

    Somewhere behind req_comm there are in a row void *req_addr, size_t req_count, int32 req_peer and req_tag, and a
    pointer.
    """
    content = memory(request, _REQUEST_BYTES)
    words = _words(content) if content is not None else ()
    if content is None or communicator not in words:
        return None
    found = []
    for at in range(words.index(communicator) + 3, len(words) - 1):
        buffer, count, after = words[at - 2], words[at - 1], words[at + 1]
        if not _LOWEST < after < _HIGHEST or after % 8:
            continue
        source, tag = struct.unpack_from("<ii", content, 8 * at)
        # Messages without content need no buffer.
        empty = buffer == 0 and count == 0 and tag != 0
        if source == peer and (empty or (count < _MOST_COUNT and _LOWEST < buffer < _HIGHEST)):
            found.append(tag)
    return int(found[0]) if len(found) == 1 else None
