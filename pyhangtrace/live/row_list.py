"""Rows of text of which one is selected. A table widget lays out every cell of a row again for one that has changed,
which would cost more than all else that the view does; here a row is one piece of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

_SELECTED = Style(reverse=True)
_PLAIN = Style()


class RowList(ScrollView, can_focus=True):
    """`put` gives it rows, each with the number by which it is known."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]

    class Selected(Message):
        """Another row is selected."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: list[tuple[int, str]] = []
        self._at = 0

    @property
    def selected(self) -> int | None:
        """The number of the selected row."""
        return self._rows[self._at][0] if self._rows else None

    def put(self, rows: Sequence[tuple[int, str]]) -> None:
        """Shows these rows; the selected one stays selected if it is still there."""
        before = self.selected
        if [number for number, _ in rows] != [number for number, _ in self._rows]:
            numbers = [number for number, _ in rows]
            self._at = numbers.index(before) if before in numbers else min(self._at, max(0, len(rows) - 1))
            self.virtual_size = Size(max((len(text) for _, text in rows), default=0), len(rows))
            self.styles.height = max(1, len(rows))
        elif list(rows) == self._rows:
            return
        self._rows = list(rows)
        if self.selected is not None and self.selected != before:
            self.post_message(self.Selected(self.selected))
        self._reveal()
        self.refresh()

    def action_move(self, by: int) -> None:
        """Selects a row above or below."""
        self._select(self._at + by)

    def on_click(self, event: Click) -> None:
        """Selects the row under the pointer."""
        self._select(event.y + int(self.scroll_offset.y))

    def _select(self, at: int) -> None:
        if not self._rows:
            return
        self._at = min(max(0, at), len(self._rows) - 1)
        self._reveal()
        self.refresh()
        self.post_message(self.Selected(self._rows[self._at][0]))

    def _reveal(self) -> None:
        """Scrolls so that the selected row can be seen."""
        top, height = int(self.scroll_offset.y), max(1, self.size.height)
        if not top <= self._at < top + height:
            self.scroll_to(y=self._at if self._at < top else self._at - height + 1, animate=False)

    def render_line(self, y: int) -> Strip:
        """One line of what can be seen."""
        at = y + int(self.scroll_offset.y)
        if at >= len(self._rows):
            return Strip.blank(self.size.width)
        style = _SELECTED if at == self._at else _PLAIN
        return Strip([Segment(self._rows[at][1], style)]).adjust_cell_length(self.size.width, style)
