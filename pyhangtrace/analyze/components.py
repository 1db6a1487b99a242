"""Knots of a graph of waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyhangtrace.analyze.scene import Key


def components(nodes: Iterable[Key], edges: Callable[[Key], tuple[Key, ...]]) -> list[tuple[Key, ...]]:
    """Strongly connected components, each after all those it leads to (Tarjan, without recursion)."""
    index: dict[Key, int] = {}
    low: dict[Key, int] = {}
    stack: list[Key] = []
    on_stack: set[Key] = set()
    found: list[tuple[Key, ...]] = []
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(edges(root)))]
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges(target))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(tuple(sorted(component)))
    return found
