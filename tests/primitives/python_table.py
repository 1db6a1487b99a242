"""``python -m tests.primitives.python_table``: Python's primitives, each with a known holder and in a known cycle."""

from __future__ import annotations

import argparse
import signal
import sys
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


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.primitives.python_table", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="rows that contain this")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="VERSION",
        help=f"one of {' '.join(VERSIONS)}, or the path of an interpreter; without it all that are here",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    wrong = 0
    for name in options.python or VERSIONS:
        path = find(name) if name in VERSIONS else Path(name)
        version = version_of(path) if path is not None else None
        if path is None or version is None:
            print(f"Python {name}: not here")
            continue
        print(_line((f"Python {version}", *_HEAD[1:])))
        rows = [
            row for row in rows_for(version) if not options.only or any(w in row.name for w in options.only)
        ]
        right, not_right = _try_all(rows, path)
        print(f"{right} rows right, {not_right} not")
        wrong += not_right
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
