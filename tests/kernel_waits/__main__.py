"""``python -m tests.kernel_waits``: a table of all objects of the kernel, and what a look says of a wait for them."""

from __future__ import annotations

import argparse
import json
import sys

from tests.hangs.processes import NotReached
from tests.kernel_waits.judge import COLUMNS
from tests.kernel_waits.scenes import SCENES
from tests.kernel_waits.trial import Trial, attempt

WIDTH = 26


def show(trial: Trial, *, wordy: bool) -> None:
    bad = {defect.column for defect in trial.defects}
    print(f"{trial.scene.name:<{WIDTH}}" + "".join(f"{'–' if one in bad else 'yes':<10}" for one in COLUMNS))
    for defect in trial.defects:
        print(f"    {defect.column}: {defect.text}")
    if trial.scene.limit is not None:
        print(f"    known limit: {trial.scene.limit}")
    if wordy and trial.report is not None:
        print(f"    {trial.report['verdict']['state']}: {trial.report['verdict']['summary']}")
        for wait in trial.report["waits"]:
            print(f"    {json.dumps(wait)}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernel_waits", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="names that contain this")
    parser.add_argument("--waits", action="store_true", help="print the waits of each report, too")
    options = parser.parse_args()
    print(f"{'':<{WIDTH}}" + "".join(f"{one:<10}" for one in COLUMNS))
    right = known = total = 0
    for scene in SCENES:
        if options.only and not any(word in scene.name for word in options.only):
            continue
        if (why := scene.needs()) is not None:
            print(f"{scene.name:<{WIDTH}}skipped: {why}")
            continue
        total += 1
        try:
            trial = attempt(scene)
        except NotReached as problem:
            print(f"{scene.name:<{WIDTH}}not staged: {problem}")
            continue
        show(trial, wordy=options.waits)
        right += not trial.defects
        known += bool(trial.defects) and scene.limit is not None
    print(f"{right} of {total} right, {known} wrong for a known reason")
    return 0 if right + known == total else 1


if __name__ == "__main__":
    sys.exit(main())
