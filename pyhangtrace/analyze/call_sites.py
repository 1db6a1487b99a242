"""Where a program calls an operation of the group: the wrapper of the library around it, and the program's own line."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze.calls import path_has, python_frames
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.ranks import fold
from pyhangtrace.model.report import Divergence
from pyhangtrace.model.stacks import Frame

# Parts of torch that call operations of the group on their own, by files or by functions of C++.
_WRAPPERS = (
    ("torch/distributed/fsdp/", "FSDP"),
    ("torch/distributed/_composable/fsdp/", "FSDP"),
    ("torch/nn/parallel/distributed.py", "DDP"),
    ("torch/distributed/tensor/", "DTensor"),
    ("torch/distributed/_tensor/", "DTensor"),
    ("torch/distributed/pipelining/", "pipeline schedule"),
    ("torch/distributed/checkpoint/", "distributed checkpoint"),
)
_NATIVE_WRAPPERS = (("c10d::Reducer::", "DDP"),)
_LIBRARY = ("torch/", "typing_extensions.py", "contextlib.py", "functools.py")


def wrapper(frames: Sequence[Frame]) -> str | None:
    """The innermost part of torch above an operation that makes such calls itself: `DDP`, `FSDP`, `DTensor`."""
    for frame in frames:
        known: tuple[tuple[str, str], ...] = ()
        if frame.kind is FrameKind.NATIVE:
            known = tuple(each for each in _NATIVE_WRAPPERS if each[0] in frame.function)
        elif frame.kind is FrameKind.PYTHON:
            if not _of_library(frame):
                return None
            known = tuple(each for each in _WRAPPERS if path_has(frame.file, each[0]))
        if known:
            return known[0][1]
    return None


def call_site(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of Python outside of torch."""
    return next((frame for frame in python_frames(frames) if not _of_library(frame)), None)


def _of_library(frame: Frame) -> bool:
    return any(path_has(frame.file, place) for place in _LIBRARY)


def parting(divergence: Divergence) -> str:
    """` They part in step (train.py): ranks 0,2 at line 41, rank 1 at line 42.`"""
    common = divergence.common
    sides = [(side.ranks, side.frame) for side in divergence.sides if side.frame is not None]
    if common is None:
        return ""
    file = (common.file or "").rpartition("/")[2]
    if common.line is None:
        told = ", ".join(f"{_ranks(ranks)} at line {frame.line}" for ranks, frame in sides)
        return f" They part in {common.function} ({file}): {told}."
    told = ", ".join(f"{_ranks(ranks)} in {_place(frame)}" for ranks, frame in sides)
    return f" They part after {common.function} ({file}:{common.line}): {told}."


def _place(frame: Frame) -> str:
    return f"{frame.function} ({(frame.file or '').rpartition('/')[2]}:{frame.line})"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {fold(ranks)}"
