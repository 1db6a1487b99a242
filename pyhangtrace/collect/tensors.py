"""Shape and element type of a tensor of torch, as its Python object holds them.

THPVariable (python_variable.h) has the c10::TensorImpl behind the object's head, up to torch 2.9 after a flag. That has
(TensorImpl.h, torch 1.13 to 2.15) a virtual table, reference counts (one word, or two in old releases), storage,
autograd and extra data, version counter, the slot of the Python object (one word, or two up to 2.9), SizesAndStrides,
storage offset, number of elements, and type. SizesAndStrides is the number of dimensions, and room for five sizes and
five strides, or, of more, a pointer to them all. Taken only where the number of elements is the product of the sizes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

from pyhangtrace.collect.memory import Read

# Where the pointer to the TensorImpl is in the Python object, and where SizesAndStrides begins in that. In the oldest
# layout there is a pointer at the place where it begins in the one before.
_NEW_AT, _NEW_SIZES_AT = 16, (56,)
_OLD_AT, _OLD_SIZES_AT = 24, (64, 72)
_FLAGS = (0, 1)
_OBJECT_BYTES = 32
_INLINE = 5
_OFFSET, _COUNT, _TYPE = 88, 96, 104  # from there
_IMPL_BYTES = _OLD_SIZES_AT[-1] + _TYPE + 2
_MOST_DIMENSIONS = 64
_LARGEST = 1 << 48
_LOWEST = 0x1000

# c10::ScalarType (ScalarType.h), by torch's names.
_TYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """What must be equal over the ranks."""

    shape: tuple[int, ...]
    dtype: str


def read(memory: Read, address: int) -> Tensor | None:
    """The tensor at the address of its Python object; None where no layout makes sense."""
    head = memory(address, _OBJECT_BYTES)
    if head is None:
        return None
    (first,) = struct.unpack_from("<Q", head, _NEW_AT)
    at, starts = (_OLD_AT, _OLD_SIZES_AT) if first in _FLAGS else (_NEW_AT, _NEW_SIZES_AT)
    (impl,) = struct.unpack_from("<Q", head, at)
    content = memory(impl, _IMPL_BYTES) if impl > _LOWEST and impl % 8 == 0 else None
    if content is None:
        return None
    return next((found for start in starts if (found := _at(memory, content, start))), None)


def _at(memory: Read, content: bytes, start: int) -> Tensor | None:
    (dimensions,) = struct.unpack_from("<Q", content, start)
    if dimensions > _MOST_DIMENSIONS:
        return None
    shape, strides = _sizes_and_strides(memory, content, start + 8, dimensions)
    offset, count = struct.unpack_from("<qq", content, start + _OFFSET)
    (kind,) = struct.unpack_from("<H", content, start + _TYPE)
    if len(shape) != dimensions or kind not in _TYPES:
        return None
    fits = all(0 <= size < _LARGEST for size in shape) and count == prod(shape)
    fits = fits and 0 <= offset < _LARGEST and all(abs(stride) < _LARGEST for stride in strides)
    return Tensor(shape, _TYPES[kind]) if fits else None


def _sizes_and_strides(
    memory: Read, content: bytes, at: int, dimensions: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if dimensions <= _INLINE:
        row = f"<{dimensions}q"
        return struct.unpack_from(row, content, at), struct.unpack_from(row, content, at + 8 * _INLINE)
    (pointer,) = struct.unpack_from("<Q", content, at)
    far = memory(pointer, 16 * dimensions) if pointer > _LOWEST and pointer % 8 == 0 else None
    numbers = struct.unpack(f"<{2 * dimensions}q", far) if far is not None else ()
    return numbers[:dimensions], numbers[dimensions:]
