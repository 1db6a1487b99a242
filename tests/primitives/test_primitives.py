"""Rows of the table as tests: one of each kind of primitive in the normal suite, the variants with the slow ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.primitives.build import Unavailable
from tests.primitives.rows import ROWS, Row
from tests.primitives.trial import try_row

_NORMAL = frozenset(
    {
        "C: mutex",
        "C: robust",
        "C: pi",
        "C: shared mutex",
        "C: shared pi",
        "C: timedlock backoff, ring2",
        "C: mutex, left",
        "C: wrlock",
        "C: condition",
        "C: condition mutex",
        "C: condition inside",
        "C: once",
        "C: mutex and join",
        "C: spin",
        "C: mtx_timedlock",
        "C++: condition_variable",
        "C++: async and mutex",
        "C++: counting_semaphore",
        "C++: static",
        "C++: jthread",
        "musl: recursive",
        "musl: shared robust",
        "musl: join",
        "libgomp: barrier",
        "libomp: barrier",
    }
)


def _parameters() -> list[object]:
    marks = [pytest.mark.hangs, pytest.mark.root, pytest.mark.timeout(180)]
    return [
        pytest.param(
            row,
            id=row.identifier,
            marks=[*marks, *(() if row.identifier in _NORMAL else (pytest.mark.slow,))],
        )
        for row in ROWS
    ]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs are built, once a run."""
    return tmp_path_factory.mktemp("primitives")


@pytest.mark.parametrize("row", _parameters())
def test_what_holds_of_a_primitive(row: Row, programs: Path) -> None:
    try:
        result = try_row(row, programs)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert result.right, result.problems
