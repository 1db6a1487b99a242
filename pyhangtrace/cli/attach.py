"""`hangtrace attach`."""

from __future__ import annotations

import click

from pyhangtrace.cli.arguments import process_ids, seconds
from pyhangtrace.cli.output import check_outputs, deliver, exit_code, output_option
from pyhangtrace.cli.recorders import check_folder, fr_dump_option, write_dumps


@click.command(name="attach", short_help="Say what a silent job waits for.")
@click.argument("pids", metavar="PID...", nargs=-1, callback=process_ids)
@click.option(
    "-p", "--pid", "more", multiple=True, callback=process_ids, help="The same as PID, for habit's sake."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@output_option
@fr_dump_option
@click.option(
    "-d",
    "--duration",
    metavar="SECONDS",
    type=click.FloatRange(min=0.0, max=600.0),
    callback=seconds,
    help="Look for so long. Default: 0.1 s, and up to 3 s while something still moves.",
)
@click.option("--no-bpf", is_flag=True, help="Use no eBPF: no probes, registers or socket timeouts.")
@click.option(
    "--allow-stop",
    is_flag=True,
    help="Stop a thread for a moment where nothing else gives its stack: some microseconds on a free CPU, milliseconds "
    "where it must wait for one, 50 ms at most for all of a process. Never one that would notice: in "
    "epoll_wait, semop, sigtimedwait, io_uring_enter and on sockets a stop can end the call with EINTR.",
)
@click.option(
    "--lines",
    is_flag=True,
    help="Show file and line of native frames, and inlined functions, where there is debug information.",
)
@click.option(
    "--ras",
    type=click.Choice(["never", "safe", "ask", "force"]),
    default="safe",
    help="Ask NCCL's RAS service, which knows the ranks of all hosts: where nothing speaks against it (safe), also "
    "where only nothing is known against it (ask), or in any case: in some releases a query can end the job.",
)
@click.option("--live", is_flag=True, help="Stay, and show each second what every rank does.")
@click.option(
    "--plain",
    is_flag=True,
    help="With --live: a line of text each second instead of a screen; --json: a JSON object each.",
)
@click.option("--exit-code", "hang_is_failure", is_flag=True, help="Return 1 if a hang was found.")
def command(
    *,
    pids: tuple[int, ...],
    more: tuple[int, ...],
    as_json: bool,
    outputs: tuple[str, ...],
    fr_dump: str | None,
    duration: float | None,
    no_bpf: bool,
    allow_stop: bool,
    lines: bool,
    ras: str,
    live: bool,
    plain: bool,
    hang_is_failure: bool,
) -> int:
    """Finds the job that PID belongs to (any rank, launcher or engine process of it), looks twice, and says
    which collective or lock each rank blocks on, which rank is the culprit and why.

    Nobody is stopped (without --allow-stop), signalled or written to.
    """
    wanted = tuple(dict.fromkeys((*pids, *more)))
    if not wanted:
        raise click.UsageError("Missing argument 'PID...'.")
    if live:
        refused = {"-o": outputs, "-d": duration is not None, "--fr-dump": fr_dump}
        refused |= {"--allow-stop": allow_stop, "--lines": lines, "--exit-code": hang_is_failure}
        for option, given in refused.items():
            if given:
                raise click.UsageError(f"{option} does not go with --live.")
        from pyhangtrace.cli.live import follow

        return follow(wanted, plain=plain, as_json=as_json, bpf=not no_bpf)
    if plain:
        raise click.UsageError("--plain goes with --live.")
    files = check_outputs(outputs)
    folder = check_folder(fr_dump)
    from pyhangtrace.collect.ras_gate import RasMode
    from pyhangtrace.engine import AttachOptions, attach

    result = attach(
        wanted,
        AttachOptions(
            window_s=duration,
            bpf=not no_bpf,
            allow_stop=allow_stop,
            lines=lines,
            ras=RasMode(ras),
            recorders=folder is not None,
        ),
        progress=lambda message: click.echo(message, err=True),
    )
    deliver(result, files, as_json=as_json)
    write_dumps(result, folder)
    return exit_code(result, hang_is_failure=hang_is_failure)
