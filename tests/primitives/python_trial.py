"""Runs rows of Python's table against the tool and says what of each row holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hangs.facts import Program, Waits
from tests.primitives.attached import Attached, attach
from tests.primitives.outcome import Notes, Result
from tests.primitives.parts import held_by, try_parts
from tests.primitives.python_rows import Owner, PythonRow

_PROGRAM = Path(__file__).parent / "programs" / "python"


def try_row(row: PythonRow, interpreter: str) -> Result:
    """Hangs the primitive under this interpreter, looks, and compares. Raises NotReached."""
    return try_parts(
        row,
        recorded=row.owner is not Owner.NOBODY,
        held=lambda notes: _held(row, notes, interpreter),
        cycle=lambda notes, mode, roles: _cycle(row, mode, roles, notes, interpreter),
    )


def _look(row: PythonRow, mode: str, wanted: Mapping[str, Waits], interpreter: str) -> Attached:
    return attach(row.identifier, Program(argv=(interpreter, str(_PROGRAM), mode, row.name), members=wanted))


def _held(row: PythonRow, notes: Notes, interpreter: str) -> None:
    look = _look(row, row.mode, held_by(row), interpreter)
    wait = look.wait_of("waiter")
    if row.kinds:
        notes.cell("object", _object_problem(row, wait, look))
        notes.cell("holder", _holder_problem(row, wait, look))
    verdict = look.report["verdict"]
    if verdict["state"] not in row.states:
        notes.cell("holder", f"state {verdict['state']}: {verdict['summary']}")
    if verdict["cycle"]:
        notes.cell("cycle", f"claims {verdict['cycle']}")
    culprits = set(row.may_name) if row.owner is Owner.NOBODY else {"holder", *row.may_name}
    look.check_named(notes, culprits=culprits, parties={"waiter", "holder"})


def _object_problem(row: PythonRow, wait: dict[str, Any] | None, look: Attached) -> str | None:
    if wait is None:
        return "no wait"
    if wait["kind"] not in row.kinds:
        return f"kind {wait['kind']}: {wait['evidence']}"
    found = wait["object"]
    if row.addressed and (problem := look.check_address(found["address"])):
        return f"{problem}: {wait['evidence']}"
    if row.called is not None and not (found["name"] or "").startswith(row.called):
        return f"called {found['name']}, not {row.called}: {wait['evidence']}"
    told = " ".join(wait["evidence"])
    for words in row.says:
        if words not in told:
            return f"does not say {words!r}: {told}"
    if (row.owner is not Owner.NOBODY or row.timed) and wait["ends_by_itself"] != row.timed:
        return f"ends by itself: {wait['ends_by_itself']}"
    return None


def _holder_problem(row: PythonRow, wait: dict[str, Any] | None, look: Attached) -> str | None:
    if wait is None:
        return "no wait"
    holder = wait["holder"]
    if row.owner is Owner.NOBODY:
        return f"names {holder}" if holder is not None else None
    if holder is None:
        return f"names nobody: {wait['evidence']}"
    if row.owner is Owner.GONE:
        return "is alive" if holder["alive"] else None
    wanted = look.members["holder"]
    right = holder["pid"] == wanted.pid
    if row.owner is not Owner.PROCESS:
        right = right and holder["tid"] == wanted.tid
    if not right:
        return f"names {holder}, not {wanted}"
    return None if holder["alive"] else "is dead"


def _cycle(row: PythonRow, mode: str, roles: tuple[str, ...], notes: Notes, interpreter: str) -> None:
    look = _look(row, mode, dict.fromkeys(roles, row.waiter), interpreter)
    notes.cell("cycle", look.check_cycle(roles, proof=row.proof))
    look.check_named(notes, culprits=set(), parties=set(roles))
