"""Quantities in words."""

from __future__ import annotations


def size(amount: int) -> str:
    """Bytes as people say them, in powers of ten: `412 GB`, `3.4 TB`, `27 MB`, `8 kB`."""
    value = float(amount)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.0f} TB" if value >= 10 else f"{value:.1f} TB"


def plural(count: int, one: str, many: str) -> str:
    """The word for one, or that for none and several."""
    return one if count == 1 else many


def times(count: int) -> str:
    """`once`, or `3 times`."""
    return "once" if count == 1 else f"{count} times"
