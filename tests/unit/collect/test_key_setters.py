"""What a program's source says of the keys that a rank is still to set."""

from __future__ import annotations

import pytest

from pyhangtrace.collect.key_setters import set_behind

SOURCE = """\
import store
def main(rank):
    store.set("before", "1")
    if rank == 0:
        download()
        store.set("ready", "1")
    else:
        store.set("other branch", "1")
    with lock:
        store.add("counted", 1)
    if rank == 1:
        store.set("under a condition", "1")
    store.multi_set(["one", "two"], ["1", "1"])
    store.set(name, "ready or not")
    def helper():
        store.set("inner", "1")
    def caller():
        helper(
            1,
        )
        store.get("asked for")
    caller()
store.set("of the file", "1")
"""
KEYS = frozenset(
    ("before", "ready", "other branch", "counted", "under a condition", "one", "two", "inner", "asked for")
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (5, {"ready", "counted", "one", "two"}),
        (6, {"counted", "one", "two"}),
        (8, {"counted", "one", "two"}),
        (19, set()),
        (22, set()),
        (1, set()),
        (99, set()),
    ],
)
def test_what_follows_for_certain(line: int, found: set[str]) -> None:
    assert set_behind(SOURCE, line, KEYS) == found


def test_no_python() -> None:
    assert set_behind("def f(:\n", 1, KEYS) == set()
