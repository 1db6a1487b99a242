"""Seeds as one writes them on a command line."""

from __future__ import annotations


def seeds(text: str) -> list[int]:
    """``3``, ``1-50`` or ``1,4,7-9``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
