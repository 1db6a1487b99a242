"""``python -m tests.primitives --python VERSION``: Python's primitives, with known holders and in known cycles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.hangs.processes import NotReached
from tests.primitives.python_rows import ROWS, PythonRow
from tests.primitives.python_trial import PythonResult, try_row
from tests.versions.interpreters import VERSIONS, find, version_of

_HEAD = ("primitive", "object named", "holder right", "cycle proven", "innocents accused")


def rows_for(version: str) -> list[PythonRow]:
    """Those that there are under a version as in `VERSIONS`."""
    return [row for row in ROWS if row.free_threaded or not version.endswith("t")]


def _line(cells: tuple[object, ...]) -> str:
    first, *others = cells
    return f"{first!s:<36}" + "".join(f"{cell!s:<15}" for cell in others)


def _cells(result: PythonResult) -> tuple[object, ...]:
    return result.row.identifier, result.object, result.holder, result.cycle, result.innocents


def _try_all(rows: list[PythonRow], interpreter: Path) -> tuple[int, int]:
    """Prints a line a row. How many are right, and how many are not."""
    right = wrong = 0
    for row in rows:
        try:
            result = try_row(row, str(interpreter))
        except NotReached as problem:
            wrong += 1
            print(f"{row.identifier:<36}not reached: {problem}", flush=True)
            continue
        right += result.right
        wrong += not result.right
        print(_line(_cells(result)), flush=True)
        for problem in result.problems:
            print(f"    {problem}", flush=True)
    return right, wrong


def run(names: Sequence[str], only: Sequence[str]) -> int:
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
        print(_line((f"Python {version}", *_HEAD[1:])))
        rows = [row for row in rows_for(version) if not only or any(word in row.name for word in only)]
        right, not_right = _try_all(rows, path)
        print(f"{right} rows right, {not_right} not")
        wrong += not_right
    return wrong
