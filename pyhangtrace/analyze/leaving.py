"""Members of a group that are not there any more, and whether the others wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze.scene import Key, Scene


def absent_key(scene: Scene, rank: int) -> Key:
    """Stands for a rank without a process: its zombie if there is exactly one it can be, else the rank itself."""
    ended = scene.who.ended
    return (ended[0], 0) if len(ended) == 1 else (-1 - rank, 0)


def left_early(scene: Scene, keys: Sequence[Key], *, together: bool) -> frozenset[Key]:
    """Who has ended without an error, or nobody knows how, while somebody who has not come lives.

    A rank may end when its own part is done, so that others still wait does not say that they wait for it. Where none
    can be done before all have come, `together`, one that failed has not come; elsewhere it may have failed since.
    """
    ended = {key for key in keys if key[0] < 0 or scene.exited(key[0])}
    if len(ended) == len(set(keys)):
        return frozenset()
    return frozenset(key for key in ended if not (together and scene.exit_status(key)))
