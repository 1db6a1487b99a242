"""`hangtrace demo`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from pyhangtrace.cli.output import check_outputs, deliver, exit_code, output_option


def _complete_kind(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from pyhangtrace import demo

    return [
        CompletionItem(entry.name, help=entry.summary)
        for entry in demo.kinds()
        if entry.name.startswith(incomplete)
    ]


@click.command(name="demo", short_help="Start a small job that really hangs, and attach to it.")
@click.argument("kind", required=False, shell_complete=_complete_kind)
@click.option("--list", "list_kinds", is_flag=True, help="List the kinds of hang to choose from.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@output_option
@click.option("--no-bpf", is_flag=True, help="Attach no probes.")
def command(
    *, kind: str | None, list_kinds: bool, as_json: bool, outputs: tuple[str, ...], no_bpf: bool
) -> int:
    """Starts worker processes that really hang (no GPU and no torch needed), runs `hangtrace attach` on one of
    them and ends them again."""
    from pyhangtrace import demo

    kinds = {entry.name: entry.summary for entry in demo.kinds()}
    if list_kinds:
        width = max(map(len, kinds))
        for name, summary in kinds.items():
            click.echo(f"{name.ljust(width)}  {summary}")
        return 0
    chosen = kind or next(iter(kinds))
    if chosen not in kinds:
        raise click.UsageError(f"no kind {chosen!r}; there are: {', '.join(kinds)}")
    files = check_outputs(outputs)
    from pyhangtrace.engine import AttachOptions, attach

    click.echo(f"starting: {kinds[chosen]}", err=True)
    with demo.start(chosen) as job:
        click.echo(f"$ hangtrace attach {job.attach_pid}", err=True)
        result = attach(
            (job.attach_pid,),
            AttachOptions(bpf=not no_bpf),
            progress=lambda message: click.echo(message, err=True),
        )
    deliver(result, files, as_json=as_json)
    return exit_code(result, hang_is_failure=False)
