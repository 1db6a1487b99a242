"""``python -m tests.primitives``: the table of primitives, each with a known holder and in a known cycle."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.primitives import python_table
from tests.primitives.outcome import Table
from tests.primitives.rows import ROWS, Row
from tests.primitives.trial import try_row
from tests.versions.interpreters import VERSIONS


def _choose(words: list[str]) -> list[Row]:
    return [row for row in ROWS if not words or any(word in row.identifier for word in words)]


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
    parser.add_argument("--markdown", action="store_true", help="print the table as one of a document")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    if options.python:
        versions = VERSIONS if "all" in options.python else options.python
        return 1 if python_table.run(versions, options.only, markdown=options.markdown) else 0
    with tempfile.TemporaryDirectory(prefix="primitives-") as folder:
        table = Table(
            "primitive",
            40,
            lambda row: row.identifier,
            lambda row: try_row(row, Path(folder)),
            options.markdown,
        )
        return 1 if table.print(_choose(options.only)) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
