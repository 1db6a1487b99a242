"""`hangtrace record`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyhangtrace.cli.arguments import process_ids, seconds
from pyhangtrace.cli.output import check_recording_outputs, deliver_recording, recording_output_option
from pyhangtrace.model.errors import UsageError
from pyhangtrace.render.registry import RECORDING_FORMATS

if TYPE_CHECKING:
    from pyhangtrace.model.recording import Recording
    from pyhangtrace.render.result import RecordResult


_FAMILIES = ("collectives", "cuda", "mutex")


def families(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Families of functions, joined by commas; anything else is a usage error."""
    wanted = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    for part in wanted:
        if part not in _FAMILIES:
            raise click.BadParameter(f"{part!r} is none of {', '.join(_FAMILIES)}")
    return wanted


@click.command(name="record", short_help="Say what a job does within a window.")
@click.argument("pids", metavar="PID...", nargs=-1, required=True, callback=process_ids)
@click.option(
    "-d",
    "--duration",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1, max=600.0),
    callback=seconds,
    default=5.0,
    show_default=True,
    help="Record for so long.",
)
@recording_output_option
@click.option(
    "--metric",
    type=click.Choice(["futex", "offcpu", "faults"]),
    default="futex",
    show_default=True,
    help="What stacks are weighed by: time in futex waits, time off the CPU (which traces every switch of threads), "
    "or page faults.",
)
@click.option(
    "--diff",
    "earlier",
    metavar="FILE.hang",
    type=click.Path(),
    help="Compare with an earlier recording, saved with -o FILE.hang: in the files of stacks that -o names.",
)
@click.option(
    "--uprobes",
    metavar="WHAT",
    default="",
    callback=families,
    help="Watch calls too, each of which then takes 2 µs longer or more: collectives (NCCL, MPI, gloo), cuda "
    "(synchronisation), mutex (of pthreads); several joined by commas.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as one JSON object.")
def command(
    *,
    pids: tuple[int, ...],
    duration: float,
    outputs: tuple[str, ...],
    metric: str,
    earlier: str | None,
    uprobes: tuple[str, ...],
    as_json: bool,
) -> int:
    """Finds the job that PID belongs to and records for a while what all its processes do: futex waits and who
    ends them, page faults, signals, exits and block I/O by eBPF probes that sum up in the kernel, stacks by
    looking from outside.

    Ctrl-C or SIGTERM ends the window early. Nobody is stopped, signalled or written to. Needs root and the system's
    bcc.
    """
    files = check_recording_outputs(outputs)
    from pyhangtrace.model.recording import Metric

    before = load_recording(earlier) if earlier is not None else None
    if before is not None and before.metric is not Metric(metric) and metric != Metric.FUTEX.value:
        raise UsageError(
            f"{earlier!r} was recorded with --metric {before.metric.value}",
            "Only futex waits are in every recording.",
        )
    if before is not None and not any(entry.weighed for _, entry in files):
        shown = " ".join(entry.suffix for entry in RECORDING_FORMATS if entry.weighed)
        raise UsageError("--diff shows nothing without a file of stacks", f"Give one with -o: {shown}")
    from pyhangtrace.recorder import RecordOptions, record

    recording = record(
        pids,
        RecordOptions(window_s=duration, metric=Metric(metric), uprobes=uprobes),
        progress=lambda message: click.echo(message, err=True),
    )
    deliver_recording(analyzed(recording, before), files, as_json=as_json)
    return 0


def load_recording(name: str) -> Recording:
    """Reads a saved recording. Raises UsageError."""
    from pyhangtrace.model.codec import unpack_any
    from pyhangtrace.model.recording import Recording

    try:
        loaded = unpack_any(Path(name).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror}") from error
    if not isinstance(loaded, Recording):
        raise UsageError(f"{name!r} is evidence of `hangtrace attach`, not a recording")
    return loaded


def analyzed(recording: Recording, before: Recording | None = None) -> RecordResult:
    """A recording with what follows from it, against an earlier one if there is one."""
    from pyhangtrace.analyze.recording import collective_spans, compared, profile, summarise
    from pyhangtrace.render.result import RecordResult

    shown = profile(recording)
    if before is not None:
        # Two windows are compared as if they had been equally long.
        scale = recording.window_s / before.window_s if before.window_s > 0 else 1.0
        shown = compared(shown, profile(before, recording.metric), scale=scale)
    return RecordResult(
        recording=recording,
        summary=summarise(recording),
        profile=shown,
        spans=collective_spans(recording),
    )
