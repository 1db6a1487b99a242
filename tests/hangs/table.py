"""What was said of each hang of the group, as a table: the operation, the ranks, and innocents.

Pure: works on the reports of the scoreboard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.hangs.attach import Result
from tests.hangs.judge import Outcome

HEAD = (
    "| kind | operation as it is named | ranks | innocents |",
    "|---|---|---|---|",
)
_RIGHT = {Outcome.RIGHT: "right", Outcome.ABSTAINED: "withheld in part"}
_GROUP_KINDS = ("collective", "p2p", "rendezvous")


def table(results: Iterable[Result]) -> list[str]:
    """Lines of Markdown, one a result."""
    return [*HEAD, *map(_row, results)]


def _row(result: Result) -> str:
    innocents = sum(reason.startswith("names ") for reason in result.judgement.reasons)
    said = _operation(result.report or {})
    ranks = _RIGHT.get(result.judgement.outcome, "wrong")
    return f"| `{result.kind}` | {said or '–'} | {ranks} | {innocents} |"


def _operation(report: Mapping[str, Any]) -> str:
    lacking = [one for one in report.get("collectives", ()) if one["missing"] or one["mismatched"]]
    told = lacking or report.get("collectives", ())
    if told:
        return "; ".join(dict.fromkeys(map(_collective, told)))
    verdict = report.get("verdict", {})
    used = {*verdict.get("chain", ()), *verdict.get("cycle", ())}
    used |= {one["wait"] for one in (*verdict.get("culprits", ()), *verdict.get("victims", ()))}
    waits = [wait for wait in report.get("waits", ()) if wait["id"] in used and wait["kind"] in _GROUP_KINDS]
    return "; ".join(dict.fromkeys(map(_wait, waits)))


def _collective(one: Mapping[str, Any]) -> str:
    number = f" #{one['seq']}" if one["seq"] is not None else ""
    return f"{one['op']}{number} of {one['group']}"


def _wait(wait: Mapping[str, Any]) -> str:
    thing = wait["object"]
    if thing["path"] is not None:
        return f"{thing['name']}: {thing['path']}"
    peer = f", rank {thing['peer_rank']}" if thing["peer_rank"] is not None else ""
    return f"{thing['name']}{peer}"
