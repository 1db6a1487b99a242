"""The ring in which torch.distributed notes its operations, out of a process' memory, without asking the process.

Layout: c10d::FlightRecorder<EventType> of torch 2.8 to 2.14 (torch/csrc/distributed/c10d/FlightRecorder.hpp), with the
strings and vectors of libstdc++ in its new ABI, 64-bit. It is not chosen by version: one is taken if the size of an
entry, the name of an operation and the ring's own numbers fit it. Whatever does not fit gives nothing.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from pyhangtrace.collect.memory import Read, cpp_string

# Static in c10d::FlightRecorder<EventType>::get(), by the event type of the library's backend.
SYMBOLS: dict[str, tuple[str, ...]] = {
    "libtorch_cpu.so": ("_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance",),
    "libtorch_cuda.so": (
        "_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance",
        "_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance",
    ),
    "libtorch_hip.so": ("_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance",),
}

MAX_ENTRIES = 1 << 14
MAX_PENDING = 16  # of one group
_MAX_TEXT = 512
_MAX_DIMENSIONS = 256
_ATTEMPTS = 3

# sizeof(pthread_mutex_t): x86-64 and riscv64, aarch64
_MUTEX_SIZES = (40, 48)
_HEAD = 8 + max(_MUTEX_SIZES) + 48
_RING = struct.Struct("<6Q")  # begin, end, capacity of the vector, max_entries_, next_, id_
_NAME = re.compile(r"[a-z0-9_-]+:.+")

# c10/core/ScalarType.h
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Offsets in bytes within an entry."""

    size: int
    pg_id: int
    description: int
    name: int
    sequence: int
    p2p_sequence: int
    operation: int
    is_p2p: int
    completed: int
    input_dims: int
    input_dtypes: int
    output_dims: int
    sizes: int
    retired: int
    epoch: int | None


def _layout(size: int, shift: int) -> Layout:
    return Layout(
        size=size,
        pg_id=8 + shift,
        description=16 + shift,  # a std::tuple lies in memory last element first
        name=48 + shift,
        sequence=80 + shift,
        p2p_sequence=88 + shift,
        operation=104 + shift,
        is_p2p=184 + shift,
        completed=216 + shift,
        input_dims=232 + shift,
        input_dtypes=280 + shift,
        output_dims=304 + shift,
        sizes=376 + shift,
        retired=496 + shift,
        epoch=8 if shift else None,
    )


LAYOUTS = (_layout(512, 8), _layout(504, 0))  # 2.10 to 2.14, 2.8 and 2.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation. `inputs` and `outputs` are the tensors' shapes. `done`: the backend has let go of
    it, so it has ended.
    """

    group: str
    description: str
    operation: str  # without the backend
    backend: str
    sequence: int  # of collectives; of point-to-point operations they are counted apart
    is_p2p: bool
    done: bool
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a recorder tells. `enabled` is False if it keeps nothing; `whole`: nothing was overwritten yet."""

    enabled: bool
    whole: bool = False
    entries: tuple[Entry, ...] = ()  # of each group the last one and those that have not ended, oldest first


def read(memory: Read, instance: int) -> Recorded | None:
    """What the recorder at the pointer `instance` holds; None if there is none, or it does not look like one."""
    for _ in range(_ATTEMPTS):
        pointer = memory(instance, 8)
        address = int.from_bytes(pointer, "little") if pointer is not None else 0
        head = memory(address, _HEAD) if address else None
        if head is None:
            return None
        mutex = next((size for size in _MUTEX_SIZES if _fits(head, size)), None)
        if mutex is None:
            return None
        begin, end, _, most, after, count = _RING.unpack_from(head, 8 + mutex)
        if not head[0] or begin == end:
            return Recorded(enabled=bool(head[0]), whole=count == 0)
        layout, entries = _entries(memory, begin, end, most)
        if layout is None:
            return None
        again = memory(address, _HEAD)
        # It went on while it was read: what was read may be of two moments.
        if again is None or again[8 + mutex : 8 + mutex + 48] != head[8 + mutex : 8 + mutex + 48]:
            continue
        size = layout.size
        number = len(entries) // size
        order = [*range(after, number), *range(after)] if number == most else list(range(number))
        found = _Decoder(memory, layout, entries, begin).decode(order)
        return Recorded(enabled=True, whole=count <= most, entries=found) if found is not None else None
    return None


def _fits(head: bytes, mutex: int) -> bool:
    begin, end, capacity, most, after, count = _RING.unpack_from(head, 8 + mutex)
    flags = head[0] in (0, 1) and head[1] in (0, 1)
    vector = begin <= end <= capacity and begin % 8 == 0 and (begin > 0x1000 or begin == end == capacity == 0)
    ring = (most == 0) == (head[0] == 0) and after <= most <= MAX_ENTRIES
    # A ring of one turn has as many entries as were counted.
    return flags and vector and ring and (count > 0 or begin == end)


def _entries(memory: Read, begin: int, end: int, most: int) -> tuple[Layout | None, bytes]:
    for layout in LAYOUTS:
        if (end - begin) % layout.size or (end - begin) // layout.size > most:
            continue
        content = memory(begin, end - begin)
        if content is None:
            return None, b""
        name = _text(memory, content, layout.operation, begin)
        group = _text(memory, content, layout.name, begin)
        if name is not None and _NAME.fullmatch(name) and group is not None:
            return layout, content
    return None, b""


