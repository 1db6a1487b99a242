"""`hangtrace schema`."""

from __future__ import annotations

import click


@click.command(name="schema", short_help="Print the JSON Schema of the report.")
def command() -> None:
    """Prints the JSON Schema of what `--json` prints, generated from the program's own model."""
    import json

    from pyhangtrace.model.codec import report_schema

    click.echo(json.dumps(report_schema(), indent=2))
