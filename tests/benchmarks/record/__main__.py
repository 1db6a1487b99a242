"""`python -m tests.benchmarks.record` prints the figures."""

from __future__ import annotations

from tests.benchmarks.record.board import board

for line in board():
    print(line, flush=True)
