"""The release of NCCL that a process has loaded, from the text that its library prints at start."""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.mappings import mapped_files
from pyhangtrace.collect.procfs import read_bytes

VERSION_TASK = "nccl_version"
LINKED_TASK = "nccl_linked"

# Libraries that have NCCL in them, the plain one first.
_LIBRARIES = (b"libnccl.so", b"librccl.so", b"libtorch_cuda.so", b"libtorch_hip.so")
# init.cc: of NCCL the version string and the CUDA it was built with; of RCCL (seen in 2.27.7) that of the NCCL it was
# made of, and ROCm in words of its own.
_TEXT = re.compile(
    rb"(?:NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})(?:[+.][\w.+-]{0,40})?\0"
    rb"|RCCL version (\d{1,3}\.\d{1,3}\.\d{1,3}) compiled with ROCm )"
)
# elf.h. Elf64_Shdr: name, type, offset, size. Elf64_Ehdr: where these are, how large and how many.
_SECTION = struct.Struct("<II8x8xQQ")
_SECTIONS_AT, _SECTIONS, _HEADER_SIZE = 40, 58, 64
_MOST_SECTIONS = 4096


def version_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: "2.27.7" of each process, None where no library says it. Guarded: a path may lead to a dead server."""
    known: dict[tuple[int, int], str | None] = {}
    for pid in pids:
        progress(pid)
        yield pid, _of_process(f"{state.proc_root}/{pid}", known)


def collect(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, str]:
    """The release by process, where known."""
    answers = reader.run(VERSION_TASK, pids, deadline_s=deadline_s)
    return {pid: version for pid, version in answers.values.items() if version is not None}


def linked_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (path, release) of each program with NCCL linked into it, None for the others."""
    known: dict[tuple[int, int], str | None] = {}
    for pid in pids:
        progress(pid)
        file = f"{state.proc_root}/{pid}/exe"
        try:
            inode = os.stat(file).st_ino
            version = _of_library(os.fsencode(file), inode, known)
            yield pid, (os.readlink(file), version) if version is not None else None
        except OSError:
            yield pid, None


def linked(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, tuple[str, str]]:
    """Path and release of the programs with NCCL linked into them, by its own words: they may have no symbols."""
    answers = reader.run(LINKED_TASK, pids, deadline_s=deadline_s) if pids else None
    return {pid: found for pid, found in answers.values.items() if found is not None} if answers else {}


def _of_process(folder: str, known: dict[tuple[int, int], str | None]) -> str | None:
    for inode, path in _libraries(read_bytes(f"{folder}/maps") or b""):
        version = _of_library(os.fsencode(f"{folder}/root") + path, inode, known)
        if version is not None:
            return version
    return None


def _libraries(maps: bytes) -> list[tuple[int, bytes]]:
    found: dict[bytes, int] = {}
    for match in mapped_files(maps):
        path = match["path"]
        if path.startswith(b"/") and _name(path).startswith(_LIBRARIES):
            found.setdefault(path, int(match["inode"]))
    order = {name: number for number, name in enumerate(_LIBRARIES)}
    names = sorted(
        found,
        key=lambda path: next(order[name] for name in order if _name(path).startswith(name)),
    )
    return [(found[path], path) for path in names]


def _name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def _of_library(path: bytes, inode: int, known: dict[tuple[int, int], str | None]) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        about = os.fstat(descriptor)
        # Another file may have taken the name since it was loaded.
        if not stat.S_ISREG(about.st_mode) or about.st_ino != inode or about.st_size < _HEADER_SIZE:
            return None
        key = (about.st_dev, about.st_ino)
        if key not in known:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                known[key] = find_version(content)
        return known[key]
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def find_version(content: mmap.mmap | bytes) -> str | None:
    """The release that a library's constants name, None if none or several."""
    spans = list(_constants(content)) or [(0, len(content))]
    found = {
        (match[1] or match[2]).decode() for low, high in spans for match in _TEXT.finditer(content, low, high)
    }
    return found.pop() if len(found) == 1 else None


def _constants(content: mmap.mmap | bytes) -> Iterator[tuple[int, int]]:
    """The file's spans of constants: NCCL's device code, a hundred times larger, needs no search."""
    if content[:4] != b"\x7fELF" or len(content) < _HEADER_SIZE:
        return
    (offset,) = struct.unpack_from("<Q", content, _SECTIONS_AT)
    size, number, names = struct.unpack_from("<HHH", content, _SECTIONS)
    if size < 64 or not 0 < number <= _MOST_SECTIONS or names >= number:
        return
    if offset + size * number > len(content):
        return
    sections = [_SECTION.unpack_from(content, offset + size * index) for index in range(number)]
    strings = sections[names][2]
    for name, _, start, length in sections:
        at = strings + name
        if at + 8 <= len(content) and content[at : at + 7] == b".rodata" and start + length <= len(content):
            yield start, start + length
