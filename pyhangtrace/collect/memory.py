"""Reading the memory of another process, inside the guarded reader, and strings of C++ in it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

Read = Callable[[int, int], "bytes | None"]  # address, bytes: all of them, or None

# std::string of libstdc++ in its new ABI, 64-bit (bits/basic_string.h): pointer, length, and room for short ones.
_STRING = struct.Struct("<QQ16s")
_ROOM_AT = 16
_SHORT = 15  # characters that lie within it
_LOWEST = 0x1000


def of_process(pid: int) -> Read:
    """Reads of this process; a read may block for ever."""
    # The rest of the helper works without the extension.
    from pyhangtrace import _native

    return partial(_native.read_memory, pid)


def cpp_string(memory: Read, content: bytes, at: int, begin: int, *, longest: int) -> bytes | None:
    """A std::string at an offset of what was read from `begin` on; None if it looks like none, or is longer."""
    pointer, length, inside = _STRING.unpack_from(content, at)
    if length > longest:
        return None
    if pointer == begin + at + _ROOM_AT:
        return bytes(inside[:length]) if length <= _SHORT else None
    return memory(pointer, length) if length > _SHORT and pointer > _LOWEST else None
