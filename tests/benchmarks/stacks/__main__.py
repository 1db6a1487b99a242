"""``python -m tests.benchmarks.stacks [RUNS [PEER_RUNS]]``: the figures of looks at a hung job."""

from __future__ import annotations

import sys

from tests.benchmarks.stacks.board import board


def main(arguments: list[str]) -> None:
    runs, peer_runs = (int(word) for word in (*arguments, *("20", "3")[len(arguments) :]))
    print(
        "minimum (median) over all ranks; peers one rank after the other; stop: longest of a main thread",
        flush=True,
    )
    for line in board(runs=runs, peer_runs=peer_runs):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
