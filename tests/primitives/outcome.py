"""What holds of a row of a table, and the lines that tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.hangs.processes import NotReached
from tests.primitives.build import Unavailable

#: As in the table.
YES, NO, NOTHING = "yes", "NO", "–"

_HEAD = ("object named", "holder right", "cycle proven", "innocents accused")


@dataclass(frozen=True, slots=True)
class Result:
    """The cells of one row; `problems` says what is wrong with each that is `NO`."""

    object: str
    holder: str
    cycle: str
    innocents: int
    problems: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.problems


class Notes:
    """What is found out of one row, check by check. `proof` and `recorded`: what the row says of it."""

    def __init__(self, *, proof: str, recorded: bool) -> None:
        self._proof = proof
        self._recorded = recorded
        self._cells: dict[str, str] = {}
        self._innocents = 0
        self._problems: list[str] = []

    def cell(self, name: str, problem: str | None) -> None:
        """One more check of a cell: what is wrong, or None."""
        if problem is not None:
            self._problems.append(f"{name}: {problem}")
        if self._cells.get(name) != NO:
            self._cells[name] = YES if problem is None else NO

    def accused(self, who: str) -> None:
        """Somebody is named who has nothing to do with it."""
        self._innocents += 1
        self._problems.append(f"innocent accused: {who}")

    def result(self) -> Result:
        """Of all checks together."""
        named, holder, cycle = (self._cells.get(name, NOTHING) for name in ("object", "holder", "cycle"))
        if not self._recorded and holder == YES:
            holder = "none recorded"
        if self._proof != "proven" and cycle == YES:
            cycle = self._proof
        return Result(named, holder, cycle, self._innocents, tuple(self._problems))


_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Table(Generic[_Row]):
    """Prints a line a row as it is tried. `name` gives what stands first in it, at most `width` columns; `markdown`:
    as a table of a document.
    """

    title: str
    width: int
    name: Callable[[_Row], str]
    try_row: Callable[[_Row], Result]
    markdown: bool = False

    def print(self, rows: Iterable[_Row]) -> int:
        """How many rows are not right."""
        right = wrong = 0
        print(self._line(self.title, _HEAD))
        if self.markdown:
            print("|---" * (len(_HEAD) + 1) + "|")
        for row in rows:
            name = self.name(row)
            try:
                result = self.try_row(row)
            except Unavailable as problem:
                print(f"{name:<{self.width}}skipped: {problem}", flush=True)
                continue
            except NotReached as problem:
                wrong += 1
                print(f"{name:<{self.width}}not reached: {problem}", flush=True)
                continue
            right += result.right
            wrong += not result.right
            cells = (result.object, result.holder, result.cycle, result.innocents)
            print(
                self._line(name, cells),
                *(f"    {problem}" for problem in result.problems),
                sep="\n",
                flush=True,
            )
        print(f"{right} rows right, {wrong} not")
        return wrong

    def _line(self, first: str, others: Iterable[object]) -> str:
        if self.markdown:
            return f"| {' | '.join(map(str, (first, *others)))} |"
        return f"{first:<{self.width}}" + "".join(f"{cell!s:<15}" for cell in others)
