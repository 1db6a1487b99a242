"""What is mapped where page faults were counted, and which functions made them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import printable
from pyhangtrace.collect.record_tables import Counted
from pyhangtrace.collect.stacks import native_engine
from pyhangtrace.model.recording import PlaceFaults
from pyhangtrace.probes import events

MAPPING_NAMES_TASK = "mapping names"
CODE_NAMES_TASK = "code names"
GONE = "[gone]"  # no name of the kernel's: those in brackets are [heap], [stack], [vdso] and the like
_GROWS = {"[heap]", "[stack]"}  # nothing else is put into the room beside them


def mapping_names_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for each process the name of what is mapped at the addresses (pieces of `size`) in `argument`."""
    from pyhangtrace import _native

    wanted, size = argument
    for pid in pids:
        progress(pid)
        mappings = [(entry[0], entry[1], entry[7]) for entry in _native.maps(pid, state.proc_root)]
        yield pid, {address: only_mapping(mappings, address, address + size) for address in wanted[pid]}


def code_names_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for each process the functions, and their files, that its addresses in `argument` are in."""
    for pid in pids:
        progress(pid)
        yield pid, native_engine(state).code_names(pid, list(argument[pid]))


def only_mapping(mappings: Sequence[tuple[int, int, str]], start: int, end: int) -> str | None:
    """The name of the one thing that can have been touched there; "" for anonymous memory, `GONE` if nothing is mapped
    there now, None if it may have been more than one: several have a part of it, or a part that is free now can have
    been anything.
    """
    overlaps = [
        (min(end, last) - max(start, first), name)
        for first, last, name in mappings
        if first < end and last > start
    ]
    if not overlaps:
        return GONE
    names = {name for _, name in overlaps}
    covered = sum(length for length, _ in overlaps) == end - start
    if len(names) > 1 or not (covered or names <= _GROWS):
        return None
    return printable(names.pop())


def named(counted: Counted, reader: GuardedReader, *, deadline_s: float) -> tuple[PlaceFaults, ...]:
    """Page faults by place, with what is mapped there now, and by which function."""
    wanted: dict[int, set[int]] = defaultdict(set)
    code: dict[int, set[int]] = defaultdict(set)
    for place in counted.places:
        wanted[place.tgid].add(place.place)
        if place.code:
            code[place.tgid].add(place.code)
    if not wanted:
        return ()
    size = 1 << events.PLACE_SHIFT
    answers = reader.run(MAPPING_NAMES_TASK, sorted(wanted), (dict(wanted), size), deadline_s=deadline_s)
    functions = _functions(reader, {pid: sorted(found) for pid, found in code.items()}, deadline_s=deadline_s)
    found = []
    for place in counted.places:
        name = answers.values.get(place.tgid, {}).get(place.place)
        function, module = functions.get((place.tgid, place.code), (None, None))
        gone = name == GONE
        found.append(
            PlaceFaults(
                pid=place.tgid,
                tid=place.tid,
                address=place.place,
                mapping=None if gone else name,
                minor=place.minor,
                major=place.major,
                gone=gone,
                code=place.code,
                function=function,
                module=module,
            )
        )
    return tuple(found)


def _functions(
    reader: GuardedReader, code: dict[int, list[int]], *, deadline_s: float
) -> dict[tuple[int, int], tuple[str | None, str | None]]:
    """Function and file by process and address."""
    answers = reader.run(CODE_NAMES_TASK, sorted(code), code, deadline_s=deadline_s)
    return {
        (pid, address): (
            printable(function) if function is not None else None,
            printable(module) if module is not None else None,
        )
        for pid, names in answers.values.items()
        for address, (function, module) in zip(code[pid], names, strict=True)
    }
