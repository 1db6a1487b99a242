"""What a look at a hung job takes, against what other tools take. Prints figures and targets; a busy machine misses."""

from __future__ import annotations

import pytest

from tests.benchmarks.stacks.board import board

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(1800)]


def test_looks_at_eight_ranks() -> None:
    lines = []
    print()
    for line in board():
        print(line, flush=True)
        lines.append(line)
    assert not any("MISS stops seen" in line or "MISS complete" in line for line in lines)
