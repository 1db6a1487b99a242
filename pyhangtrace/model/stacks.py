"""Frames of stacks, where in the source they are, and what several samples of one stack have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyhangtrace.model.kinds import FoundBy, FrameKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One stack frame. `file` and `line` for Python (and native with line tables), `module` for native
    code.
    """

    kind: FrameKind
    function: str
    file: str | None = None
    line: int | None = None
    module: str | None = None
    address: int | None = None
    found_by: FoundBy = FoundBy.CFI


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Where in its source a function is. `function` is "" if debug information has no name for it."""

    function: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """What debug information says of one address of code in a process (`code_addresses`).

    `positions`: the functions inlined there, innermost first, and last the function itself.
    """

    pid: int
    address: int
    positions: tuple[SourcePosition, ...]


def code_addresses(frames: Sequence[Frame]) -> tuple[int | None, ...]:
    """For each frame of a stack an address within the instruction it is at; `None` for what is no native frame.

    A caller's address is where it goes on, behind the call. The innermost frame is at its own program counter.
    """
    addresses: list[int | None] = []
    innermost = True
    for frame in frames:
        if frame.kind is not FrameKind.NATIVE or frame.address is None:
            addresses.append(None)
            continue
        exact = innermost and frame.found_by in (FoundBy.LEAF, FoundBy.CALL_SITE)
        addresses.append(frame.address if exact else frame.address - 1)
        innermost = False
    return tuple(addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSamples:
    """What several samples of a running thread, some milliseconds apart, have in common.

    `same_leaf`: all are in the same innermost function; `same_stack`: and all return addresses are equal, too.
    `leaves` are the innermost functions, in the order they were first seen, at most eight.
    """

    count: int
    same_leaf: bool
    same_stack: bool
    leaves: tuple[str, ...] = ()
