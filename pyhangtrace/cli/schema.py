"""`hangtrace schema`."""

from __future__ import annotations

import json

import click

from pyhangtrace.model.codec import report_schema


@click.command(name="schema", short_help="Print the JSON Schema of the report.")
def command() -> None:
    """Prints the JSON Schema of what `--json` prints, generated from the program's own model."""
    click.echo(json.dumps(report_schema(), indent=2))
