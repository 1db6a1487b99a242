"""What is mapped: which frameworks are loaded, and which big files the job shares."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyhangtrace.collect.cached import cached_bytes
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.mappings import device_of, mapped_files
from pyhangtrace.collect.procfs import printable, read_bytes
from pyhangtrace.model.host import MappedFile

MAPS_TASK = "maps"
RESIDENT_TASK = "resident"

# A loaded library that gives a framework away (file name without folder).
_LIBRARIES: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("torch", rb"^libtorch(_cpu|_cuda)?\.so"),
        ("nccl", rb"^lib([nr]ccl|torch_cuda|torch_hip)\.so"),
        ("mpi", rb"^lib(mpi|mpich)\.so"),
        ("ray", rb"^_raylet\.so"),
        ("jax", rb"^(libjax_common\.so|_jax\.so|xla_extension\.so)"),
        ("cuda", rb"^libcuda\.so"),
        ("nvshmem", rb"^libnvshmem"),
        ("python", rb"^libpython3"),
        ("zmq", rb"^libzmq"),
    )
)
_FOLDERS = (
    ("vllm", b"/vllm/"),
    ("sglang", b"/sgl_kernel/"),
    ("deepspeed", b"/deepspeed/"),
    ("flashinfer", b"/flashinfer"),
)
_SMALLEST = 1 << 20
_MOST_SEMAPHORES = 32
_SHM = "/dev/shm"
_MOST_FILES = 48


@dataclass(slots=True)
class FileMapping:
    """A file and how much of it one process maps, summed over its mappings; `end` is the furthest byte mapped."""

    path: str
    device: int
    inode: int
    mapped: int
    shared: bool
    span: str  # name of one of its mappings in /proc/PID/map_files
    end: int = 0


class ProcessMaps(NamedTuple):
    """One process: frameworks loaded, big files mapped, bytes mapped of all the others together, how much of its
    mappings shows parts of a file that another mapping of the same process shows too, and the devices of files that it
    maps to write to them.
    """

    frameworks: tuple[str, ...]
    files: list[FileMapping]
    small: int = 0
    twice: int = 0
    written: tuple[int, ...] = ()


def maps_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: the `ProcessMaps` of each process; `None` if refused."""
    for pid in pids:
        progress(pid)
        content = read_bytes(f"{state.proc_root}/{pid}/maps")
        if content is None:
            yield pid, None
            continue
        found = parse(content)
        yield pid, found._replace(files=_with_names(found.files, f"{state.proc_root}/{pid}/root{_SHM}"))


def _with_names(files: list[FileMapping], folder: str) -> list[FileMapping]:
    """The semaphores under the names that others open them by; those that have none are left out.

    sem_open makes a file of a passing name, and its maker's mapping keeps that.
    """
    if not any(_is_semaphore(file) for file in files):
        return files
    names: dict[int, str] = {}
    try:
        with os.scandir(folder) as entries:
            names.update((entry.inode(), entry.name) for entry in entries if entry.name.startswith("sem."))
    except OSError:  # gone, or not ours to see
        names.clear()
    kept = []
    for file in files:
        if _is_semaphore(file):
            if file.inode not in names:
                continue
            file.path = printable(f"{_SHM}/{names[file.inode]}")
        kept.append(file)
    return kept


def parse(content: bytes) -> ProcessMaps:
    """From /proc/PID/maps; files of a megabyte and more, and semaphores, are listed."""
    files: dict[tuple[bytes, bytes], FileMapping] = {}
    spans: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}
    names: set[bytes] = set()
    written: set[int] = set()
    for match in mapped_files(content):
        path = match["path"]
        names.add(path)
        low, high = int(match["low"], 16), int(match["high"], 16)
        size = high - low
        key = (match["device"], match["inode"])
        shared = match["rights"].endswith(b"s")
        if shared and b"w" in match["rights"]:
            written.add(device_of(match))
        offset = int(match["offset"], 16)
        spans.setdefault(key, []).append((offset, offset + size))
        known = files.get(key)
        if known is not None:
            known.mapped += size
            known.end = max(known.end, offset + size)
            continue
        files[key] = FileMapping(
            path=printable(path.decode(errors="surrogateescape")),
            device=device_of(match),
            inode=int(match["inode"]),
            mapped=size,
            shared=shared,
            span=f"{low:x}-{high:x}",
            end=offset + size,
        )
    found = {
        name for path in names for name, pattern in _LIBRARIES if pattern.match(path[path.rfind(b"/") + 1 :])
    }
    found.update(name for name, folder in _FOLDERS if any(folder in path for path in names))
    kept = [file for file in files.values() if file.mapped >= _SMALLEST or _is_semaphore(file)]
    return ProcessMaps(
        frameworks=tuple(sorted(found)),
        files=kept,
        small=sum(file.mapped for file in files.values()) - sum(file.mapped for file in kept),
        twice=sum(_overlap(parts) for parts in spans.values() if len(parts) > 1),
        written=tuple(sorted(written)),
    )


