"""Runs rows of the table against the tool and says what of each row holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hangs.facts import Program, Waits
from tests.primitives.attached import Attached, attach
from tests.primitives.build import build
from tests.primitives.outcome import Notes, Result
from tests.primitives.parts import held_by, try_parts
from tests.primitives.rows import Flavour, Owner, Row

_DEVIATION = {
    Flavour.GOMP: {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"},
    Flavour.OMP: {"OMP_NUM_THREADS": "3", "KMP_BLOCKTIME": "0"},
}


def try_row(row: Row, folder: Path) -> Result:
    """Hangs the primitive, looks, and compares. Raises Unavailable, NotReached."""
    return try_parts(
        row,
        recorded=row.owner is not Owner.NOBODY,
        held=lambda notes: _held(row, notes, folder),
        cycle=lambda notes, mode, roles: _cycle(row, mode, roles, notes, folder),
    )


def _look(row: Row, mode: str, wanted: Mapping[str, Waits], folder: Path) -> Attached:
    program = Program(
        argv=(str(build(row.flavour, folder)), mode, row.name),
        members=wanted,
        env=_DEVIATION.get(row.flavour, {}),
    )
    return attach(row.identifier, program, *row.options)


def _held(row: Row, notes: Notes, folder: Path) -> None:
    look = _look(row, row.mode, held_by(row), folder)
    wait = look.wait_of("waiter")
    notes.cell("object", _object_problem(row, wait, look))
    notes.cell("holder", _holder_problem(row, wait, look))
    culprits = {"holder"} if row.owner is not Owner.NOBODY else set()
    look.check_named(notes, culprits=culprits, parties={"waiter", "holder"})
    if row.may_be and look.report["verdict"]["state"] not in row.may_be:
        notes.cell("holder", f"state {look.report['verdict']['state']}")


def _object_problem(row: Row, wait: dict[str, Any] | None, look: Attached) -> str | None:
    if wait is None:
        return "no wait"
    if wait["kind"] not in row.kinds:
        return f"kind {wait['kind']}: {wait['evidence']}"
    if row.addressed and (problem := look.check_address(wait["object"]["address"])):
        return f"{problem}: {wait['evidence']}"
    if wait["ends_by_itself"] != row.timed:
        return f"ends by itself: {wait['ends_by_itself']}"
    remaining = wait["object"]["remaining_s"]
    if row.timed and "again" not in row.name and not (remaining and 3000 < remaining <= 3600):
        return f"remaining: {remaining}"
    return None


def _holder_problem(row: Row, wait: dict[str, Any] | None, look: Attached) -> str | None:
    if wait is None:
        return "no wait"
    holder = wait["holder"]
    if row.owner is Owner.NOBODY:
        return f"names {holder}" if holder is not None else None
    if row.owner is Owner.LATE:
        late = look.members["holder"]
        only = [{"pid": late.pid, "tid": late.tid, "alive": True}]
        return None if wait["candidates"] == only else f"candidates {wait['candidates']}"
    if holder is None:
        return f"names nobody: {wait['evidence']}"
    if row.owner is Owner.GONE:
        return "is alive" if holder["alive"] else None
    wanted = look.members["holder"]
    if (holder["pid"], holder["tid"]) != (wanted.pid, wanted.tid):
        return f"names {holder}, not {wanted}"
    return None if holder["alive"] else "is dead"


def _cycle(row: Row, mode: str, roles: tuple[str, ...], notes: Notes, folder: Path) -> None:
    look = _look(row, mode, dict.fromkeys(roles, row.waiter), folder)
    notes.cell("cycle", look.check_cycle(roles, proof=row.proof))
    verdict = look.report["verdict"]
    if row.may_be and verdict["state"] not in row.may_be:
        notes.cell("cycle", f"state {verdict['state']}: {verdict['summary']}")
    look.check_named(notes, culprits=set(), parties=set(roles))
