"""``python -m tests.engines``: scenes against the tool, and how it did; ``--table`` as Markdown."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from tests.engines.board import HEAD, row
from tests.engines.scenes import SCENES
from tests.engines.trial import try_scene
from tests.engines.venvs import NoEngine
from tests.hangs.processes import NotReached


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="names that contain this")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="evidence, reports and logs go here")
    parser.add_argument("--table", action="store_true", help="print a table in Markdown")
    parser.add_argument("--text", action="store_true", help="print the reports too, and torch's analyser")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    bad = 0
    if options.table:
        print(*HEAD, sep="\n")
    for scene in SCENES:
        if options.only and not any(word in scene.name for word in options.only):
            continue
        try:
            result = try_scene(scene, keep=options.keep)
        except (NotReached, NoEngine, AssertionError, OSError, subprocess.TimeoutExpired) as problem:
            bad += 1
            print(f"{scene.name}: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            continue
        bad += bool(result.verdict.reasons)
        if options.table:
            print(
                row(scene.name, result.report, result.verdict, wall_s=result.wall_s, torch=result.torch),
                flush=True,
            )
        else:
            print(
                f"{scene.name:<26} {result.verdict.outcome.value:<17} up {result.started_s:5.0f} s"
                f"  report {result.wall_s:5.2f} s wall {result.cpu_s:5.2f} s cpu",
                flush=True,
            )
            for reason in result.verdict.reasons:
                print(f"    {reason}", flush=True)
        if options.text:
            print(result.text, "torch's analyser:", result.torch, sep="\n", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
