"""Shapes and types of tensors, from memory laid out as torch does."""

from __future__ import annotations

import ctypes
import struct

import pytest

from pyhangtrace.collect import tensors
from pyhangtrace.collect.tensors import Tensor
from tests.unit.collect.helpers import Memory

OBJECT, IMPL, FAR = 0x10000, 0x20000, 0x30000
OLD, MIDDLE, NEW = (24, 72), (24, 64), (16, 56)  # torch 1.13, 2.8, 2.13: the pointer, and SizesAndStrides


def memory(
    layout: tuple[int, int], shape: tuple[int, ...], kind: int = 6, *, count: int | None = None
) -> Memory:
    pointer_at, sizes_at = layout
    strides = tuple(1 for _ in shape)
    numbers = 1
    for size in shape:
        numbers *= size
    place = Memory()
    head = bytearray(64)
    struct.pack_into("<Q", head, pointer_at, IMPL)
    place.put(bytes(head), OBJECT)
    impl = bytearray(256)
    struct.pack_into("<Q", impl, 0, 0x7F0000)
    struct.pack_into("<Q", impl, sizes_at - 8, OBJECT)  # the Python object
    struct.pack_into("<Q", impl, sizes_at, len(shape))
    if len(shape) <= 5:
        struct.pack_into(f"<{len(shape)}q", impl, sizes_at + 8, *shape)
        struct.pack_into(f"<{len(shape)}q", impl, sizes_at + 48, *strides)
    else:
        struct.pack_into("<Q", impl, sizes_at + 8, FAR)
        place.put(struct.pack(f"<{2 * len(shape)}q", *shape, *strides), FAR)
    struct.pack_into("<qq", impl, sizes_at + 88, 0, numbers if count is None else count)
    struct.pack_into("<H", impl, sizes_at + 104, kind)
    place.put(bytes(impl), IMPL)
    return place


@pytest.mark.parametrize("layout", [OLD, MIDDLE, NEW])
@pytest.mark.parametrize("shape", [(4,), (3, 5, 7), (), (2, 2, 2, 2, 2, 3), (0, 4)])
def test_each_layout_is_known_by_what_fits(layout: tuple[int, int], shape: tuple[int, ...]) -> None:
    assert tensors.read(memory(layout, shape).read, OBJECT) == Tensor(shape, "float32")


def test_what_does_not_fit_is_no_tensor() -> None:
    assert tensors.read(memory(NEW, (4, 4), count=15).read, OBJECT) is None
    assert tensors.read(memory(NEW, (4, 4), kind=200).read, OBJECT) is None
    assert tensors.read(memory(NEW, (-4, -4)).read, OBJECT) is None
    assert tensors.read(memory(NEW, (4,)).read, OBJECT + 0x1000) is None
    assert tensors.read(Memory().read, OBJECT) is None


def test_tensors_of_the_installed_torch() -> None:
    torch = pytest.importorskip("torch")

    def own(address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    for tensor in (
        torch.zeros(3, 5, 7),
        torch.zeros(6, 4, dtype=torch.bfloat16)[::2],
        torch.zeros(2, 1, 2, 1, 2, 3, dtype=torch.int64),
        torch.tensor(1.0),
        torch.nn.Parameter(torch.zeros(8, dtype=torch.float16)),
    ):
        wanted = Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        assert tensors.read(own, id(tensor)) == wanted
