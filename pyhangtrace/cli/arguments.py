"""Arguments that several commands have in common."""

from __future__ import annotations

import math

import click


def process_ids(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[int, ...]:
    """Process ids, also several in one argument joined by commas; anything else is a usage error."""
    pids = []
    for part in (part for value in values for part in value.split(",")):
        if not part.isascii() or not part.isdigit() or int(part) == 0:
            raise click.BadParameter(f"{part!r} is not a process id")
        pids.append(int(part))
    return tuple(pids)


def seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """No range of numbers keeps out what is no number."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("'nan' is no length of time")
    return value