def _text(memory: Read, content: bytes, at: int, begin: int) -> str | None:
    """A std::string at an offset of what was read from `begin` on."""
    raw = cpp_string(memory, content, at, begin, longest=_MAX_TEXT)
    text = raw.decode("ascii", "replace") if raw is not None else None
    return text if text is not None and text.isprintable() else None


@dataclass(slots=True)
class _Decoder:
    memory: Read
    layout: Layout
    content: bytes
    begin: int

    def decode(self, order: list[int]) -> tuple[Entry, ...] | None:
        """The entries that matter, oldest first; None if one of them makes no sense."""
        epochs = {index: self._word(index, self.layout.epoch) for index in order} if self.layout.epoch else {}
        newest = max(epochs.values(), default=0)
        names: dict[int, tuple[str, str]] = {}
        last: dict[tuple[int, bool], int] = {}
        kept: set[int] = set()
        pending: dict[int, int] = {}
        for index in reversed(order):
            if epochs.get(index, newest) != newest:
                continue
            group = self._word(index, self.layout.pg_id)
            key = (group, self._flag(index, self.layout.is_p2p))
            open_ones = pending.get(group, 0)
            if not self._flag(index, self.layout.retired) and open_ones < MAX_PENDING:
                pending[group] = open_ones + 1
                kept.add(index)
            if key not in last:
                last[key] = index
                kept.add(index)
        found = []
        for index in order:
            if index not in kept:
                continue
            group = self._word(index, self.layout.pg_id)
            if group not in names:
                name, description = (
                    self._string(index, self.layout.name),
                    self._string(index, self.layout.description),
                )
                if name is None or description is None:
                    return None
                names[group] = (name, description)
            entry = self._entry(index, *names[group])
            if entry is None:
                return None
            found.append(entry)
        return tuple(found)

    def _word(self, index: int, at: int | None) -> int:
        return int(struct.unpack_from("<Q", self.content, index * self.layout.size + (at or 0))[0])

    def _flag(self, index: int, at: int) -> bool:
        return self.content[index * self.layout.size + at] != 0

    def _string(self, index: int, at: int) -> str | None:
        return _text(self.memory, self.content, index * self.layout.size + at, self.begin)

    def _entry(self, index: int, group: str, description: str) -> Entry | None:
        layout = self.layout
        name = self._string(index, layout.operation)
        if name is None or not _NAME.fullmatch(name):
            return None
        backend, _, operation = name.partition(":")
        is_p2p = self._flag(index, layout.is_p2p)
        inputs, outputs, dtype = self._tensors(index)
        return Entry(
            group=group,
            description=description,
            operation=operation,
            backend=backend,
            sequence=self._word(index, layout.p2p_sequence if is_p2p else layout.sequence),
            is_p2p=is_p2p,
            done=self._flag(index, layout.retired) or self._flag(index, layout.completed + 8),
            inputs=inputs,
            outputs=outputs,
            dtype=dtype,
        )

    def _tensors(
        self, index: int
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], str | None]:
        """Shapes of inputs and outputs, and the type they all have; empty if they do not add up."""
        dims_in = self._small(index, self.layout.input_dims)
        dims_out = self._small(index, self.layout.output_dims)
        sizes = self._small(index, self.layout.sizes)
        if dims_in is None or dims_out is None or sizes is None:
            return (), (), None
        if any(not 0 <= count <= 64 for count in (*dims_in, *dims_out)) or sum((*dims_in, *dims_out)) != len(
            sizes
        ):
            return (), (), None
        if any(size < 0 for size in sizes):
            return (), (), None
        shapes, at = [], 0
        for count in (*dims_in, *dims_out):
            shapes.append(sizes[at : at + count])
            at += count
        types = self._dtypes(index)
        dtype = types.pop() if len(types) == 1 else None
        return tuple(shapes[: len(dims_in)]), tuple(shapes[len(dims_in) :]), dtype

    def _small(self, index: int, at: int) -> tuple[int, ...] | None:
        """A c10::SmallVector<int64_t, N>: pointer, size and capacity as 32 bits, then room for N."""
        offset = index * self.layout.size + at
        pointer, count, capacity = struct.unpack_from("<QII", self.content, offset)
        if count > min(capacity, _MAX_DIMENSIONS):
            return None
        if pointer == self.begin + offset + 16:
            raw: bytes | None = self.content[offset + 16 : offset + 16 + 8 * count]
        else:
            raw = self.memory(pointer, 8 * count) if count else b""
        if raw is None or len(raw) != 8 * count:
            return None
        return struct.unpack(f"<{count}q", raw)

    def _dtypes(self, index: int) -> set[str]:
        offset = index * self.layout.size + self.layout.input_dtypes
        begin, end = struct.unpack_from("<QQ", self.content, offset)
        if not begin < end <= begin + _MAX_DIMENSIONS:
            return set()
        raw = self.memory(begin, end - begin)
        return {_DTYPES[code] if code < len(_DTYPES) else f"type {code}" for code in raw or b""}
