"""Text that came from a target, made safe to show: names and paths may hold anything."""

from __future__ import annotations


def clean(text: str) -> str:
    """`text` on one line with everything unprintable escaped, so that no name can steer a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )
