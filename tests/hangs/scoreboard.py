"""``python -m tests.hangs.scoreboard``: every case against the tool, and how it did."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import signal
import sys
from collections import Counter

from tests.hangs.attach import Result, try_case
from tests.hangs.cases import CASES
from tests.hangs.facts import Case, lacking
from tests.hangs.judge import Outcome
from tests.hangs.processes import NotReached
from tests.hangs.table import table

WIDTH = 26


def choose(only: list[str], *, fast: bool) -> list[Case]:
    """Cases whose kind contains one of the words; all when there are none."""
    has_torch = importlib.util.find_spec("torch") is not None
    chosen = []
    for case in CASES:
        if only and not any(word in case.kind for word in only):
            continue
        if case.slow and fast:
            continue
        if case.torch and not has_torch:
            print(f"{case.kind:<{WIDTH}} skipped: needs PyTorch", file=sys.stderr)
            continue
        if missing := lacking(case):
            print(f"{case.kind:<{WIDTH}} skipped: needs {missing}", file=sys.stderr)
            continue
        chosen.append(case)
    return chosen


def score(case: Case, *, turn: int) -> Result | None:
    """The result of one case, or None when its programs did not come to hang."""
    try:
        return try_case(case, turn=turn)
    except NotReached as problem:
        print(f"not reached: {problem}", file=sys.stderr)
        return None


def show(result: Result) -> None:
    outcome = result.judgement.outcome.value
    print(
        f"{result.kind:<{WIDTH}} {result.attached_to:<14} {outcome:<17}"
        f"{result.wall_s:6.2f} s wall {result.cpu_s:6.2f} s cpu",
        flush=True,
    )
    for reason in result.judgement.reasons:
        print(f"    {reason}", flush=True)


def as_json(result: Result, *, with_report: bool) -> dict[str, object]:
    fields = dataclasses.asdict(result)
    if not with_report:
        del fields["report"]
    return fields


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hangs.scoreboard", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="KIND", help="kinds that contain this")
    parser.add_argument("--fast", action="store_true", help="leave out the long tail")
    parser.add_argument("--turn", type=int, default=0, help="which member to attach to (counts round)")
    parser.add_argument("--all-turns", action="store_true", help="attach to each member a case names")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of the table")
    parser.add_argument("--reports", action="store_true", help="with --json: the whole reports too")
    parser.add_argument(
        "--table", action="store_true", help="print a table of what is said of the group instead"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    results, not_reached = [], 0
    for number, case in enumerate(choose(options.only, fast=options.fast)):
        turns = range(len(case.attach)) if options.all_turns else (options.turn + number,)
        for turn in turns:
            result = score(case, turn=turn)
            if result is None:
                not_reached += 1
                continue
            results.append(result)
            if not options.json and not options.table:
                show(result)
    if options.json:
        json.dump([as_json(one, with_report=options.reports) for one in results], sys.stdout, indent=1)
    elif options.table:
        print(*table(results), sep="\n")
    else:
        counts = Counter(result.judgement.outcome for result in results)
        print("-" * 80)
        print(
            ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome),
            f"of {len(results)}",
            end="",
        )
        print(f"; {not_reached} did not come to hang" if not_reached else "")
        if results:
            walls = sorted(result.wall_s for result in results)
            print(f"wall: median {walls[len(walls) // 2]:.2f} s, longest {walls[-1]:.2f} s")
    bad = not_reached or any(one.judgement.outcome is not Outcome.RIGHT for one in results)
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
