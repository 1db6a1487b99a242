"""What `record` costs, against other tracers. Prints figures and targets."""

from __future__ import annotations

import pytest

from tests.benchmarks.record.board import board

pytestmark = [pytest.mark.benchmark, pytest.mark.bpf, pytest.mark.root, pytest.mark.timeout(1800)]


def test_what_record_costs() -> None:
    lines = []
    print()
    for line in board():
        print(line, flush=True)
        lines.append(line)
    # Time to get ready, and what others take, depend on who else is on the machine.
    own = [line for line in lines if ", record" in line or line.startswith("a bystander")]
    assert len(own) >= 7
    assert not [line for line in own if "MISS" in line]
