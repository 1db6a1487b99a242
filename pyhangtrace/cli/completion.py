"""`hangtrace completion`."""

from __future__ import annotations

import click


@click.command(name="completion", short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Prints the completion script of SHELL. For bash: source <(hangtrace completion bash)"""
    from click.shell_completion import get_completion_class

    from pyhangtrace.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(cli, {}, "hangtrace", "_HANGTRACE_COMPLETE").source())
