"""``python -m tests.primitives``: the table of primitives, each with a known holder and in a known cycle."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.hangs.processes import NotReached
from tests.primitives import python_table
from tests.primitives.build import Unavailable
from tests.primitives.rows import ROWS, Row
from tests.primitives.trial import Result, try_row
from tests.versions.interpreters import VERSIONS

_HEAD = ("primitive", "object named", "holder right", "cycle proven", "innocents accused")


def _choose(words: list[str]) -> list[Row]:
    return [row for row in ROWS if not words or any(word in row.identifier for word in words)]


def _line(cells: tuple[object, ...]) -> str:
    first, *others = cells
    return f"{first!s:<40}" + "".join(f"{cell!s:<15}" for cell in others)


def _cells(result: Result) -> tuple[object, ...]:
    proof = result.row.proof if result.cycle == "yes" and result.row.proof != "proven" else result.cycle
    return result.row.identifier, result.object, result.holder, proof, result.innocents


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.primitives", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="rows that contain this")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="VERSION",
        help=f"the table of Python instead: all, one of {' '.join(VERSIONS)}, or the path of an interpreter",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    if options.python:
        versions = VERSIONS if "all" in options.python else options.python
        return 1 if python_table.run(versions, options.only) else 0
    wrong = right = 0
    print(_line(_HEAD))
    with tempfile.TemporaryDirectory(prefix="primitives-") as folder:
        for row in _choose(options.only):
            try:
                result = try_row(row, Path(folder))
            except Unavailable as problem:
                print(f"{row.identifier:<40}skipped: {problem}", flush=True)
                continue
            except NotReached as problem:
                wrong += 1
                print(f"{row.identifier:<40}not reached: {problem}", flush=True)
                continue
            right += result.right
            wrong += not result.right
            print(_line(_cells(result)), flush=True)
            for problem in result.problems:
                print(f"    {problem}", flush=True)
    print(f"{right} rows right, {wrong} not")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
