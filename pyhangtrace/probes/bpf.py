"""The bpf(2) system call: whether this process may load programs, and raw access to maps by descriptor."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

from pyhangtrace.probes.tracefs import syscall

_BPF = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_NEXT_KEY, _PROGRAM_LOAD = 0, 1, 2, 4, 5
_RING_BUFFER = 27  # BPF_MAP_TYPE_RINGBUF
_TRACEPOINT_PROGRAM = 5  # BPF_PROG_TYPE_TRACEPOINT
# r0 = 0; exit
_RETURN_ZERO = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)
_MAP_ATTRIBUTES = struct.Struct("=IIQQQ")  # map_fd, padding, key, value or next key, flags
_LOAD_ATTRIBUTES = struct.Struct(
    "=IIQQIIQI"
)  # type, count, instructions, license, log level/size/buffer, version


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no system call number known for {platform.machine()}")
    return syscall(number, command, attributes, len(attributes))


def try_load() -> None:
    """Loads and drops the smallest tracepoint program.

    Raises: OSError (EPERM without rights or under lockdown, ENOSYS in a kernel without BPF).
    """
    instructions = ctypes.create_string_buffer(_RETURN_ZERO, len(_RETURN_ZERO))
    license_name = ctypes.create_string_buffer(b"GPL")
    attributes = _LOAD_ATTRIBUTES.pack(
        _TRACEPOINT_PROGRAM,
        len(_RETURN_ZERO) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(license_name),
        0,
        0,
        0,
        0,
    )
    os.close(_bpf(_PROGRAM_LOAD, attributes))


def has_ring_buffer() -> bool:
    """Whether this kernel has ring buffers (Linux 5.8), found by making one."""
    try:
        os.close(_bpf(_MAP_CREATE, struct.pack("=IIII", _RING_BUFFER, 0, 0, os.sysconf("SC_PAGESIZE"))))
    except OSError:
        return False
    return True


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Sets one element. Raises: OSError (E2BIG when the map is full)."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_buffer = ctypes.create_string_buffer(value, len(value))
    attributes = _MAP_ATTRIBUTES.pack(
        map_fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), 0
    )
    _bpf(_MAP_UPDATE, attributes)


def lookup(map_fd: int, key: bytes, value_size: int) -> bytes | None:
    """One element, None if it is not there. Raises: OSError."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value = ctypes.create_string_buffer(value_size)
    attributes = _MAP_ATTRIBUTES.pack(map_fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value), 0)
    try:
        _bpf(_MAP_LOOKUP, attributes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return value.raw


def items(map_fd: int, key_size: int, value_size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a map that nobody changes meanwhile."""
    key = ctypes.create_string_buffer(key_size)
    following = ctypes.create_string_buffer(key_size)
    value = ctypes.create_string_buffer(value_size)
    key_address, next_address, value_address = map(ctypes.addressof, (key, following, value))
    start = 0  # a null key asks for the first one (Linux 4.12)
    while True:
        try:
            _bpf(_MAP_NEXT_KEY, _MAP_ATTRIBUTES.pack(map_fd, 0, start, next_address, 0))
            ctypes.memmove(key, following, key_size)
            _bpf(_MAP_LOOKUP, _MAP_ATTRIBUTES.pack(map_fd, 0, key_address, value_address, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        start = key_address
        yield key.raw, value.raw
