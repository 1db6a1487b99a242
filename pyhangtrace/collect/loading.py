"""Which big files processes read: descriptors with their positions, mapped files, what the page cache has of them.

Asked for at the begin and at the end of the window, the difference is the progress. Shards lie side by side: of a file
that is read, those of the same folder whose names differ in digits only belong to the same set, read yet or not.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyhangtrace.collect.cached import cached_bytes
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.maps import FileMapping, kind_of
from pyhangtrace.collect.procfs import fields, numbers, printable, read_link, read_text
from pyhangtrace.model.memory import LoadedFile

OPEN_FILES_TASK = "big_open_files"
SHARDS_TASK = "shards"

_SMALLEST = 16 << 20  # below that a file is read before anybody wonders
_MOST_DESCRIPTORS = 1024
_MOST_FILES = 256
_MOST_SIBLINGS = 1024
_DIGITS = re.compile(r"\d+")

Key = tuple[int, int]  # device and inode, as stat(2) says them
# Path as the process sees it, size, and position in the file, None where it is only mapped.
Opened = tuple[str, Key, int, "int | None"]


def open_files_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: big regular files that each process has open for reading, or maps (`argument`: mappings by pid)."""
    for pid in pids:
        progress(pid)
        folder = f"{state.proc_root}/{pid}"
        yield pid, [*_opened(folder), *_mapped(folder, argument.get(pid, ()))][:_MOST_FILES]


def _opened(folder: str) -> Iterator[Opened]:
    for number in numbers(f"{folder}/fd")[:_MOST_DESCRIPTORS]:
        path = read_link(f"{folder}/fd/{number}")
        if path is None or not path.startswith("/") or path.startswith(("/dev/", "/memfd:")):
            continue
        info = dict(fields(read_text(f"{folder}/fdinfo/{number}") or ""))
        try:
            writes = int(info.get("flags", "0"), 8) & os.O_ACCMODE == os.O_WRONLY
            position = int(info.get("pos", "0"))
            about = os.stat(f"{folder}/fd/{number}")
        except (OSError, ValueError):
            continue
        if not writes and stat.S_ISREG(about.st_mode) and about.st_size >= _SMALLEST:
            yield printable(path), (about.st_dev, about.st_ino), about.st_size, position


def _mapped(folder: str, mappings: Sequence[FileMapping]) -> Iterator[Opened]:
    for mapping in mappings:
        if (
            mapping.mapped < _SMALLEST
            or kind_of(mapping.path) != "file"
            or mapping.path.endswith(" (deleted)")
        ):
            continue
        try:
            about = os.stat(f"{folder}/root{mapping.path}")
        except OSError:
            continue
        # Overlay and btrfs show another device in maps than stat(2) does; the inode is the same.
        if stat.S_ISREG(about.st_mode) and about.st_ino == mapping.inode:
            yield mapping.path, (about.st_dev, about.st_ino), about.st_size, None


