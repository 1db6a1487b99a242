"""Whether single threads have moved, and where they are now: a file or four each, none of which takes a lock."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyhangtrace.collect.procfs import PROC, printable, read_text, wait_channel
from pyhangtrace.collect.threads import parse_schedstat, parse_syscall
from pyhangtrace.model import syscalls
from pyhangtrace.model.live import ThreadKey, ThreadMark

_RUNS = "R"


def moved(
    before: Mapping[ThreadKey, ThreadMark], at_s: float, proc_root: str = PROC
) -> dict[ThreadKey, ThreadMark]:
    """The same threads without those that are gone, and when each was last seen to move."""
    found = {}
    for key, mark in before.items():
        run_ns, slices = _counters(key, proc_root)
        if run_ns is None or slices is None:
            continue
        if (run_ns, slices) != (mark.run_ns, mark.slices):
            mark = replace(mark, run_ns=run_ns, slices=slices, moved_s=at_s)
        found[key] = mark
    return found


def read(
    keys: Iterable[ThreadKey], before: Mapping[ThreadKey, ThreadMark], at_s: float, proc_root: str = PROC
) -> dict[ThreadKey, ThreadMark]:
    """State, system call and kernel function of these threads, too."""
    names = syscalls.names(platform.machine())
    found = {}
    for key in keys:
        run_ns, slices = _counters(key, proc_root)
        if run_ns is None or slices is None:
            continue
        folder = f"{proc_root}/{key[0]}/task/{key[1]}"
        state = (read_text(f"{folder}/stat") or "").rpartition(") ")[2][:1] or "?"
        number, _, running = parse_syscall(read_text(f"{folder}/syscall"))
        wchan = wait_channel(folder)
        known = before.get(key)
        same = known is not None and (known.run_ns, known.slices) == (run_ns, slices)
        found[key] = ThreadMark(
            state=_RUNS if running else state,
            slices=slices,
            run_ns=run_ns,
            moved_s=known.moved_s if known is not None and same else at_s,
            seen_s=known.seen_s if known is not None else at_s,
            syscall=names.get(number) if number is not None else None,
            wchan=printable(wchan) if wchan is not None else None,
        )
    return found


def _counters(key: ThreadKey, proc_root: str) -> tuple[int | None, int | None]:
    return parse_schedstat(read_text(f"{proc_root}/{key[0]}/task/{key[1]}/schedstat"))
