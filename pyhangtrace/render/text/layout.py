"""Columns, wrapping and colour for an 80-column page. Widths are columns of a terminal, not characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WIDTH = 80
INDENT = 2
_WIDEST_LABEL = 22
_GAP = 2
# A number alone on the next line is read over.
_KEPT_TOGETHER = re.compile(r"\b(pid|fd|rank) (?=\d)")
_NO_BREAK = "\u00a0"  # `clean` escapes it in foreign text


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


def columns(text: str) -> int:
    """How many columns a terminal needs for it."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` columns, what does not fit replaced by an ellipsis."""
    if columns(text) <= width:
        return text
    return _head(text, width - 1) + "…"


def _head(text: str, width: int) -> str:
    used = 0
    for number, char in enumerate(text):
        used += _columns(char)
        if used > width:
            return text[:number]
    return text


def rows(entries: Iterable[Row], style: Style) -> Iterator[str]:
    """Rows under each other with one label column; text wraps in its column."""
    listed = list(entries)
    if not listed:
        return
    column = INDENT + min(max(columns(entry.label) for entry in listed), _WIDEST_LABEL) + _GAP
    for entry in listed:
        lead = " " * INDENT + shorten(entry.label, WIDTH - INDENT)
        # A long label gets a line of its own rather than a narrow column of text beside it.
        if columns(lead) + _GAP > column:
            yield style.bold(lead)
            lead = ""
        for number, text in enumerate(_wrapped(entry, WIDTH - column)):
            right = entry.right if number == 0 else ""
            gap = " " * (column - columns(lead)) if text or right else ""
            line = style.bold(lead) + gap + text
            if right:
                room = WIDTH - max(column, columns(lead)) - columns(text) - columns(right)
                line += " " * room + style.dim(right)
            yield line
            lead = ""


def _wrapped(entry: Row, width: int) -> Iterator[str]:
    for number, line in enumerate(entry.lines):
        reserved = columns(entry.right) + _GAP if number == 0 and entry.right else 0
        yield from wrap(line, width, reserved_first=reserved)


def wrap(text: str, width: int, *, reserved_first: int = 0) -> list[str]:
    """Lines of at most `width` columns, the first one shorter by `reserved_first`; at least one line.

    A word that fits on no line is broken after a slash where there is one.
    """
    lines: list[str] = []
    current = ""
    room = width - reserved_first
    for word in _KEPT_TOGETHER.sub(rf"\1{_NO_BREAK}", text).split(" "):
        if not word:
            continue
        joined = f"{current} {word}" if current else word
        if columns(joined) <= room:
            current = joined
            continue
        if current:
            lines.append(current)
            room = width
        rest = word
        while columns(rest) > room:
            # What fits on a whole line leaves the first one to its note.
            piece = "" if columns(rest) <= width else _piece(rest, room)
            lines.append(piece)
            rest = rest[len(piece) :]
            room = width
        current = rest
    if current or not lines:
        lines.append(current)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _piece(word: str, width: int) -> str:
    head = _head(word, width)
    slash = head.rfind("/", len(head) // 2)
    return head[: slash + 1] if slash > 0 else head


def paragraph(text: str, indent: int = INDENT) -> list[str]:
    """Wrapped text, indented."""
    return [" " * indent + line for line in wrap(text, WIDTH - indent)]