def shards_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: {(device, inode): (path, size, bytes in the page cache)} of files and of their like beside them.

    `argument`: (paths by pid, seconds, keys of which only the cache is asked, None for all that there are).
    """
    paths, budget_s, only = argument
    until = time.monotonic() + budget_s
    for pid in pids:
        progress(pid)
        root = f"{state.proc_root}/{pid}/root"
        found = {}
        for path in _with_siblings(root, paths[pid]) if only is None else paths[pid]:
            about = _cached(root, path, until)
            if about is not None and (only is None or about[0] in only):
                found[about[0]] = (path, *about[1:])
        yield pid, found


def _with_siblings(root: str, paths: Sequence[str]) -> list[str]:
    wanted: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        wanted.setdefault(folder, set()).add(_DIGITS.sub("0", name))
    found = list(paths)
    for folder, masks in wanted.items():
        try:
            names = sorted(os.listdir(f"{root}{folder}/"))[:_MOST_SIBLINGS]
        except OSError:
            continue
        found += [f"{folder}/{name}" for name in names if _DIGITS.sub("0", name) in masks]
    return list(dict.fromkeys(found))[:_MOST_FILES]


def _cached(root: str, path: str, until: float) -> tuple[Key, int, int | None] | None:
    try:
        descriptor = os.open(
            f"{root}{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
        )
    except OSError:
        try:  # a symbolic link, as the caches of model hubs have them
            descriptor = os.open(f"{root}{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size < _SMALLEST:
            return None
        return (about.st_dev, about.st_ino), about.st_size, cached_bytes(descriptor, about.st_size, until)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Use:
    """Of a file by a process: positions of its descriptors (a mapping of Python keeps one); whether it is mapped."""

    positions: list[int] = field(default_factory=list)
    mapped: bool = False


class Watch:
    """The files that processes read, at the begin of the window; `finish` has the differences."""

    def __init__(
        self,
        reader: GuardedReader,
        mapped: Mapping[int, Sequence[FileMapping]],
        pids: Sequence[int],
        *,
        deadline_s: float,
    ) -> None:
        self._reader = reader
        self._mapped = {pid: list(mappings) for pid, mappings in mapped.items()}
        self._pids = list(pids)
        self.seconds: float | None = None  # between the looks, once there are two
        self.patience_s = 0.0  # for how much longer to look where no file has come any further
        self._before, paths = self._look(deadline_s)
        # Of a file that several have, one is enough to ask through.
        seen: set[str] = set()
        asked: dict[int, list[str]] = {}
        for pid, known in paths.items():
            asked[pid] = [path for path in known if path not in seen]
            seen.update(known)
        self._through: dict[int, list[str]] = {}
        self._shards: dict[Key, tuple[str, int, int | None]] = {}
        for pid, found in self._ask(asked, None, deadline_s).items():
            self._through[pid] = [path for path, *_ in found.values()]
            self._shards.update(found)
        self._began = time.monotonic()

    def finish(self, *, deadline_s: float) -> tuple[LoadedFile, ...]:
        """All files of the sets, by path. The page cache gets what is read ahead in pieces: of a slow disk one may take
        longer than the time between two looks.
        """
        found = self._files(deadline_s)
        if self.patience_s > 0 and found and not any(map(_came_further, found)):
            time.sleep(self.patience_s)
            found = self._files(deadline_s)
        return found

    def _files(self, deadline_s: float) -> tuple[LoadedFile, ...]:
        after, _ = self._look(deadline_s)
        self.seconds = round(time.monotonic() - self._began, 4)
        cached: dict[Key, tuple[str, int, int | None]] = {}
        for part in self._ask(self._through, set(self._shards), deadline_s).values():
            cached.update(part)
        found = []
        for key, (path, size, before) in self._shards.items():
            holders = [
                (pid, self._before.get(pid, {}).get(key), after.get(pid, {}).get(key)) for pid in self._pids
            ]
            found.append(
                LoadedFile(
                    path=path,
                    device=key[0],
                    inode=key[1],
                    size=size,
                    readers=tuple(pid for pid, *both in holders if any(at and at.positions for at in both)),
                    mappers=tuple(pid for pid, *both in holders if any(at and at.mapped for at in both)),
                    positions=tuple(
                        (pid, max(first.positions), max(last.positions))
                        for pid, first, last in holders
                        if first and last and first.positions and last.positions
                    ),
                    cached_before=before,
                    cached_after=cached[key][2] if key in cached else None,
                )
            )
        return tuple(sorted(found, key=lambda file: (file.path, file.device, file.inode)))

    def _look(self, deadline_s: float) -> tuple[dict[int, dict[Key, _Use]], dict[int, list[str]]]:
        """(use of each file, paths) by process."""
        answers = self._reader.run(OPEN_FILES_TASK, self._pids, self._mapped, deadline_s=deadline_s)
        uses: dict[int, dict[Key, _Use]] = {}
        paths: dict[int, list[str]] = {}
        for pid, opened in answers.values.items():
            here = uses.setdefault(pid, {})
            for _, key, _, position in opened:
                use = here.setdefault(key, _Use())
                if position is None:
                    use.mapped = True
                else:
                    use.positions.append(position)
            paths[pid] = list(dict.fromkeys(path for path, *_ in opened))
        return uses, paths

    def _ask(
        self, paths: Mapping[int, Sequence[str]], only: set[Key] | None, deadline_s: float
    ) -> dict[int, dict[Key, tuple[str, int, int | None]]]:
        asked = {pid: known for pid, known in paths.items() if known}
        return self._reader.run(
            SHARDS_TASK, list(asked), (asked, deadline_s * 0.8, only), deadline_s=deadline_s
        ).values


def _came_further(file: LoadedFile) -> bool:
    grown = (file.cached_after or 0) > (file.cached_before or 0)
    return grown or any(end > start for _, start, end in file.positions)
