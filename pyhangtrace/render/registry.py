"""All formats in one table; the suffix of a file name chooses, the longest match wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyhangtrace.model.errors import UsageError

if TYPE_CHECKING:
    from pyhangtrace.render.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One output format. `write` gives the whole file."""

    name: str
    suffix: str
    content_type: str
    help: str
    write: Callable[[Result], bytes]


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


FORMATS: tuple[Format, ...] = (
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


def format_for(filename: str) -> Format:
    """The format of the longest matching suffix. Raises UsageError if none matches."""
    matches = [entry for entry in FORMATS if filename.endswith(entry.suffix)]
    if not matches:
        known = " ".join(entry.suffix for entry in FORMATS)
        raise UsageError(
            f"cannot tell the format of {filename!r} from its suffix", f"known suffixes: {known}"
        )
    return max(matches, key=lambda entry: len(entry.suffix))
