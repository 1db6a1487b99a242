"""What was said of each scene as a table of Markdown, whether it is right, and what torch's analyser says. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.engines.verdicts import Verdict

HEAD = (
    "| engine, hang | state | symptom | cause | named | phase | roles | innocents | report | torch's analyser |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
_WRONG = " **✗**"


def row(
    name: str, report: Mapping[str, Any], judged: Verdict, *, wall_s: float | None, torch: str | None
) -> str:
    """One line. `wall_s`: seconds that the report took; `torch`: all that its analyser printed."""
    said = report["verdict"]
    roles = {process["pid"]: process["role"] for process in report["processes"]}
    named = ", ".join(dict.fromkeys(_who(one, roles) for one in said["culprits"])) or "nobody"
    phase = (report["workload"]["phase"] or {}).get("name")
    cells = (
        f"`{name}`",
        _cell(said["state"], judged.state),
        _cell(said["symptom"], judged.symptom),
        _cell(said["cause"], judged.cause),
        _cell(named, judged.culprit),
        _cell(phase, judged.phase),
        "right" if judged.roles else "**✗**",
        f"1{_WRONG}" if judged.accused else "0",
        f"{wall_s:.1f} s" if wall_s is not None else "–",
        in_short(torch) if torch is not None else "–",
    )
    return f"| {' | '.join(cells)} |"


def in_short(torch: str) -> str:
    """What torch's analyser accuses somebody of, in a few words."""
    if torch.startswith("no dump"):
        return "no dump"
    missing = re.findall(r"missing ranks: \{([^}]*)\}", torch)
    culprits = re.findall(r"Culprit rank (\d+)", torch)
    said = [f"rank {ranks} missing" for ranks in missing] + [f"culprit rank {rank}" for rank in culprits]
    if not said and "Traceback" in torch:
        return "crashes"
    return "; ".join(dict.fromkeys(said)) or "nothing"


def _cell(value: object, right: bool) -> str:
    return f"{value or '–'}{'' if right else _WRONG}"


def _who(one: Mapping[str, Any], roles: Mapping[int, str]) -> str:
    return f"rank {one['rank']}" if one["rank"] is not None else str(roles.get(one["pid"], "gone"))
