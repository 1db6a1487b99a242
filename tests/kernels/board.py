"""What the guests left, as a table: a row for each kernel."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROWS = ("kernel_waits", "hangs")
# Of sources that every guest lacks, or that were taken from it.
EXPECTED = frozenset({"nvml", "ebpf"})


@dataclass(frozen=True, slots=True)
class Row:
    """One scene or hang on one kernel."""

    name: str
    outcome: str
    wall_s: float | None = None
    reasons: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Sources that gave nothing, with the reason."""


def results(path: Path) -> list[Row]:
    """The rows of a file that `tests.kernels.work` has written; none if it came to none."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        one = json.loads(line)
        if one["part"] not in ROWS:
            continue
        cost = one.get("cost") or {}
        missing = {
            source["source"]: source["reason"]
            for source in one.get("coverage", ())
            if source["state"] in ("absent", "refused", "failed") and source["source"] not in EXPECTED
        }
        rows.append(
            Row(one["name"], one["outcome"], cost.get("wall_s"), tuple(one.get("reasons", ())), missing)
        )
    return rows


def table(found: Mapping[str, Sequence[Row]]) -> list[str]:
    """Lines of Markdown: the table, then what was not right, then what each kernel lacks."""
    lines = ["| kernel | right | wrong | skipped | median look |", "|---|---|---|---|---|"]
    notes = []
    for kernel, rows in found.items():
        counts = Counter(row.outcome for row in rows)
        wrong = len(rows) - counts["right"] - counts["skipped"] - counts["known limit"]
        walls = sorted(row.wall_s for row in rows if row.wall_s is not None)
        look = f"{walls[len(walls) // 2]:.2f} s" if walls else "–"
        lines.append(f"| {kernel} | {counts['right']} | {wrong} | {counts['skipped']} | {look} |")
        for row in rows:
            if row.outcome not in ("right", "known limit"):
                notes.append(f"{kernel} {row.name}: {row.outcome}: {'; '.join(row.reasons)}")
        lacks = sorted({f"{source}: {why}" for row in rows for source, why in row.missing.items()})
        notes += [f"{kernel} could not see {lack}" for lack in lacks]
    return [*lines, "", *notes]
