"""Columns, wrapping and colour for an 80-column page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WIDTH = 80
INDENT = 2


@dataclass(frozen=True, slots=True)
class Style:
    """ANSI colours, or nothing at all."""

    color: bool

    def paint(self, text: str, code: str) -> str:
        """`text` in the colour of an SGR code such as "1;31"; unchanged without colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        """`text` in bold."""
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        """`text` less prominent."""
        return self.paint(text, "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A label, what is said of it, and a note at the right edge of the first line (an age)."""

    label: str
    lines: tuple[str, ...]
    right: str = ""


def rows(entries: Iterable[Row], style: Style) -> Iterator[str]:
    """Rows under each other with one label column; text wraps in its column, words longer than it stay whole."""
    listed = list(entries)
    if not listed:
        return
    column = INDENT + min(max(len(entry.label) for entry in listed), 22) + 2
    for entry in listed:
        text_lines = list(_wrapped(entry, column))
        for number, text in enumerate(text_lines):
            label = entry.label if number == 0 else ""
            lead = " " * INDENT + label
            # A long label gets a line of its own rather than a narrow column of text beside it.
            if len(lead) + 2 > column and label:
                yield style.bold(lead)
                lead = ""
            line = lead.ljust(column) + text
            if number == 0 and entry.right:
                line = line.ljust(WIDTH - len(entry.right)) + style.dim(entry.right)
            yield line.rstrip() if not style.color else line


def _wrapped(entry: Row, column: int) -> Iterator[str]:
    first = True
    for paragraph in entry.lines:
        room = WIDTH - column
        reserved = len(entry.right) + 2 if first and entry.right else 0
        yield from _wrap(paragraph, room, reserved)
        first = False


def _wrap(text: str, width: int, reserved_first: int) -> list[str]:
    """Wraps to `width`, the first line shorter by what stands at its right edge."""
    wrapped = textwrap.wrap(
        text,
        width,
        initial_indent="\0" * reserved_first,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.lstrip("\0") for line in wrapped] or [""]


def paragraph(text: str, indent: int = INDENT) -> list[str]:
    """Wrapped text, indented."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
