"""Compare what a report says of single waits with what is true. Pure: works on the JSON object and members' ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.hangs.processes import Member
from tests.kernel_waits.facts import Expected, Scene

NOBODY = re.compile("no owner recorded")
ACCUSING = ("hung", "busy", "slow")

#: The columns of the table.
OBJECT, OTHER, SINCE, TIMED, VERDICT, INNOCENT = "object", "holder", "since", "timed", "verdict", "innocents"
COLUMNS = (OBJECT, OTHER, SINCE, TIMED, VERDICT, INNOCENT)


@dataclass(frozen=True, slots=True)
class Defect:
    """What does not hold, under one of the columns."""

    column: str
    text: str


def judge(report: Mapping[str, Any], scene: Scene, members: Mapping[str, Member]) -> list[Defect]:
    """All that does not hold; [] if the report is right."""
    defects = []
    for role, expected in scene.waits.items():
        wait = _wait_of(report, members[role])
        if wait is None:
            defects.append(Defect(OBJECT, f"{role}: no wait is shown"))
            continue
        found = (*_object(wait, expected), *_other(wait, expected, members), *_times(wait, expected))
        defects += [Defect(one.column, f"{role}: {one.text}") for one in found]
    return [*defects, *_verdict(report, scene, members)]


def _wait_of(report: Mapping[str, Any], member: Member) -> Mapping[str, Any] | None:
    waits = (one for one in report["waits"] if (one["pid"], one["tid"]) == (member.pid, member.tid))
    return next(waits, None)


def _object(wait: Mapping[str, Any], expected: Expected) -> Iterable[Defect]:
    if wait["kind"] not in expected.kind:
        yield Defect(OBJECT, f"kind {wait['kind']}, not {' or '.join(expected.kind)}")
    for field in ("path", "name"):
        wanted, shown = getattr(expected, field), wait["object"][field]
        if wanted is not None and not re.search(wanted, shown or ""):
            yield Defect(OBJECT, f"{field} {shown!r} is not {wanted!r}")
    lines = "\n".join(wait["evidence"])
    for text in expected.says:
        if not re.search(text, lines):
            yield Defect(OBJECT, f"evidence does not say {text!r}: {wait['evidence']}")


def _other(wait: Mapping[str, Any], expected: Expected, members: Mapping[str, Member]) -> Iterable[Defect]:
    holder = wait["holder"]
    if expected.child:
        return
    if expected.holder is not None and not (expected.holder_by_bpf and holder is None):
        wanted = members[expected.holder].pid
        if holder is None or holder["pid"] != wanted:
            yield Defect(OTHER, f"holder {holder}, not {expected.holder} ({wanted})")
        elif not holder["alive"]:
            yield Defect(OTHER, f"{expected.holder} is called dead")
        return
    if holder is not None:
        yield Defect(OTHER, f"holder {holder}, but nobody is recorded")
    shown = {one["pid"] for one in wait["candidates"]}
    wanted_pids = {members[role].pid for role in expected.candidates}
    if missing := sorted(wanted_pids - shown):
        yield Defect(OTHER, f"candidates {sorted(shown)} lack {missing}")
    if strangers := sorted(shown - {member.pid for member in members.values()}):
        yield Defect(OTHER, f"candidates {strangers} have no part in it")
    if expected.nobody and not any(NOBODY.search(line) for line in wait["evidence"]):
        yield Defect(OTHER, f"does not say that nobody is recorded: {wait['evidence']}")


def _times(wait: Mapping[str, Any], expected: Expected) -> Iterable[Defect]:
    if expected.since and wait["since_s"] is None:
        yield Defect(SINCE, "not known since when")
    if wait["ends_by_itself"] is not expected.timed:
        yield Defect(TIMED, f"ends_by_itself {wait['ends_by_itself']}")
    left = wait["object"]["remaining_s"]
    if expected.left_s is not None and (left is None or not expected.left_s[0] <= left <= expected.left_s[1]):
        yield Defect(TIMED, f"{left} s left, not {expected.left_s}")
    if not expected.timed and left is not None:
        yield Defect(TIMED, f"{left} s left of a wait that has no end")


def _verdict(report: Mapping[str, Any], scene: Scene, members: Mapping[str, Member]) -> Iterable[Defect]:
    verdict = report["verdict"]
    if verdict["state"] not in scene.states:
        yield Defect(VERDICT, f"{verdict['state']}, not {' or '.join(scene.states)}: {verdict['summary']}")
    named = {one["pid"] for one in verdict["culprits"]}
    allowed = {members[role].pid for role in scene.may_name}
    if verdict["state"] in ACCUSING and not named <= allowed:
        yield Defect(INNOCENT, f"names {sorted(named - allowed)}: {verdict['summary']}")
