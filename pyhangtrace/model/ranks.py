"""Rank sets as people read them: `0-2,4-7`."""

from __future__ import annotations

from collections.abc import Iterable


def fold(ranks: Iterable[int]) -> str:
    """Folds ranks into ranges: {0, 1, 2, 4} gives "0-2,4"; duplicates count once; no ranks give ""."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        first, last = ordered[start], ordered[end]
        parts.append(str(first) if first == last else f"{first}-{last}")
        start = end + 1
    return ",".join(parts)
