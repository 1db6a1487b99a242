"""Threads that each wait for any other one of their process: in a graph one node between them stands for all.

A hundred such waits are ten thousand edges, and two hundred over that node.
"""

from __future__ import annotations

from pyhangtrace.analyze.scene import Key, Scene

# In place of a thread id: any thread of the process that has work of its own, or is at work just now.
ANYBODY = -1


class Siblings(tuple[Key, ...]):
    """All `workers` of a process besides the one that they are siblings of: who sees that need not go through them."""

    __slots__ = ()


def in_short(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """These, or of siblings the node between. It leads to the one that they are siblings of as well, so that this one
    seems to wait for itself: nothing else changes.
    """
    return ((keys[0][0], ANYBODY),) if isinstance(keys, Siblings) and keys else keys


def is_crowd(node: Key) -> bool:
    """Whether it is a node between."""
    return node[1] == ANYBODY


def crowd(scene: Scene, node: Key) -> tuple[Key, ...]:
    """The threads that a node between stands for."""
    return scene.workers[node[0]]
