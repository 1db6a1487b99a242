"""Python's primitives: some under the running interpreter, all under each one that is here where that is asked for."""

from __future__ import annotations

import sys

import pytest

from tests.primitives.python_rows import ROWS, PythonRow
from tests.primitives.python_table import rows_for
from tests.primitives.python_trial import try_row
from tests.versions.interpreters import VERSIONS, interpreter

pytestmark = [pytest.mark.hangs, pytest.mark.root]

#: One of each sort.
_QUICK = (
    "RLock",
    "Condition notified",
    "Barrier",
    "Queue.get",
    "Future.result",
    "future of an own pool",
    "finaliser",
    "import and RLock",
    "shutdown of threads",
    "multiprocessing.Lock",
    "idle thread pool",
)


@pytest.mark.parametrize("name", _QUICK)
def test_holders_and_cycles_are_as_the_program_made_them(name: str) -> None:
    [row] = [row for row in ROWS if row.name == name]
    assert try_row(row, sys.executable).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.identifier)
def test_every_primitive_under_every_python(row: PythonRow, version: str) -> None:
    path = interpreter(version)
    if row not in rows_for(version):
        pytest.skip("there is no such thing in this Python")
    assert try_row(row, path).problems == ()
