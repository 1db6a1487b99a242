"""``python -m tests.generated``: jobs made up from seeds against the tool, and how it did."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.generated.case import describe
from tests.generated.plan import draw
from tests.generated.seeds import seeds
from tests.generated.trial import Trial, try_plan
from tests.hangs.judge import Outcome
from tests.hangs.processes import NotReached


def save(trial: Trial, seed: int, folder: Path) -> None:
    """Program, evidence and report of one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"seed-{seed}"
    stem.with_suffix(".py").write_text(trial.program)
    if trial.evidence is not None:
        stem.with_suffix(".hang").write_bytes(trial.evidence)
    who = {role: [member.pid, member.tid] for role, member in trial.members.items()}
    reasons = list(trial.judgement.reasons)
    notes = {"summary": trial.summary, "members": who, "reasons": reasons, "report": trial.report}
    stem.with_suffix(".json").write_text(json.dumps(notes, indent=1))


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=seeds("1-20"), metavar="1-50")
    parser.add_argument("--no-torch", action="store_true", help="only jobs that need no PyTorch")
    parser.add_argument("--plans", action="store_true", help="only say what the seeds stand for")
    parser.add_argument("--python", default="{python}", metavar="PATH", help="interpreter of the jobs")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep program and evidence of failures")
    options = parser.parse_args()
    torch = not options.no_torch and importlib.util.find_spec("torch") is not None
    signal.signal(signal.SIGTERM, _leave)
    counts: Counter[str] = Counter()
    for seed in options.seeds:
        plan = draw(seed, torch=torch)
        if options.plans:
            print(f"{seed:>5} {describe(plan)}")
            continue
        try:
            trial = try_plan(plan, python=options.python)
        except NotReached as problem:
            counts["not reached"] += 1
            print(f"{seed:>5} not reached  {describe(plan)}\n      {problem}", flush=True)
            continue
        outcome = trial.judgement.outcome
        counts[outcome.value] += 1
        print(f"{seed:>5} {outcome.value:<9}  {trial.summary}  [{trial.wall_s:.2f} s]", flush=True)
        if outcome is not Outcome.RIGHT:
            print(f"      attached to {trial.attached_to}; {trial.verdict}")
            print(*(f"      - {reason}" for reason in trial.judgement.reasons), sep="\n", flush=True)
            if options.save:
                save(trial, seed, options.save)
    print("-" * 80)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return 1 if set(counts) - {Outcome.RIGHT.value, Outcome.ABSTAINED.value} else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
