"""``python -m tests.primitives --python VERSION``: Python's primitives, with known holders and in known cycles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.primitives.outcome import Result, Table
from tests.primitives.python_rows import ROWS, PythonRow
from tests.primitives.python_trial import try_row
from tests.versions.interpreters import VERSIONS, find, version_of


def rows_for(version: str) -> list[PythonRow]:
    """Those that there are under a version as in `VERSIONS`."""
    free_threaded = version.endswith("t")
    major, minor = version.rstrip("t").split(".")[:2]
    return [
        row
        for row in ROWS
        if (row.free_threaded or not free_threaded) and row.since <= (int(major), int(minor))
    ]


def run(names: Sequence[str], only: Sequence[str], *, markdown: bool = False) -> int:
    """Prints the tables of these versions or interpreters, of rows whose name contains one of the words. How many
    rows are not right.
    """
    wrong = 0
    for name in names:
        path = find(name) if name in VERSIONS else Path(name)
        version = version_of(path) if path is not None else None
        if path is None or version is None:
            print(f"Python {name}: not here")
            continue
        wrong += _table(version, str(path), markdown=markdown).print(
            row for row in rows_for(version) if not only or any(word in row.name for word in only)
        )
    return wrong


def _table(version: str, interpreter: str, *, markdown: bool) -> Table[PythonRow]:
    def attempt(row: PythonRow) -> Result:
        return try_row(row, interpreter)

    return Table(f"Python {version}", 36, lambda row: row.identifier, attempt, markdown)
