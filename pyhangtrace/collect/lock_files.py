"""Files whose mere existence is a lock: are they there, since when, does anybody have them open."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyhangtrace.collect.descriptors import Openers
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.mounts import Mount, mount_of, read_mounts
from pyhangtrace.collect.named_values import LOCK_FILE_VALUES
from pyhangtrace.collect.procfs import printable, read_link, read_text
from pyhangtrace.model.open_files import LockFile
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.threads import ThreadSample

LOCK_FILES_TASK = "lock_files"
_LONGEST_PATH = 4096
_LONGEST_CONTENT = 64


def lock_files_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: a LockFile for each path of each pid, as that process sees the file system."""
    for pid in pids:
        progress(pid)
        mounts = read_mounts(pid, state.proc_root)
        yield pid, [_look_at(pid, path, mounts, state.proc_root) for path in argument[pid]]


def paths(samples: Iterable[ThreadSample]) -> dict[int, set[str]]:
    """Paths of lock files by the process that polls them."""
    found: dict[int, set[str]] = {}
    for sample in samples:
        for value in sample.named_values:
            path = value.value
            known = (value.function, value.name) in LOCK_FILE_VALUES
            if known and isinstance(path, str) and 0 < len(path) < _LONGEST_PATH and "\0" not in path:
                found.setdefault(sample.pid, set()).add(path)
    return found


def collect(
    reader: GuardedReader, wanted: dict[int, set[str]], *, deadline_s: float
) -> tuple[list[LockFile], list[str]]:
    """The lock files, and what went wrong."""
    if not wanted:
        return [], []
    asked = {pid: sorted(names) for pid, names in wanted.items()}
    answers = reader.run(LOCK_FILES_TASK, list(asked), asked, deadline_s=deadline_s)
    return [found for each in answers.values.values() for found in each], sorted(
        set(answers.problems.values())
    )


def complete(
    files: Sequence[LockFile],
    openers: Openers,
    members: Iterable[int],
    table: ProcessTable,
    uptime_s: float | None,
) -> tuple[LockFile, ...]:
    """With openers, and whether the file is older than the job; one entry per file."""
    ages = [
        uptime_s - row.start_ticks / os.sysconf("SC_CLK_TCK")
        for pid in members
        if uptime_s is not None and (row := table.get(pid)) is not None
    ]
    done: dict[tuple[str, int | None], LockFile] = {}
    for file in files:
        older = file.age_s > max(ages) if file.age_s is not None and ages else None
        done[(file.path, file.inode)] = replace(
            file,
            openers=tuple(sorted({opener.pid for opener in openers.of(file.path)})),
            openers_complete=file.path not in openers.partial,
            older_than_job=older,
            owner_alive=file.owner_pid in table if file.owner_pid is not None else None,
        )
    return tuple(done[key] for key in sorted(done, key=lambda key: (key[0], key[1] or 0)))


def _look_at(pid: int, path: str, mounts: Sequence[Mount], proc_root: str) -> LockFile:
    absolute = path
    if not path.startswith("/"):
        folder = read_link(f"{proc_root}/{pid}/cwd")
        absolute = os.path.normpath(f"{folder}/{path}") if folder is not None else path
    seen = f"{proc_root}/{pid}/root{absolute}" if absolute.startswith("/") else absolute
    try:
        status = os.stat(seen)
    except FileNotFoundError:
        return LockFile(path=printable(absolute), exists=False, pid=pid, fs_type=_fs_type(absolute, mounts))
    return LockFile(
        path=printable(absolute),
        exists=True,
        pid=pid,
        inode=status.st_ino,
        age_s=round(max(0.0, time.time() - status.st_mtime), 1),
        fs_type=_fs_type(absolute, mounts),
        owner_pid=_written_pid(seen, status.st_size),
    )


def _fs_type(path: str, mounts: Sequence[Mount]) -> str | None:
    mount = mount_of(path, mounts)
    return mount.fs_type if mount is not None else None


def _written_pid(path: str, size: int) -> int | None:
    """A pid, if the file holds a number and nothing else (or on its first line, as `filelock` writes it)."""
    if not 0 < size <= _LONGEST_CONTENT:
        return None
    lines = (read_text(path, _LONGEST_CONTENT) or "").split("\n")
    return int(lines[0]) if lines[0].strip().isdecimal() else None
