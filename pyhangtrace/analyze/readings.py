"""What the names in a stack say, worked out once for all threads that are in the same functions.

The ranks of a job run one program, and many of its threads do the same: of thousands of stacks a few dozen differ by
more than lines and addresses, and no rule asks for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from pyhangtrace.analyze import gpu_calls
from pyhangtrace.analyze.calls import Call, inside_sqlite, recognise
from pyhangtrace.analyze.gpu_calls import GpuCall
from pyhangtrace.analyze.openmp import Place, place
from pyhangtrace.analyze.services import Serving, serving
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame

# Of a frame all that rules ask for: kind, function, file, module.
_Code = tuple[FrameKind, str, str | None, str | None]
_CODE = attrgetter("kind", "function", "file", "module")


class Reading(msgspec.Struct, frozen=True):
    """All that rules about names find in a stack. `at` and `caller_at` say where in it the frames of the call are."""

    rule: Call | None
    at: int
    caller_at: int | None
    gpu: GpuCall | None
    in_sqlite: bool
    team: Place | None
    serving: Serving

    def call(self, frames: Sequence[Frame]) -> Call | None:
        """The call that is recognised in these frames, of which this is the reading."""
        rule = self.rule
        if rule is None:
            return None
        caller = frames[self.caller_at] if self.caller_at is not None else None
        return Call(rule.meaning, rule.op, rule.backend, frames[self.at], caller, rule.spins)


def read(frames: Sequence[Frame]) -> Reading:
    """What the rules say of these frames."""
    return _read(tuple(map(_CODE, frames)))


@lru_cache(maxsize=1024)
def _read(code: tuple[_Code, ...]) -> Reading:
    frames = [
        Frame(kind=kind, function=function, file=file, module=module) for kind, function, file, module in code
    ]
    rule = recognise(frames)
    where = {id(frame): index for index, frame in enumerate(frames)}
    return Reading(
        rule=rule,
        at=where[id(rule.frame)] if rule is not None else 0,
        caller_at=where[id(rule.caller)] if rule is not None and rule.caller is not None else None,
        gpu=gpu_calls.recognise(frames),
        in_sqlite=inside_sqlite(frames),
        team=place(frames),
        serving=serving(frames),
    )
