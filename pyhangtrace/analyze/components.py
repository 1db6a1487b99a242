"""Knots of a graph of waits, and what leads to its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyhangtrace.analyze.scene import Key

# Higher than any index, so that what is reached there is never the lowest.
_FOUND = 1 << 62


def components(nodes: Iterable[Key], edges: Callable[[Key], tuple[Key, ...]]) -> list[tuple[Key, ...]]:
    """Strongly connected components, each after all those it leads to (Tarjan, without recursion)."""
    index: dict[Key, int] = {}  # in the order of coming to them; _FOUND once the component is known
    low: dict[Key, int] = {}
    stack: list[Key] = []
    work: list[tuple[Key, Iterator[Key]]] = []
    found: list[tuple[Key, ...]] = []

    def enter(node: Key) -> bool:
        """Whether it leads anywhere; else it is a component as it is."""
        targets = edges(node)
        if not targets:
            index[node] = _FOUND
            found.append((node,))
            return False
        index[node] = low[node] = len(index)
        stack.append(node)
        work.append((node, iter(targets)))
        return True

    for root in nodes:
        if root not in index:
            enter(root)
        while work:
            node, rest = work[-1]
            lowest = low[node]
            for target in rest:
                at = index.get(target)
                if at is None:
                    if enter(target):
                        low[node] = lowest
                        break
                elif at < lowest:
                    lowest = at
            else:
                work.pop()
                if work and lowest < low[work[-1][0]]:
                    low[work[-1][0]] = lowest
                if lowest < index[node]:
                    low[node] = lowest
                elif stack[-1] == node:
                    # Most are alone.
                    stack.pop()
                    index[node] = _FOUND
                    found.append((node,))
                else:
                    start = len(stack) - 1
                    while stack[start] != node:
                        start -= 1
                    component = stack[start:]
                    del stack[start:]
                    index.update(dict.fromkeys(component, _FOUND))
                    found.append(tuple(sorted(component)))
    return found


def leading_to(goals: Iterable[Key], edges: Mapping[Key, Iterable[Key]]) -> frozenset[Key]:
    """All nodes from which a way leads to one of these, themselves included."""
    found = set(goals)
    before: defaultdict[Key, list[Key]] = defaultdict(list)
    todo = []
    for key, targets in edges.items():
        if key in found:
            continue
        if not found.isdisjoint(targets):
            # There are waits for any of a hundred threads: most are known by now to lead on.
            found.add(key)
            todo.append(key)
            continue
        for target in targets:
            before[target].append(key)
    while todo:
        for key in before.get(todo.pop(), ()):
            if key not in found:
                found.add(key)
                todo.append(key)
    return frozenset(found)
