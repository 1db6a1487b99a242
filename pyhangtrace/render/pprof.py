"""pprof's `profile.proto`, gzipped: the few messages of it that stacks with a weight need, encoded by hand.

Numbers of fields are those of github.com/google/pprof/proto/profile.proto. Of a comparison the earlier weights are
samples with negative values and the label that pprof itself gives to a base (`pprof::base`).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from datetime import datetime

from pyhangtrace.model.recording import Recording
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.weighted import StackProfile, Unit, WeightedStack
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import frame_label

_TYPES = {
    Unit.SECONDS: ("delay", "nanoseconds", 1e9),
    Unit.FAULTS: ("faults", "count", 1.0),
    Unit.THREADS: ("threads", "count", 1.0),
}


def render_pprof(profile: StackProfile, recording: Recording) -> bytes:
    """The whole file. Equal data gives equal bytes."""
    return gzip.compress(_Writer(profile, recording).encoded(), mtime=0)


def varint(value: int) -> bytes:
    """Base-128, low groups first; a negative number as its 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer field; zero is what is assumed where nothing is written."""
    return varint(field << 3) + varint(value) if value else b""


def nested(field: int, data: bytes) -> bytes:
    """A field that holds bytes: a message, a string, or packed integers."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated integer field."""
    return nested(field, b"".join(map(varint, values)))


class _Writer:
    def __init__(self, profile: StackProfile, recording: Recording) -> None:
        self._profile = profile
        self._recording = recording
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[int, int], int] = {}

    def encoded(self) -> bytes:
        kind, unit, scale = _TYPES[self._profile.unit]
        value_type = number(1, self._string(kind)) + number(2, self._string(unit))
        samples = []
        for stack in self._profile.stacks:
            samples.append(self._sample(stack, round(stack.weight * scale)))
            if stack.before:
                samples.append(self._sample(stack, -round(stack.before * scale), base=True))
        comment = self._string(f"hangtrace {self._recording.tool_version}: {self._profile.title}")
        parts = [
            nested(1, value_type),
            *(nested(2, sample) for sample in samples if sample),
            *(
                nested(4, number(1, place) + nested(4, number(1, function) + number(2, line)))
                for (function, line), place in self._locations.items()
            ),
            *(
                nested(
                    5,
                    number(1, function)
                    + number(2, self._string(name))
                    + number(3, self._string(name))
                    + number(4, self._string(file)),
                )
                for (name, file), function in self._functions.items()
            ),
            number(9, int(datetime.fromisoformat(self._recording.taken_at).timestamp()) * 10**9),
            number(10, round(self._recording.window_s * 1e9)),
            nested(11, value_type),
            number(12, 1),
            packed(13, [comment]),
        ]
        # Last, since everything before may add to it.
        return b"".join(parts) + b"".join(nested(6, text.encode()) for text in self._strings)

    def _sample(self, stack: WeightedStack, value: int, *, base: bool = False) -> bytes:
        if not value:
            return b""
        owner = f"rank {stack.rank}" if stack.rank is not None else f"pid {stack.pid}"
        places = [self._location(frame) for frame in reversed(stack.frames)]
        # The outermost frames name the thread and the rank, so that every view can be opened by them.
        places += [self._named(f"thread {clean(stack.thread)}"), self._named(owner)]
        labels = [
            self._label("rank", text=str(stack.rank)) if stack.rank is not None else b"",
            self._label("thread", text=clean(stack.thread)),
            self._label("pid", value=stack.pid),
            self._label("tid", value=stack.tid),
            self._label("pprof::base", text="true") if base else b"",
        ]
        return (
            packed(1, places) + packed(2, [value]) + b"".join(nested(3, label) for label in labels if label)
        )

    def _label(self, key: str, *, text: str = "", value: int = 0) -> bytes:
        return number(1, self._string(key)) + (number(2, self._string(text)) if text else number(3, value))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, frame: Frame) -> int:
        name = clean(frame.function) if frame.file else clean(frame_label(frame))
        function = self._function(name or "?", clean(frame.file or frame.module or ""))
        return self._locations.setdefault((function, frame.line or 0), len(self._locations) + 1)

    def _named(self, name: str) -> int:
        return self._locations.setdefault((self._function(name, ""), 0), len(self._locations) + 1)

    def _function(self, name: str, file: str) -> int:
        return self._functions.setdefault((name, file), len(self._functions) + 1)
