"""Files that are being read: how far, how fast, and how long it may still take. Slow is not hung."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pyhangtrace.analyze.memory_window import Window
from pyhangtrace.model.memory import LoadedFile
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import Loading

_DIGITS = re.compile(r"\d+")
_MOST_NAMED = 4
# Reading far ahead, or a second set of files, is no reason to give no time; reading the same again and again is.
_MUCH_MORE = 4


def loading(
    files: Sequence[LoadedFile], window: Window | None, seconds: float | None = None, *, thrash: bool = False
) -> tuple[Loading, ...]:
    """Sets of files of which some were read within the window, or are read half and were not touched in it. `seconds`
    lie between the two looks at the files, where that is not the window. `thrash`: what is read does not stay.
    """
    if window is None:
        return ()
    if seconds is not None and seconds > 0:
        window = replace(window, seconds=seconds)
    stays = not thrash and (window.read_bytes or 0.0) * window.seconds <= _MUCH_MORE * moved(files)
    sets: dict[str, list[LoadedFile]] = {}
    for file in files:
        sets.setdefault(_mask(file.path), []).append(file)
    found = [_progress(mask, members, window, stays=stays) for mask, members in sorted(sets.items())]
    return tuple(one for one in found if one is not None)


def moved(files: Sequence[LoadedFile]) -> int:
    """Bytes by which their readers got ahead."""
    return max(_grown(files), _walked(files))


def _grown(files: Sequence[LoadedFile]) -> int:
    return sum(
        max(0, file.cached_after - file.cached_before)
        for file in files
        if file.cached_before is not None and file.cached_after is not None
    )


def _walked(files: Sequence[LoadedFile]) -> int:
    # The same bytes may be read by many; what they got through together is what their positions say of the furthest.
    return sum(
        max((end - start for _, start, end in file.positions), default=0)
        for file in files
        if any(end > start for _, start, end in file.positions)
    )


def _mask(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return folder + slash + _DIGITS.sub("*", name)


def _progress(mask: str, files: list[LoadedFile], window: Window, *, stays: bool) -> Loading | None:
    users = tuple(sorted({pid for file in files for pid in (*file.readers, *file.mappers)}))
    grown, walked = _grown(files), _walked(files)
    total = sum(file.size for file in files)
    cached = [file.cached_after for file in files]
    in_memory = sum(value for value in cached if value is not None) if None not in cached else None
    current = [file for file in files if _under_way(file)]
    if not grown and not walked:
        return _still(mask, files, current, users, window, total=total, done=in_memory)
    # Who reads what lies in the page cache already gets ahead of what comes into it; else readahead makes them alike.
    from_disk = in_memory is not None and grown * 2 >= walked
    done: int | None
    left: int | None
    if from_disk and in_memory is not None:
        done, left = in_memory, total - in_memory if stays else None
        have = f"{size(in_memory)} of {size(total)} are in memory"
        if left is None:
            have += ", and what is read does not stay there"
    else:
        ends = [(file.size, max((end for _, _, end in file.positions), default=0)) for file in current]
        done = sum(end for _, end in ends)
        left = max(0, sum(length for length, _ in ends) - done) if ends else None
        have = f"at {size(done)} of {size(sum(length for length, _ in ends))}"
    rate = (grown if from_disk else max(grown, walked)) / window.seconds
    eta = left / rate if left is not None and rate else None
    names = tuple(file.path.rpartition("/")[2] for file in current)
    at = f" of {len(files)} files" if len(files) > 1 else ""
    soon = f", {_time(eta)} to go at this rate" if eta is not None else ""
    return Loading(
        files=mask,
        count=len(files),
        current=names[:_MOST_NAMED],
        readers=users,
        total=total,
        done=done,
        rate_bytes_per_s=round(rate, 1),
        eta_s=round(eta, 1) if eta is not None else None,
        summary=f"{_named(names)}{at} at {size(int(rate))}/s, {have}{soon}",
    )


def _still(
    mask: str,
    files: list[LoadedFile],
    current: list[LoadedFile],
    users: tuple[int, ...],
    window: Window,
    *,
    total: int,
    done: int | None,
) -> Loading | None:
    half = [
        file
        for file in files
        if any(0 < end < file.size and start == end for _, start, end in file.positions)
    ]
    faults = sum((window.processes[pid].major_faults or 0.0) for pid in users if pid in window.processes)
    if not half or faults or window.read_by(users):
        return None
    names = tuple(file.path.rpartition("/")[2] for file in half)
    return Loading(
        files=mask,
        count=len(files),
        current=names[:_MOST_NAMED],
        readers=tuple(sorted({pid for file in half for pid in file.readers})),
        total=total,
        done=done,
        rate_bytes_per_s=0.0,
        eta_s=None,
        summary=f"{_named(names)} is read in part, and not a byte of it in {window.seconds:.1f} s",
    )


def _under_way(file: LoadedFile) -> bool:
    if any(end > start for _, start, end in file.positions):
        return True
    before, after = file.cached_before, file.cached_after
    return before is not None and after is not None and after > before


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
