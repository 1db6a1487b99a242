"""Where a result goes: files by suffix, else the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pyhangtrace.model.errors import OutputFailed, UsageError
from pyhangtrace.model.kinds import Role, State
from pyhangtrace.render.registry import (
    FORMATS,
    RECORDING_FORMATS,
    Format,
    format_for,
    recording_format_for,
)

if TYPE_CHECKING:
    from pyhangtrace.model.recording import Metric
    from pyhangtrace.render.result import RecordResult, Result

EXIT_HANG = 1
EXIT_PARTIAL = 3

_METRICS = {"futex": "no futex wait", "offcpu": "no time off the CPU", "faults": "no page fault"}

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., object])


def _output_option(suffixes: Iterable[str]) -> Callable[[Function], Function]:
    return click.option(
        "-o",
        "--output",
        "outputs",
        metavar="FILE",
        type=click.Path(),
        multiple=True,
        help="Write FILE in the format of its suffix (" + " ".join(suffixes) + ").",
    )


output_option = _output_option(entry.suffix for entry in FORMATS)
recording_output_option = _output_option(entry.suffix for entry in RECORDING_FORMATS)


def check_outputs(names: tuple[str, ...]) -> list[tuple[Path, Format[Result]]]:
    """Resolves formats and folders before any work is done. Raises UsageError."""
    return [(_writable(name), format_for(name)) for name in names]


def check_recording_outputs(names: tuple[str, ...]) -> list[tuple[Path, Format[RecordResult]]]:
    """As `check_outputs`, for the formats of a recording."""
    return [(_writable(name), recording_format_for(name)) for name in names]


def _writable(name: str) -> Path:
    path = Path(name)
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {name!r}: there is no folder {str(path.parent)!r}")
    return path


def deliver(result: Result, outputs: list[tuple[Path, Format[Result]]], *, as_json: bool) -> None:
    """Writes the files, then the terminal's part: JSON if asked for, else the page unless only files were wanted.

    Raises OutputFailed once everything that can be written is; where a file cannot, the page is shown in any case.
    """
    _deliver(result, outputs, _print, as_json=as_json)


def deliver_recording(
    result: RecordResult, outputs: list[tuple[Path, Format[RecordResult]]], *, as_json: bool
) -> None:
    """As `deliver`, for a recording."""
    if not any(stack.weight > 0 for stack in result.profile.stacks):
        for path, entry in outputs:
            if entry.weighed:
                click.echo(_nothing_to_weigh(path, result.recording.metric), err=True)
    _deliver(result, outputs, _print_recording, as_json=as_json)


def _nothing_to_weigh(path: Path, metric: Metric) -> str:
    others = ", ".join(f"--metric {other}" for other in _METRICS if other != metric.value)
    return f"{path} has no stacks: there was {_METRICS[metric.value]} in the window. Others are recorded with {others}"


def _deliver(
    result: T, outputs: list[tuple[Path, Format[T]]], show: Callable[[T, bool], None], *, as_json: bool
) -> None:
    write_all(
        [(path, partial(entry.write, result)) for path, entry in outputs],
        lambda: show(result, as_json),
        always=as_json,
    )


def write_all(
    files: Sequence[tuple[Path, Callable[[], bytes]]], show: Callable[[], None], *, always: bool
) -> None:
    """Writes all files, and shows the result if that is wanted `always`, there are none or one cannot be written.

    Raises OutputFailed once everything that can be written is.
    """
    failed: list[str] = []
    for path, content in files:
        try:
            path.write_bytes(content())
        except OSError as error:
            failed.append(f"cannot write {str(path)!r}: {error.strerror}")
        else:
            click.echo(f"wrote {path}", err=True)
    if always or failed or not files:
        try:
            _to_terminal(show)
        except OutputFailed as error:
            if not failed:
                raise
            failed.append(error.summary)
    if failed:
        raise OutputFailed("; ".join(failed))


def _to_terminal(show: Callable[[], None]) -> None:
    if sys.stdout is None:
        raise OutputFailed("there is no standard output to write to", "Give a file with -o")
    try:
        show()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error


def _print(result: Result, as_json: bool) -> None:  # noqa: FBT001 - called as a value
    if as_json:
        from pyhangtrace.model.codec import report_to_json

        sys.stdout.buffer.write(report_to_json(result.report))
        sys.stdout.buffer.flush()
        return
    from pyhangtrace.render.text.page import render_text

    click.echo(render_text(result.report, color=wants_color()), nl=False, color=True)


def _print_recording(result: RecordResult, as_json: bool) -> None:  # noqa: FBT001 - called as a value
    if as_json:
        from pyhangtrace.model.codec import summary_to_json

        sys.stdout.buffer.write(summary_to_json(result.summary, result.recording))
        sys.stdout.buffer.flush()
        return
    from pyhangtrace.render.text.recording import render_recording

    click.echo(render_recording(result.recording, result.summary, color=wants_color()), nl=False, color=True)


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