def _overlap(parts: list[tuple[int, int]]) -> int:
    """Bytes by which the parts of a file together are longer than what they cover."""
    reached = again = 0
    for start, end in sorted(parts):
        again += max(0, min(end, reached) - start)
        reached = max(reached, end)
    return again


def _is_semaphore(file: FileMapping) -> bool:
    return file.path.startswith(f"{_SHM}/sem.")


def collect(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, ProcessMaps]:
    """By pid, where readable."""
    answers = reader.run(MAPS_TASK, pids, deadline_s=deadline_s)
    return {pid: found for pid, found in answers.values.items() if found is not None}


def shared_files(
    reader: GuardedReader,
    mapped: Mapping[int, ProcessMaps],
    *,
    deadline_s: float,
) -> tuple[MappedFile, ...]:
    """The biggest distinct files mapped by the job, with what the page cache holds of them where that is cheap."""
    files: dict[tuple[int, int], FileMapping] = {}
    owners: dict[tuple[int, int], int] = {}  # whose mapping `files` has
    mappers: dict[tuple[int, int], set[int]] = {}
    for pid, maps in mapped.items():
        for mapping in maps.files:
            key = (mapping.device, mapping.inode)
            mappers.setdefault(key, set()).add(pid)
            if key not in files or files[key].mapped < mapping.mapped:
                files[key], owners[key] = mapping, pid
    # The files that weigh most in the sum of RSS come first.
    by_weight = sorted(files, key=lambda key: (-files[key].mapped * len(mappers[key]), key))
    named = [key for key in by_weight if _is_semaphore(files[key])][:_MOST_SEMAPHORES]
    order = [*[key for key in by_weight if not _is_semaphore(files[key])][:_MOST_FILES], *named]
    by_pid: dict[int, list[FileMapping]] = {}
    for key in order:
        by_pid.setdefault(owners[key], []).append(files[key])
    sizes: dict[tuple[int, int], tuple[int | None, int | None, str]] = {}
    answers = reader.run(RESIDENT_TASK, list(by_pid), (by_pid, deadline_s * 0.8), deadline_s=deadline_s)
    for found in answers.values.values():
        sizes.update(found)
    return tuple(
        MappedFile(
            path=files[key].path,
            device=key[0],
            inode=key[1],
            size=sizes.get(key, (None, None, ""))[0],
            resident=sizes.get(key, (None, None, ""))[1],
            mappers=tuple(sorted(mappers[key])),
            kind=sizes.get(key, (None, None, "file"))[2],
        )
        for key in order
    )


def resident_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: {(device, inode): (size, resident bytes, kind)}; walks no page table. Guarded: paths may not answer."""
    by_pid, budget_s = argument
    until = time.monotonic() + budget_s
    for pid in pids:
        progress(pid)
        found = {}
        for mapping in by_pid[pid]:
            about = _resident(f"{state.proc_root}/{pid}", mapping, until)
            if about is not None:
                found[(mapping.device, mapping.inode)] = about
        yield pid, found


def _resident(folder: str, mapping: FileMapping, until: float) -> tuple[int | None, int | None, str] | None:
    kind = kind_of(mapping.path)
    deleted = mapping.path.endswith(" (deleted)")
    path = f"{folder}/map_files/{mapping.span}" if deleted else f"{folder}/root{mapping.path}"
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # something else has taken its name: opening could act on it
            return None
        if kind == "shmem" or deleted:
            return about.st_size, about.st_blocks * 512 if kind == "shmem" else None, kind
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return (None, None, kind) if deleted else None
    try:
        status = os.fstat(descriptor)
        # Overlay and btrfs show another device in maps than stat(2) does; the inode is the same.
        if status.st_ino != mapping.inode:
            return None
        return status.st_size, cached_bytes(descriptor, status.st_size, until), kind
    finally:
        os.close(descriptor)


def kind_of(path: str) -> str:
    """shmem, hugetlb or file, by the places where such files live."""
    if path.startswith(("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")):
        return "shmem"
    if path.startswith(("/anon_hugepage", "/dev/hugepages")):
        return "hugetlb"
    return "file"


def loaded(mapped: Mapping[int, ProcessMaps]) -> dict[int, tuple[str, ...]]:
    """Frameworks by pid."""
    return {pid: maps.frameworks for pid, maps in mapped.items()}


def unlisted(mapped: Mapping[int, ProcessMaps], shown: Iterable[MappedFile]) -> int:
    """Bytes that all may have mapped of files which are not `shown`; big ones count once, whoever maps them."""
    listed = {(file.device, file.inode) for file in shown}
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for maps in mapped.values():
        for file in maps.files:
            key = (file.device, file.inode)
            if key not in listed:
                size, end = sums.get(key, (0, 0))
                # Other things than files may show different pages at the same place.
                sums[key] = size + file.mapped, max(end, file.end if _is_file(file) else size + file.mapped)
    return sum(maps.small for maps in mapped.values()) + sum(min(both) for both in sums.values())


def _is_file(file: FileMapping) -> bool:
    return not file.path.startswith("/dev/") or kind_of(file.path) != "file"
