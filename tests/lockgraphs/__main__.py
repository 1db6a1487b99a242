"""``python -m tests.lockgraphs``: programs with known lock graphs against the tool, and how it did."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.generated.seeds import seeds
from tests.hangs.judge import Outcome
from tests.lockgraphs.board import tables
from tests.lockgraphs.kinds import Language
from tests.lockgraphs.shapes import draw
from tests.lockgraphs.trial import Trial, build, try_seed


def save(trial: Trial, folder: Path) -> None:
    """Plan, evidence and report of one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"seed-{trial.plan.seed}"
    stem.with_suffix(".plan").write_text(trial.plan.text())
    stem.with_suffix(".hang").write_bytes(trial.evidence)
    notes = {
        "plan": trial.plan.describe(),
        "members": {name: [member.pid, member.tid] for name, member in trial.members.items()},
        "reasons": trial.compared.judgement.reasons,
        "report": trial.report,
    }
    stem.with_suffix(".json").write_text(json.dumps(notes, indent=1))


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _trials(
    wanted: Sequence[int], lockplay: Path, *, python: str, jobs: int
) -> Iterator[tuple[int, Trial | str]]:
    if jobs == 1:
        for seed in wanted:
            yield seed, try_seed(seed, lockplay, python)
        return
    # Processes that are started anew: a look forks a helper, which must not inherit what other threads hold.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(try_seed, seed, lockplay, python) for seed in wanted]
        try:
            for seed, one in zip(wanted, running, strict=True):
                yield seed, one.result()
        finally:
            pool.shutdown(cancel_futures=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lockgraphs", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=seeds("1-20"), metavar="1-50")
    parser.add_argument("--jobs", type=int, default=2, help="plans at a time")
    parser.add_argument("--plans", action="store_true", help="only say what the seeds stand for")
    parser.add_argument(
        "--only", type=Language, choices=tuple(Language), metavar="LANGUAGE", help="C++ or Python"
    )
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="interpreter of the programs"
    )
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep plan and evidence of failures")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    wanted = [seed for seed in options.seeds if options.only in (None, draw(seed).language)]
    if options.plans:
        print(*(f"{seed:>5} {draw(seed).describe()}" for seed in wanted), sep="\n")
        return 0
    trials: list[Trial] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="lockgraphs-") as folder:
        lockplay = build(Path(folder))
        for seed, trial in _trials(wanted, lockplay, python=options.python, jobs=options.jobs):
            if isinstance(trial, str):
                failed = True
                print(f"{seed:>5} not reached  {draw(seed).describe()}\n      {trial}", flush=True)
                continue
            trials.append(trial)
            judged = trial.compared.judgement
            failed = failed or judged.outcome not in (Outcome.RIGHT, Outcome.ABSTAINED)
            print(
                f"{seed:>5} {judged.outcome.value:<9}  {trial.plan.describe()}  [{trial.wall_s:.2f} s]",
                flush=True,
            )
            if judged.outcome is not Outcome.RIGHT:
                print(f"      {trial.verdict}")
                print(*(f"      - {reason}" for reason in judged.reasons), sep="\n", flush=True)
                if options.save:
                    save(trial, options.save)
    print("-" * 100, tables(trials), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
