"""What the source around a nap says that a loop asks for."""

from __future__ import annotations

import pytest

from pyhangtrace.collect.nap_source import Asked, around
from pyhangtrace.model.kinds import PolledThing

LOCK, CHILD = PolledThing.LOCK, PolledThing.CHILD


def asked(source: str) -> Asked | None:
    lines = source.split("\n")
    return around(lines, next(number for number, line in enumerate(lines, 1) if "NAP" in line))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "while True:\n  try:\n    os.mkdir(p)\n  except FileExistsError:\n    NAP",
            "except FileExistsError",
        ),
        (
            "while True:\n  try:\n    make(p)\n  except (OSError, FileExistsError) as e:\n    NAP",
            "except FileExistsError",
        ),
        ("while os.path.exists(p):\n    # still there\n\n    if x:\n\tNAP", "while exists()"),
        ("while not path.is_file() or not isfile(p):\n    NAP", "while not isfile()"),
        ("try:\n  f()\nexcept FileExistsError:\n  g()\nNAP", None),  # beside it, and not inside
        ("while True:\n  NAP", None),
        ("except FileExistsError:\n  def f():\n    NAP", None),  # of somebody else
        ("while not os.path.exists(p): NAP", "while not exists()"),
        ("while (not p.exists()):\n  NAP", "while not exists()"),
        ("while exists(p) and not done: NAP", "while exists()"),
        ("while exists:\n  NAP", None),
    ],
)
def test_loops_that_look_for_a_file(source: str, words: str | None) -> None:
    assert asked(source) == (Asked(PolledThing.FILE, words) if words is not None else None)


@pytest.mark.parametrize(
    "source",
    [
        "while not lock.acquire(False):\n  NAP",
        "  while not self.lock.acquire(blocking=False): NAP",
        "while not (a.acquire(timeout=0) and b.free):\n  NAP",
        "while other.acquire(False) is False:\n  NAP",
        "while True:\n  if lock.acquire(0):\n    break\n  NAP",
        "def f():\n  for _ in range(9):\n    if lock.acquire(block=False):\n      return 1\n    else:\n      NAP",
        "while True:\n  got = lock.acquire(False)\n  if got:\n    break\n  NAP",
        "got = False\nwhile not got:\n  got = lock.acquire(\n    False)\n  NAP",
        "while lock.locked():\n  NAP",
        "while not mutex.try_lock():\n  NAP",
    ],
)
def test_loops_that_ask_for_a_lock(source: str) -> None:
    found = asked(source)
    assert found is not None
    assert found.thing is LOCK


@pytest.mark.parametrize(
    ("source", "thing"),
    [
        ("while child.poll() is None:\n  NAP", CHILD),
        ("while (code := self.p.poll()) is None:\n  NAP", CHILD),
        ("while True:\n  if child.poll() is not None:\n    break\n  NAP", CHILD),
        ("while os.waitpid(p, os.WNOHANG) == (0, 0):\n  NAP", CHILD),
        ("while os.waitpid(p, os.WNOHANG)[0] == 0:\n  NAP", CHILD),
        ("while thread.is_alive():\n  NAP", PolledThing.THREAD),
        ("while any(t.is_alive() for t in threads):\n  NAP", PolledThing.THREAD),
        ("while not task.done():\n  NAP", PolledThing.FUTURE),
        ("while True:\n  if all([t.done() for t in tasks]):\n    break\n  NAP", PolledThing.FUTURE),
        (
            "while True:\n  try:\n    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    break\n"
            "  except OSError:\n    NAP",
            PolledThing.FILE_LOCK,
        ),
    ],
)
def test_loops_that_ask_for_something_else(source: str, thing: PolledThing) -> None:
    found = asked(source)
    assert found is not None
    assert found.thing is thing


@pytest.mark.parametrize(
    "source",
    [
        "while not stop.is_set():\n  NAP",  # serves until it is told to end
        "while queue.empty():\n  NAP",
        "while True:\n  if lock.acquire(False):\n    work()\n    lock.release()\n  NAP",  # goes on in any case
        "while lock.acquire(False):\n  NAP",  # as long as it gets it
        "while lock.acquire():\n  NAP",  # waits by itself
        "while True:\n  for p in children:\n    if p.poll() is not None:\n      restart(p)\n  NAP",
        "while not t.is_alive():\n  NAP",  # until it lives
        "while task.done():\n  NAP",
        "while poller.poll() == []:\n  NAP",
        "while not lock.acquire(False):\n  def f():\n    NAP",
        "while not lock.acquire(False):\n  x ==\n  NAP",
        "while " + "(" * 500 + "a.locked()" + ")" * 500 + ":\n  NAP",
        "while x:\n" + "  # long\n  f()\n" * 300 + "  NAP",
        "while" + " x and" * 5000 + " x:\n  NAP",
    ],
)
def test_other_loops(source: str) -> None:
    assert asked(source) is None


def test_a_line_that_is_not_there() -> None:
    assert around(["x"], 2) is None
    assert around([], 0) is None
