"""What every row goes through: its primitive held by somebody, and cycles of members that wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tests.hangs.facts import Waits
from tests.primitives.outcome import Notes, Result


class Tried(Protocol):
    """A row of either table, as far as this goes."""

    @property
    def mode(self) -> str: ...
    @property
    def ring(self) -> int: ...
    @property
    def members(self) -> tuple[str, ...]: ...
    @property
    def proof(self) -> str: ...
    @property
    def waiter(self) -> Waits: ...
    @property
    def holder(self) -> Waits | None: ...


def try_parts(
    row: Tried,
    *,
    recorded: bool,
    held: Callable[[Notes], None],
    cycle: Callable[[Notes, str, tuple[str, ...]], None],
) -> Result:
    """Checks each part of a row. `cycle` gets the mode of the program and the roles that are to be the cycle."""
    notes = Notes(proof=row.proof, recorded=recorded)
    if row.members:
        cycle(notes, row.mode, row.members)
    else:
        held(notes)
        if row.ring:
            cycle(notes, f"ring{row.ring}", tuple(f"member{i}" for i in range(row.ring)))
    return notes.result()


def held_by(row: Tried) -> dict[str, Waits]:
    """Where the members are to be while the primitive is held; the first one is looked at."""
    return {"waiter": row.waiter} | ({"holder": row.holder} if row.holder is not None else {})
