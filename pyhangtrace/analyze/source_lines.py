"""Source positions put into stacks that are shown. Nothing is concluded from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import FoundBy
from pyhangtrace.model.stacks import Frame, SourcePosition, code_addresses

Places = Mapping[tuple[int, int], tuple[SourcePosition, ...]]  # by pid and address


def places_of(evidence: Evidence) -> Places:
    """What is known, to be looked up."""
    return {(place.pid, place.address): place.positions for place in evidence.source}


def with_lines(pid: int, frames: tuple[Frame, ...], places: Places) -> tuple[Frame, ...]:
    """The stack with file and line in its native frames, and before each the functions inlined in it."""
    return tuple(_with_lines(pid, frames, places)) if places else frames


def _with_lines(pid: int, frames: Sequence[Frame], places: Places) -> Iterator[Frame]:
    for frame, address in zip(frames, code_addresses(frames), strict=True):
        positions = places.get((pid, address)) if address is not None else None
        if not positions:
            yield frame
            continue
        *inlined, own = positions
        for position in inlined:
            yield replace(
                frame,
                function=position.function,
                file=position.file,
                line=position.line,
                found_by=FoundBy.INLINED,
            )
        yield replace(frame, function=frame.function or own.function, file=own.file, line=own.line)
