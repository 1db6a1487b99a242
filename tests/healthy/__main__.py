"""``python -m tests.healthy --looks 200``: what looks at healthy programs say; none may be called hung."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.hangs.processes import NotReached
from tests.healthy.scenes import SCENES
from tests.healthy.trial import Tally, try_scene

STATES = ("running", "idle", "slow", "busy", "unknown", "ended", "hung")


def show(name: str, tally: Tally) -> None:
    counts = "".join(f"{tally.states[state] or '':>9}" for state in STATES)
    print(f"{name:<24}{tally.looks:>6}{counts}{tally.gone or '':>6}", flush=True)
    for defect in tally.defects:
        print(f"    {defect}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.healthy", description=__doc__)
    parser.add_argument("--looks", type=int, default=200, help="in all, at least; shared out evenly")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="names that contain this")
    parser.add_argument(
        "--first", type=int, default=0, metavar="N", help="number of the first look (chooses the member)"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="save the evidence of looks that went wrong"
    )
    options = parser.parse_args()
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    scenes = [one for one in SCENES if not options.only or any(word in one.name for word in options.only)]
    skipped = {scene.name: why for scene in scenes if (why := scene.needs()) is not None}
    scenes = [one for one in scenes if one.name not in skipped]
    print(f"{'':<24}{'looks':>6}" + "".join(f"{state:>9}" for state in STATES) + f"{'gone':>6}")
    total, defects = Tally(), 0
    for scene in scenes:
        try:
            tally = try_scene(
                scene, looks=-(-options.looks // len(scenes)), first=options.first, keep=options.keep
            )
        except NotReached as problem:
            print(f"{scene.name:<24}not staged: {problem}", flush=True)
            defects += 1
            continue
        show(scene.name, tally)
        total.states += tally.states
        total.gone += tally.gone
        defects += len(tally.defects)
    show("all", total)
    for name, why in skipped.items():
        print(f"{name:<24}skipped: {why}")
    print(f"{defects} wrong")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
