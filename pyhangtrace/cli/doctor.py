"""`hangtrace doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyhangtrace.model.kinds import SourceState

if TYPE_CHECKING:
    from pyhangtrace.model.evidence import SourceStatus


@click.command(name="doctor", short_help="Say what can be seen here, and how to see the rest.")
@click.option("--json", "as_json", is_flag=True, help="Print the answers as JSON.")
def command(*, as_json: bool) -> None:
    """Tries every source of evidence on this machine, as this user, and says what works and how to get the rest."""
    from pyhangtrace.collect.abilities import abilities

    answers = abilities()
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(answers), indent=2).decode())
        return
    width = max(len(answer.source) for answer in answers)
    for answer in answers:
        click.echo(_line(answer, width))
        if answer.fix and answer.state is not SourceState.USED:
            click.echo(" " * (width + 8) + f"fix: {answer.fix}")


def _line(answer: SourceStatus, width: int) -> str:
    mark = "yes" if answer.state is SourceState.USED else "no"
    color = "green" if answer.state is SourceState.USED else "yellow"
    return f"{answer.source.ljust(width)}  {click.style(mark.ljust(4), fg=color)}  {answer.reason}".rstrip()
