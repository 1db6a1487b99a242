"""`hangtrace watch`."""

from __future__ import annotations

from pathlib import Path

import click

from pyhangtrace.cli.arguments import duration, process_ids

_SHORTEST_S = 0.5
_LONGEST_S = 7 * 86400.0


def _length(context: click.Context, parameter: click.Parameter, value: str) -> float:
    length = duration(context, parameter, value)
    assert length is not None
    if not _SHORTEST_S <= length <= _LONGEST_S:
        raise click.BadParameter(f"{value!r} is not between 0.5s and 7d")
    return length


@click.command(name="watch", short_help="Wait until a job stalls, then report it, once.")
@click.argument("pids", metavar="PID...", nargs=-1, required=True, callback=process_ids)
@click.option(
    "--stall",
    metavar="TIME",
    default="60s",
    show_default=True,
    callback=_length,
    help="Look when a rank has done no work for so long: 90, 90s, 5m, 1h. Shorter than the timeout after which the "
    "framework ends the job itself.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Write reports into DIR (.hang .json .html .txt each); it is made if it is not there.",
)
@click.option(
    "--exec",
    "run",
    metavar="CMD",
    help="Run CMD with the shell when a report is written: $1 is the .hang file, HANGTRACE_SUMMARY and others say "
    "more. It has a minute.",
)
@click.option(
    "--metrics-file",
    "metrics",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep FILE up to date for the textfile collector of Prometheus' node exporter (FILE.prom).",
)
@click.option(
    "--rate-limit",
    metavar="TIME",
    default="10m",
    show_default=True,
    callback=_length,
    help="Write at most one report within so long.",
)
@click.option("--no-bpf", is_flag=True, help="Use no eBPF when looking.")
def command(
    *,
    pids: tuple[int, ...],
    stall: float,
    folder: Path,
    run: str | None,
    metrics: Path | None,
    rate_limit: float,
    no_bpf: bool,
) -> int:
    """Watches the job that PID belongs to, at next to no cost, until it stalls; then does what attach does and keeps
    the result, before whoever else notices ends the job.

    Goes on after a report, finds processes that are started again, and ends with the job, on Ctrl-C or SIGTERM.
    Nobody is stopped, signalled or written to.
    """
    from pyhangtrace.interrupts import interruptible
    from pyhangtrace.model.watch import WatchLimits
    from pyhangtrace.watch.watcher import WatchOptions, watch

    options = WatchOptions(
        limits=WatchLimits(stall_s=stall, rate_limit_s=rate_limit),
        folder=folder,
        run=run,
        metrics=metrics,
        bpf=not no_bpf,
    )
    with interruptible() as stop:
        watch(pids, options, say=lambda message: click.echo(message, err=True), stop=stop)
    return 0
