"""Runs rows of Python's table against the tool and says what of each row holds."""

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
from tests.primitives.python_rows import Owner, PythonRow

PROGRAM = Path(__file__).parent / "programs" / "python"

#: As in the table.
YES, NO, NOTHING = "yes", "NO", "–"


@dataclass(frozen=True, slots=True)
class PythonResult:
    """The cells of one row; `problems` says what is wrong with each that is `NO`."""

    row: PythonRow
    object: str
    holder: str
    cycle: str
    innocents: int
    problems: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.problems


def try_row(row: PythonRow, interpreter: str) -> PythonResult:
    """Hangs the primitive under this interpreter, looks, and compares. Raises NotReached."""
    notes = _Notes(row)
    if row.members:
        _cycle(row, row.mode, row.members, notes, interpreter)
    else:
        _held(row, notes, interpreter)
        if row.ring:
            members = tuple(f"member{i}" for i in range(row.ring))
            _cycle(row, f"ring{row.ring}", members, notes, interpreter)
    return notes.result()


class _Notes:
    def __init__(self, row: PythonRow) -> None:
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

    def result(self) -> PythonResult:
        cells = [self.cells.get(name, NOTHING) for name in ("object", "holder", "cycle")]
        if self.row.owner is Owner.NOBODY and cells[1] == YES:
            cells[1] = "none recorded"
        if self.row.proof != "proven" and cells[2] == YES:
            cells[2] = self.row.proof
        return PythonResult(self.row, *cells, self.innocents, tuple(self.problems))


def _look(
    row: PythonRow, mode: str, wanted: Mapping[str, Waits], interpreter: str
) -> tuple[dict[str, Any], dict[str, Member]]:
    first = next(iter(wanted))
    case = Case(
        kind=row.identifier,
        summary="",
        programs=(Program(argv=(interpreter, str(PROGRAM), mode, row.name), members=wanted),),
        attach=(first,),
        facts=Facts(state=frozenset()),
    )
    with running(case) as stage:
        done = subprocess.run(
            [*tool(), "attach", str(stage.members[first].pid), "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ATTACH_DEADLINE_S,
            check=False,
        )
        if done.returncode not in (0, 3):
            raise RuntimeError(f"{row.identifier}: {done.stderr.decode(errors='replace')[-1000:]}")
        return json.loads(done.stdout), dict(stage.members)


def _held(row: PythonRow, notes: _Notes, interpreter: str) -> None:
    wanted = {"waiter": row.waiter}
    if row.holder is not None:
        wanted["holder"] = row.holder
    report, members = _look(row, row.mode, wanted, interpreter)
    waiter = members["waiter"]
    wait = next((one for one in report["waits"] if one["tid"] == waiter.tid), None)
    if row.kinds:
        notes.cell("object", _object_problem(row, wait, members))
        notes.cell("holder", _holder_problem(row, wait, members))
    verdict = report["verdict"]
    if verdict["state"] not in row.states:
        notes.cell("holder", f"state {verdict['state']}: {verdict['summary']}")
    if verdict["cycle"]:
        notes.cell("cycle", f"claims {verdict['cycle']}")
    culprits = set(row.may_name) if row.owner is Owner.NOBODY else {"holder", *row.may_name}
    _check_named(report, culprits, {"waiter", "holder"}, members, notes)


def _object_problem(row: PythonRow, wait: dict[str, Any] | None, members: Mapping[str, Member]) -> str | None:
    if wait is None:
        return "no wait"
    if wait["kind"] not in row.kinds:
        return f"kind {wait['kind']}: {wait['evidence']}"
    found = wait["object"]
    if row.addressed:
        announced = {role.partition(" ")[2] for role in members if role.startswith("object ")}
        if found["address"] not in announced:
            return f"{found} is not {announced}: {wait['evidence']}"
    if row.called is not None and not (found["name"] or "").startswith(row.called):
        return f"called {found['name']}, not {row.called}: {wait['evidence']}"
    told = " ".join(wait["evidence"])
    for words in row.says:
        if words not in told:
            return f"does not say {words!r}: {told}"
    if (row.owner is not Owner.NOBODY or row.timed) and wait["ends_by_itself"] != row.timed:
        return f"ends by itself: {wait['ends_by_itself']}"
    return None


def _holder_problem(row: PythonRow, wait: dict[str, Any] | None, members: Mapping[str, Member]) -> str | None:
    if wait is None:
        return "no wait"
    holder = wait["holder"]
    if row.owner is Owner.NOBODY:
        return f"names {holder}" if holder is not None else None
    if holder is None:
        return f"names nobody: {wait['evidence']}"
    if row.owner is Owner.GONE:
        return "is alive" if holder["alive"] else None
    wanted = members["holder"]
    right = holder["pid"] == wanted.pid
    if row.owner is not Owner.PROCESS:
        right = right and holder["tid"] == wanted.tid
    if not right:
        return f"names {holder}, not {wanted}"
    return None if holder["alive"] else "is dead"


def _cycle(row: PythonRow, mode: str, roles: tuple[str, ...], notes: _Notes, interpreter: str) -> None:
    report, members = _look(row, mode, dict.fromkeys(roles, row.waiter), interpreter)
    verdict = report["verdict"]
    waits = {one["id"]: one for one in report["waits"]}
    found = {(waits[one]["pid"], waits[one]["tid"]) for one in verdict["cycle"]}
    wanted = {(members[role].pid, members[role].tid) for role in roles}
    if found != wanted:
        notes.cell(
            "cycle", f"{sorted(found)} is not {sorted(wanted)}; {verdict['state']}: {verdict['summary']}"
        )
    else:
        sure = verdict["confidence"] == row.proof
        notes.cell("cycle", None if sure else f"{verdict['confidence']}, not {row.proof}")
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
        role = roles.get((one["pid"], one["tid"] or one["pid"]), "bystander")
        if role not in (culprits if one["part"] == "culprit" else parties):
            notes.accused(f"{role} as {one['part']}: {report['verdict']['summary']}")
