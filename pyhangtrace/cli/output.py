"""Where a result goes: files by suffix, else the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyhangtrace.model.errors import UsageError
from pyhangtrace.model.kinds import Role, State
from pyhangtrace.render.registry import FORMATS, Format, format_for

if TYPE_CHECKING:
    from pyhangtrace.render.result import Result

EXIT_HANG = 1
EXIT_PARTIAL = 3

output_option = click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    type=click.Path(),
    multiple=True,
    help="Write FILE in the format of its suffix (" + " ".join(entry.suffix for entry in FORMATS) + ").",
)


def check_outputs(names: tuple[str, ...]) -> list[tuple[Path, Format]]:
    """Resolves formats and folders before any work is done. Raises UsageError."""
    outputs = []
    for name in names:
        path = Path(name)
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {name!r}: there is no folder {str(path.parent)!r}")
        outputs.append((path, format_for(name)))
    return outputs


def deliver(result: Result, outputs: list[tuple[Path, Format]], *, as_json: bool) -> None:
    """Writes the files, then the terminal's part: JSON if asked for, else the page unless only files were wanted."""
    for path, entry in outputs:
        try:
            path.write_bytes(entry.write(result))
        except OSError as error:
            raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from error
        click.echo(f"wrote {path}", err=True)
    if not as_json and outputs:
        return
    if sys.stdout is None:
        raise UsageError("there is no standard output to write to", "Give a file: -o report.txt")
    try:
        _print(result, as_json=as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write to standard output: {error.strerror}") from error


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        from pyhangtrace.model.codec import report_to_json

        sys.stdout.buffer.write(report_to_json(result.report))
        sys.stdout.buffer.flush()
        return
    from pyhangtrace.render.text.page import render_text

    click.echo(render_text(result.report, color=wants_color()), nl=False, color=True)


def wants_color() -> bool:
    """Colour only on a terminal, and not where the user said no (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def exit_code(result: Result, *, hang_is_failure: bool) -> int:
    """What a finished run returns: a hang that was asked to count, a report with holes, or 0."""
    if hang_is_failure and result.report.verdict.state is State.HUNG:
        return EXIT_HANG
    holes = (process for process in result.evidence.processes if process.role is not Role.OUTSIDER)
    # A zombie or an ended process gave all it had; the others should have given more.
    if any(process.problem not in (None, "gone", "zombie") for process in holes):
        return EXIT_PARTIAL
    return 0
