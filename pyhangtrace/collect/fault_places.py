"""What is mapped where page faults were counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import printable
from pyhangtrace.collect.record_tables import Counted
from pyhangtrace.model.recording import PlaceFaults
from pyhangtrace.probes import events

MAPPING_NAMES_TASK = "mapping names"


def mapping_names_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for each process the name of what is mapped at the addresses (pieces of `size`) in `argument`."""
    from pyhangtrace import _native

    wanted, size = argument
    for pid in pids:
        progress(pid)
        mappings = [(entry[0], entry[1], entry[7]) for entry in _native.maps(pid, state.proc_root)]
        yield pid, {address: _most_of(mappings, address, address + size) for address in wanted[pid]}


def _most_of(mappings: Sequence[tuple[int, int, str]], start: int, end: int) -> str | None:
    overlaps = [(min(end, last) - max(start, first), name) for first, last, name in mappings]
    most, name = max(overlaps, default=(0, ""))
    return printable(name) if most > 0 else None


def named(counted: Counted, reader: GuardedReader, *, deadline_s: float) -> tuple[PlaceFaults, ...]:
    """Page faults by place, with what is mapped there now."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for pid, _, address, _, _ in counted.places:
        wanted[pid].append(address)
    if not wanted:
        return ()
    size = 1 << events.PLACE_SHIFT
    answers = reader.run(MAPPING_NAMES_TASK, sorted(wanted), (dict(wanted), size), deadline_s=deadline_s)
    return tuple(
        PlaceFaults(
            pid=pid,
            tid=tid,
            address=address,
            mapping=answers.values.get(pid, {}).get(address),
            minor=minor,
            major=major,
        )
        for pid, tid, address, minor, major in counted.places
    )
