"""Who is still to set a key of torch's store: what the source of a program says behind the place where a rank stands.

Nothing of the source is kept. Only what comes next for certain counts: statements that follow in the same block or in
one around it, not those under a condition, and keys that stand there as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.nap_loops import written
from pyhangtrace.model.groups import GroupWait
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.threads import ThreadSample

KEY_SETTERS_TASK = "key_setters"
_SETS = frozenset({"set", "add", "append", "compare_set", "multi_set"})
_MOST_FRAMES = 32
_LARGEST_SOURCE = 1 << 18
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def key_setters_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: which of the keys each pid is to set behind its places. Guarded, as a file server may not answer."""
    keys, places = argument
    for pid in pids:
        progress(pid)
        found: set[str] = set()
        for file, line in places[pid]:
            source = written(state.proc_root, pid, file)
            if source is not None and len(source) <= _LARGEST_SOURCE:
                found |= set_behind(source.decode(errors="replace"), line, keys)
        yield pid, tuple(sorted(found))


def set_behind(source: str, line: int, keys: Collection[str]) -> set[str]:
    """Which of the keys the function (or the file) that stands in this line, counted from 1, sets afterwards."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found: set[str] = set()
    node: ast.AST = tree
    while True:
        inner: ast.AST | None = None
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            for index, each in enumerate(block):
                if each.lineno <= line <= (each.end_lineno or each.lineno):
                    inner = each
                    if name in ("body", "orelse", "finalbody"):
                        following = block[index + 1 :]
                        found |= {key for step in following for key in _set_by(step, keys)}
        if inner is None:
            return found
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            # What follows its definition is not what follows its run.
            found = set()
        node = inner


def _set_by(statement: ast.stmt, keys: Collection[str]) -> Iterator[str]:
    if isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
        for each in statement.body:
            yield from _set_by(each, keys)
        return
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or not value.args:
        return
    first = value.args[0]
    named = first.elts if isinstance(first, ast.List) else [first]
    if value.func.attr in _SETS:
        yield from (
            each.value
            for each in named
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in keys
        )


def collect(
    reader: GuardedReader,
    pids: Sequence[int],
    samples: Sequence[ThreadSample],
    waits: Sequence[GroupWait],
    *,
    deadline_s: float,
) -> tuple[GroupWait, ...]:
    """The waits, with `setters` where somebody is to set a key of theirs."""
    keys = {key for wait in waits for key in wait.keys}
    waiting = {wait.pid for wait in waits if wait.keys}
    places = {
        sample.pid: tuple(_places(sample))
        for sample in samples
        if sample.pid == sample.tid and sample.pid in set(pids) - waiting
    }
    if not keys or not any(places.values()):
        return tuple(waits)
    answers = reader.run(KEY_SETTERS_TASK, list(places), (tuple(sorted(keys)), places), deadline_s=deadline_s)
    by_key: dict[str, list[int]] = {}
    for pid, sets in sorted(answers.values.items()):
        for key in sets:
            by_key.setdefault(key, []).append(pid)
    return tuple(
        replace(wait, setters=tuple(dict.fromkeys(pid for key in wait.keys for pid in by_key.get(key, ()))))
        for wait in waits
    )


def _places(sample: ThreadSample) -> Iterator[tuple[str, int]]:
    frames = [frame for frame in sample.frames if frame.kind is FrameKind.PYTHON][:_MOST_FRAMES]
    for frame in frames:
        if frame.file is not None and frame.line is not None and not frame.file.startswith("<"):
            yield frame.file, frame.line
