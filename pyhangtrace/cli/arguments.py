"""Arguments that several commands have in common."""

from __future__ import annotations

import math
import re

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


_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+) ?(?P<unit>[a-z]*)", re.ASCII)
_UNITS_S = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(
    context: click.Context | None, parameter: click.Parameter | None, value: str | None
) -> float | None:
    """A length of time in seconds: `90`, `90s`, `1.5m`, `2h`; anything else is a usage error."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip())
    if found is None or found["unit"] not in _UNITS_S:
        raise click.BadParameter(
            f"{value!r} is no length of time: write 90, 90s, 1.5m or 2h", ctx=context, param=parameter
        )
    return float(found["number"]) * _UNITS_S[found["unit"]]
