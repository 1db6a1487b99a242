"""Knots of a graph of waits, and what leads to its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

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
