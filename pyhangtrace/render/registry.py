"""All formats in one table; the suffix of a file name chooses, the longest match wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pyhangtrace.model.errors import UsageError

if TYPE_CHECKING:
    from pyhangtrace.render.result import RecordResult, Result

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[T]):
    """One output format. `write` gives the whole file. `weighed`: it shows the weighed stacks of a recording, and so
    what has changed in them.
    """

    name: str
    suffix: str
    content_type: str
    help: str
    write: Callable[[T], bytes]
    weighed: bool = False


# Each writer is imported when used: the table itself is read by `--help`, which should not wait for them.
def _hang(result: Result) -> bytes:
    from pyhangtrace.model.codec import pack

    return pack(result.evidence)


def _json(result: Result) -> bytes:
    from pyhangtrace.model.codec import report_to_json

    return report_to_json(result.report)


def _text(result: Result) -> bytes:
    from pyhangtrace.render.text.page import render_text

    return render_text(result.report, color=False).encode()


def _html(result: Result) -> bytes:
    from pyhangtrace.render.html.page import render_html

    return render_html(result.report).encode()


def _folded(result: Result) -> bytes:
    from pyhangtrace.render.folded import render_folded

    return render_folded(result.report).encode()


def _speedscope(result: Result) -> bytes:
    from pyhangtrace.render.speedscope import render_speedscope

    return render_speedscope(result.report)


FORMATS: tuple[Format[Result], ...] = (
    Format(
        name="hang",
        suffix=".hang",
        content_type="application/gzip",
        help="the evidence itself; `hangtrace report` renders it again anywhere",
        write=_hang,
    ),
    Format(
        name="json",
        suffix=".json",
        content_type="application/json",
        help="the report as one object (`hangtrace schema`)",
        write=_json,
    ),
    Format(
        name="html",
        suffix=".html",
        content_type="text/html",
        help="one self-contained page with the stacks of all ranks",
        write=_html,
    ),
    Format(
        name="folded",
        suffix=".folded",
        content_type="text/plain",
        help="folded stacks, one line per stack, weighed by threads",
        write=_folded,
    ),
    Format(
        name="speedscope",
        suffix=".speedscope.json",
        content_type="application/json",
        help="for speedscope.app and editors",
        write=_speedscope,
    ),
    Format(
        name="text",
        suffix=".txt",
        content_type="text/plain",
        help="what the terminal shows, without colour",
        write=_text,
    ),
)


def _recorded_hang(result: RecordResult) -> bytes:
    from pyhangtrace.model.codec import pack

    return pack(result.recording)


def _recorded_json(result: RecordResult) -> bytes:
    from pyhangtrace.model.codec import summary_to_json

    return summary_to_json(result.summary, result.recording)


def _recorded_text(result: RecordResult) -> bytes:
    from pyhangtrace.render.text.recording import render_recording

    return render_recording(result.recording, result.summary, color=False).encode()


def _recorded_html(result: RecordResult) -> bytes:
    from pyhangtrace.render.html.recording import render_recording_html

    return render_recording_html(result).encode()


def _recorded_folded(result: RecordResult) -> bytes:
    from pyhangtrace.render.folded import folded

    return folded(result.profile).encode()


def _recorded_speedscope(result: RecordResult) -> bytes:
    from pyhangtrace.render.speedscope import speedscope_of_profile

    return speedscope_of_profile(result.profile, result.recording)


def _recorded_trace(result: RecordResult) -> bytes:
    from pyhangtrace.render.chrome_trace import render_chrome_trace

    return render_chrome_trace(result.recording, result.spans)


def _recorded_pprof(result: RecordResult) -> bytes:
    from pyhangtrace.render.pprof import render_pprof

    return render_pprof(result.profile, result.recording)


RECORDING_FORMATS: tuple[Format[RecordResult], ...] = (
    Format(
        name="hang",
        suffix=".hang",
        content_type="application/gzip",
        help="the recording itself; `hangtrace report` renders it again anywhere",
        write=_recorded_hang,
    ),
    Format(
        name="json",
        suffix=".json",
        content_type="application/json",
        help="the table as one object",
        write=_recorded_json,
    ),
    Format(
        name="html",
        suffix=".html",
        content_type="text/html",
        help="one self-contained page with a flame graph of the metric",
        write=_recorded_html,
        weighed=True,
    ),
    Format(
        name="folded",
        suffix=".folded",
        content_type="text/plain",
        help="folded stacks, weighed by microseconds or faults",
        write=_recorded_folded,
        weighed=True,
    ),
    Format(
        name="speedscope",
        suffix=".speedscope.json",
        content_type="application/json",
        help="for speedscope.app and editors",
        write=_recorded_speedscope,
        weighed=True,
    ),
    Format(
        name="trace",
        suffix=".trace.json",
        content_type="application/json",
        help="waits, faults and collectives on one time axis, for ui.perfetto.dev",
        write=_recorded_trace,
    ),
    Format(
        name="pprof",
        suffix=".pb.gz",
        content_type="application/gzip",
        help="for `go tool pprof` and what reads its format",
        write=_recorded_pprof,
        weighed=True,
    ),
    Format(
        name="text",
        suffix=".txt",
        content_type="text/plain",
        help="what the terminal shows, without colour",
        write=_recorded_text,
    ),
)


def format_for(filename: str) -> Format[Result]:
    """The format of the longest matching suffix. Raises UsageError if none matches."""
    return _matching(filename, FORMATS)


def recording_format_for(filename: str) -> Format[RecordResult]:
    """The format of a recording for this file. Raises UsageError if none matches."""
    return _matching(filename, RECORDING_FORMATS)


def _matching(filename: str, formats: tuple[Format[T], ...]) -> Format[T]:
    matches = [entry for entry in formats if filename.endswith(entry.suffix)]
    if not matches:
        known = " ".join(entry.suffix for entry in formats)
        raise UsageError(
            f"cannot tell the format of {filename!r} from its suffix", f"known suffixes: {known}"
        )
    return max(matches, key=lambda entry: len(entry.suffix))
