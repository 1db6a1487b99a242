"""What a stall leaves behind: the evidence, and the report in the formats that people and programs read.

Every file appears whole under its name, or not at all: others read them while they are written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyhangtrace.model.errors import OutputFailed
from pyhangtrace.render.registry import FORMATS
from pyhangtrace.render.result import Result

_SUFFIXES = (".hang", ".json", ".html", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files of one report, by suffix, and what could not be written."""

    files: dict[str, Path]
    failures: tuple[str, ...]


def check_folder(folder: Path) -> None:
    """Makes the folder. Raises OutputFailed if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise OutputFailed(f"cannot write to {str(folder)!r}: {error.strerror}") from error


def write_bundle(result: Result, folder: Path, name: str) -> Bundle:
    """Writes all files of a report. Never raises for a file that cannot be written."""
    files: dict[str, Path] = {}
    failures = []
    for suffix in _SUFFIXES:
        entry = next(each for each in FORMATS if each.suffix == suffix)
        path = _free(folder, name, suffix)
        try:
            write_whole(path, entry.write(result))
        except OSError as error:
            failures.append(f"cannot write {str(path)!r}: {error.strerror}")
        else:
            files[suffix] = path
    return Bundle(files=files, failures=tuple(failures))


def report_name(taken_at: str, asked: Sequence[int]) -> str:
    """`hang-20260102T030405Z-4242`, sorted by time in a listing."""
    stamp = taken_at.partition("+")[0].replace("-", "").replace(":", "")
    return f"hang-{stamp}Z-{asked[0]}"


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file by one that holds this, readable for all whom the umask does not keep out. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666
        )
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _free(folder: Path, name: str, suffix: str) -> Path:
    path, number = folder / f"{name}{suffix}", 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}{suffix}"
    return path
