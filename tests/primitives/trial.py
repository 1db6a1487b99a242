"""Runs rows of the table against the tool and says what of each row holds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hangs.attach import ATTACH_DEADLINE_S, tool
from tests.hangs.facts import Case, Facts, Program, Waits
from tests.hangs.processes import Member, running
from tests.primitives.build import build
from tests.primitives.rows import Flavour, Owner, Row

#: As in the table.
YES, NO, NOTHING = "yes", "NO", "–"

_DEVIATION = {
    Flavour.GOMP: {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"},
    Flavour.OMP: {"OMP_NUM_THREADS": "3", "KMP_BLOCKTIME": "0"},
}


@dataclass(frozen=True, slots=True)
class Result:
    """The cells of one row; `problems` says what is wrong with each that is `NO`."""

    row: Row
    object: str
    holder: str
    cycle: str
    innocents: int
    problems: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.problems


def try_row(row: Row, folder: Path) -> Result:
    """Hangs the primitive, looks, and compares. Raises Unavailable, NotReached."""
    notes = _Notes(row)
    if row.members:
        _cycle(row, row.mode, row.members, notes, folder)
    else:
        _held(row, notes, folder)
        if row.ring:
            members = tuple(f"member{i}" for i in range(row.ring))
            _cycle(row, f"ring{row.ring}", members, notes, folder)
    return notes.result()


class _Notes:
    def __init__(self, row: Row) -> None:
        self.row = row
        self.cells: dict[str, str] = {}
        self.innocents = 0
        self.problems: list[str] = []

    def cell(self, name: str, problem: str | None) -> None:
        """One more check of a cell: what is wrong, or None."""
        if problem is not None:
            self.problems.append(f"{name}: {problem}")
        if self.cells.get(name) != NO:
            self.cells[name] = YES if problem is None else NO

    def accused(self, who: str) -> None:
        self.innocents += 1
        self.problems.append(f"innocent accused: {who}")

    def result(self) -> Result:
        cells = [self.cells.get(name, NOTHING) for name in ("object", "holder", "cycle")]
        if self.row.owner is Owner.NOBODY and cells[1] == YES:
            cells[1] = "none recorded"
        return Result(self.row, *cells, self.innocents, tuple(self.problems))


def _look(
    row: Row, mode: str, wanted: Mapping[str, Waits], folder: Path
) -> tuple[dict[str, Any], dict[str, Member]]:
    program = Program(
        argv=(str(build(row.flavour, folder)), mode, row.name),
        members=wanted,
        env=_DEVIATION.get(row.flavour, {}),
    )
    first = next(iter(wanted))
    case = Case(
        kind=row.identifier, summary="", programs=(program,), attach=(first,), facts=Facts(state=frozenset())
    )
    with running(case) as stage:
        done = subprocess.run(
            [*tool(), "attach", str(stage.members[first].pid), "--json", *row.options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ATTACH_DEADLINE_S,
            check=False,
        )
        if done.returncode not in (0, 3):
            raise RuntimeError(f"{row.identifier}: {done.stderr.decode(errors='replace')[-1000:]}")
        return json.loads(done.stdout), dict(stage.members)


def _wait_of(report: Mapping[str, Any], member: Member) -> dict[str, Any] | None:
    return next((one for one in report["waits"] if one["tid"] == member.tid), None)


def _held(row: Row, notes: _Notes, folder: Path) -> None:
    wanted = {"waiter": row.waiter}
    if row.holder is not None:
        wanted["holder"] = row.holder
    report, members = _look(row, row.mode, wanted, folder)
    wait = _wait_of(report, members["waiter"])
    notes.cell("object", _object_problem(row, wait, members))
    notes.cell("holder", _holder_problem(row, wait, members))
    _check_named(
        report, {"holder"} if row.owner is not Owner.NOBODY else set(), {"waiter", "holder"}, members, notes
    )
    if row.may_be and report["verdict"]["state"] not in row.may_be:
        notes.cell("holder", f"state {report['verdict']['state']}")


def _object_problem(row: Row, wait: dict[str, Any] | None, members: Mapping[str, Member]) -> str | None:
    if wait is None:
        return "no wait"
    if wait["kind"] not in row.kinds:
        return f"kind {wait['kind']}: {wait['evidence']}"
    if row.addressed:
        announced = {role.partition(" ")[2] for role in members if role.startswith("object ")}
        if wait["object"]["address"] not in announced:
            return f"{wait['object']['address']} is not {announced}: {wait['evidence']}"
    if wait["ends_by_itself"] != row.timed:
        return f"ends by itself: {wait['ends_by_itself']}"
    remaining = wait["object"]["remaining_s"]
    if row.timed and "again" not in row.name and not (remaining and 3000 < remaining <= 3600):
        return f"remaining: {remaining}"
    return None


def _holder_problem(row: Row, wait: dict[str, Any] | None, members: Mapping[str, Member]) -> str | None:
    if wait is None:
        return "no wait"
    holder = wait["holder"]
    if row.owner is Owner.NOBODY:
        return f"names {holder}" if holder is not None else None
    if row.owner is Owner.LATE:
        only = [{"pid": members["holder"].pid, "tid": members["holder"].tid, "alive": True}]
        return None if wait["candidates"] == only else f"candidates {wait['candidates']}"
    if holder is None:
        return f"names nobody: {wait['evidence']}"
    if row.owner is Owner.GONE:
        return "is alive" if holder["alive"] else None
    if (holder["pid"], holder["tid"]) != (members["holder"].pid, members["holder"].tid):
        return f"names {holder}, not {members['holder']}"
    return None if holder["alive"] else "is dead"


def _cycle(row: Row, mode: str, roles: tuple[str, ...], notes: _Notes, folder: Path) -> None:
    report, members = _look(row, mode, dict.fromkeys(roles, row.waiter), folder)
    verdict = report["verdict"]
    waits = {one["id"]: one for one in report["waits"]}
    found = {(waits[one]["pid"], waits[one]["tid"]) for one in verdict["cycle"]}
    wanted = {(members[role].pid, members[role].tid) for role in roles}
    if row.proof == "none":
        notes.cell("cycle", f"claims {verdict['cycle']}" if found else None)
    elif found != wanted:
        notes.cell(
            "cycle", f"{sorted(found)} is not {sorted(wanted)}; {verdict['state']}: {verdict['summary']}"
        )
    else:
        sure = verdict["confidence"] == row.proof
        notes.cell("cycle", None if sure else f"{verdict['confidence']}, not {row.proof}")
    if row.may_be and verdict["state"] not in row.may_be:
        notes.cell("cycle", f"state {verdict['state']}: {verdict['summary']}")
    _check_named(report, set(), set(roles), members, notes)


def _check_named(
    report: Mapping[str, Any],
    culprits: set[str],
    parties: set[str],
    members: Mapping[str, Member],
    notes: _Notes,
) -> None:
    roles = {(one.pid, one.tid): role for role, one in members.items() if not role.startswith("object ")}
    for one in report["verdict"]["culprits"]:
        role = roles.get((one["pid"], one["tid"]), "bystander")
        if role not in (culprits if one["part"] == "culprit" else parties):
            notes.accused(f"{role} as {one['part']}: {report['verdict']['summary']}")
