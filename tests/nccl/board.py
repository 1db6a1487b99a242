"""What is said of real NCCL that really hangs, release by release: `python -m tests.nccl.board --help`.

For each kind of hang: whether the collective is named, whether who is missing or parted is right, and how often an
innocent one was accused; and how much CPU time the memory of all ranks took to decode.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyhangtrace._native import NcclInspector
from tests.hangs.attach import look
from tests.hangs.judge import Outcome, judge
from tests.hangs.processes import NotReached, descendants
from tests.nccl.bench import Runtime, Transport, build_runtime
from tests.nccl.kinds import KINDS, Hang, Kind
from tests.nccl.wheels import ALWAYS, FURTHER, NoWheel, Wheel, library


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one look at one hang went. CPU times of all ranks together: `first_ms` with the layout to be found."""

    hang: Hang
    outcome: Outcome | None = None
    withheld: bool = False  # as is right where nothing proves who it is
    named: bool | None = None  # None: there is no collective to be named
    first_ms: float = 0.0
    again_ms: float = 0.0
    words: str = ""

    @property
    def cell(self) -> str:
        """In a table."""
        if self.outcome is None:
            return "not reached"
        if self.outcome is not Outcome.RIGHT:
            return {Outcome.ABSTAINED: "withheld", Outcome.INNOCENT: "INNOCENT"}.get(self.outcome, "WRONG")
        if self.withheld:
            return "nobody accused"
        return "right" if self.named is not False else "right, operation not named"


def try_hang(hang: Hang, runtime: Runtime) -> Row:
    """Starts it, decodes its memory twice, and looks at it once. Raises NoWheel."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with hang.running(runtime, Path(folder)) as stage:
                pids = [stage.members[role].pid for role in stage.members if "rank" in role]
                inspector = NcclInspector()
                first, again = (_decode_ms(inspector, pids) for _ in range(2))
                done = look(stage.members["rank0"].pid)
                report = json.loads(done.stdout)
                judgement = judge(report, stage.case.facts, stage.members, descendants)
        except NotReached as problem:
            return Row(hang=hang, words=str(problem))
        except subprocess.TimeoutExpired as problem:
            return Row(hang=hang, words=f"the look was not over after {problem.timeout:.0f} s")
    return Row(
        hang=hang,
        outcome=judgement.outcome,
        withheld=report["verdict"]["state"] == "unknown",
        named=_names(report, hang.kind),
        first_ms=first,
        again_ms=again,
        words="; ".join((report["verdict"]["summary"], *judgement.reasons)),
    )


def _decode_ms(inspector: NcclInspector, pids: Iterable[int]) -> float:
    began = time.process_time()
    for pid in pids:
        inspector.inspect(pid)
    return (time.process_time() - began) * 1e3


def _names(report: Mapping[str, Any], kind: Kind) -> bool | None:
    if not kind.operations:
        return None
    said = {each["op"] for each in report["collectives"]}
    said |= {wait["object"]["name"] for wait in report["waits"] if wait["kind"] == "p2p"}
    return kind.operations <= said


def table(rows: Sequence[Row]) -> str:
    """In Markdown: a line a release and transport, a column a kind of hang, then the times."""
    kinds = list(dict.fromkeys(row.hang.kind.name for row in rows))
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        place = (row.hang.wheel.name, row.hang.transport.value)
        groups.setdefault(place, {})[row.hang.kind.name] = row
    lines = [
        "| NCCL | over | "
        + " | ".join(kinds)
        + " | innocent accused | CPU time to decode all ranks (first) |"
    ]
    lines.append("|---" * (len(kinds) + 4) + "|")
    for (release, transport), found in groups.items():
        cells = [found[kind].cell if kind in found else "" for kind in kinds]
        innocent = sum(row.outcome is Outcome.INNOCENT for row in found.values())
        times = [row for row in found.values() if row.outcome is not None]
        most = max((row.again_ms for row in times), default=0.0)
        first = max((row.first_ms for row in times), default=0.0)
        cells += [str(innocent), f"{most:.0f} ms ({first:.0f} ms)"]
        lines.append(f"| {release} | {transport} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Prints a line for each hang as it is done, and the table in the end."""
    wheels = {wheel.name: wheel for wheel in (*ALWAYS, *FURTHER)}
    parser = argparse.ArgumentParser(prog="python -m tests.nccl.board", description=__doc__)
    parser.add_argument("--release", action="append", choices=[*wheels], help="default: all")
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS], help="default: all")
    parser.add_argument("--over", action="append", choices=[each.value for each in Transport])
    options = parser.parse_args()
    chosen = [wheels[name] for name in options.release or wheels]
    kinds = [kind for kind in KINDS if kind.name in (options.kind or [each.name for each in KINDS])]
    transports = [
        each for each in Transport if each.value in (options.over or [one.value for one in Transport])
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        runtime = build_runtime(Path(folder))
        for hang in _hangs(chosen, kinds, transports):
            row = try_hang(hang, runtime)
            rows.append(row)
            print(
                f"{hang.wheel.name:12} {hang.transport.value:14} {hang.kind.name:18} {row.cell:10} {row.words}",
                file=sys.stderr,
                flush=True,
            )
    print(table(rows))
    return int(any(row.outcome in (Outcome.WRONG, Outcome.INNOCENT) for row in rows))


def _hangs(wheels: Sequence[Wheel], kinds: Sequence[Kind], transports: Sequence[Transport]) -> Iterable[Hang]:
    for wheel in wheels:
        try:
            library(wheel)
        except NoWheel as problem:
            print(problem, file=sys.stderr)
            continue
        for transport in transports:
            for kind in kinds:
                yield Hang(kind, wheel, transport)


if __name__ == "__main__":
    sys.exit(main())
