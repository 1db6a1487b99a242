"""Who holds what: the native capture against a C program whose owners are known."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native

DEADLINE_S = 20.0
HERE = Path(__file__).parent
# A tail call leaves no trace of what was called if the C library is stripped; then only a guess is possible.
FLAGS = ["-pthread", "-fno-optimize-sibling-calls"]

# waiter's name -> kind, name of the owner ("" none), exact, further facts
TRUTH: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    "normal": ("mutex_normal", "owner", True, {}),
    "recursive": ("mutex_recursive", "owner", True, {}),
    "errorcheck": ("mutex_errorcheck", "owner", True, {}),
    "adaptive": ("mutex_adaptive", "owner", True, {}),
    "robust": ("mutex_robust", "owner", True, {}),
    "pi": ("mutex_pi", "owner", True, {}),
    "pi-timed": ("mutex_pi", "owner", True, {"timeout": True}),
    "timed": ("mutex_timed", "owner", True, {"timeout": True}),
    "shared": ("mutex_normal", "owner", True, {}),
    "rwlock-read": ("rwlock_read", "owner", True, {"readers": 0}),
    "rwlock-write": ("rwlock_write", "owner", True, {"readers": 0}),
    "rwlock-readers": ("rwlock_write", "", False, {"readers": 1}),
    "rwlock-first": ("rwlock_write", "", False, {"readers": 1}),
    "rwlock-behind": ("rwlock_read", "", False, {"readers": 1}),
    "condition": ("condition", "", False, {"timeout": False}),
    "condition-timed": ("condition", "", False, {"timeout": True}),
    "retake": ("mutex_normal", "lock_target", True, {}),
    "semaphore": ("semaphore", "", False, {"timeout": False}),
    "semaphore-timed": ("semaphore", "", False, {"timeout": True}),
    "barrier": ("barrier", "", False, {}),
    "once": ("once", "initialiser", False, {}),
    "join": ("join", "joinee", True, {}),
}


@pytest.fixture(scope="module", params=["-O0", "-O2", "-O2 in a pid namespace"])
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, c_compiler: str
) -> Iterator[list[int]]:
    """Process ids of the running program and its forked child."""
    optimise, _, namespace = request.param.partition(" in ")
    if namespace and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("needs root and unshare to make a pid namespace")
    binary = tmp_path_factory.mktemp("locks") / "lock_target"
    subprocess.run(
        [c_compiler, optimise, *FLAGS, HERE / "lock_target.c", "-o", binary], check=True, timeout=60
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", binary] if namespace else [binary]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            own = int(process.stdout.readline())
            if namespace:
                assert own == 1
                own = only_child(process.pid)
            yield [own, only_child(own)]
        finally:
            process.kill()


def only_child(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    [child] = [child for task in tasks for child in (task / "children").read_text().split()]
    return int(child)


def settled(pids: list[int]) -> list[Any]:
    """A capture in which every thread is asleep and none moved, to be had within the deadline."""
    engine = _native.Engine()
    end = time.monotonic() + DEADLINE_S
    while True:
        processes = engine.capture(pids)
        threads = [thread for process in processes for thread in process["threads"]]
        if all(thread["state"] == "S" and not thread["moved"] for thread in threads):
            return processes
        assert time.monotonic() < end, [(one["comm"], one["state"], one["moved"]) for one in threads]


def test_every_wait_has_its_kind_and_its_owner(program: list[int]) -> None:
    process = settled(program)[0]
    assert process["error"] is None
    threads = {thread["comm"]: thread for thread in process["threads"]}
    tids = {name: thread["tid"] for name, thread in threads.items()}
    assert TRUTH.keys() <= threads.keys()
    for name, (kind, owner, exact, facts) in TRUTH.items():
        lock = threads[name]["lock"]
        assert lock is not None, name
        assert (name, lock["kind"]) == (name, kind)
        assert (name, lock["owner_tid"]) == (name, tids[owner] if owner else None)
        assert (name, lock["owner_exact"]) == (name, exact)
        for key, value in facts.items():
            assert (name, key, lock[key]) == (name, key, value)
    for name in threads.keys() - TRUTH.keys():
        assert threads[name]["lock"] is None, name


def test_the_same_object_has_the_same_address(program: list[int]) -> None:
    threads = {thread["comm"]: thread["lock"] for thread in settled(program)[0]["threads"]}
    for one, other in [
        ("rwlock-read", "rwlock-write"),
        ("rwlock-first", "rwlock-behind"),
        ("condition", "condition-timed"),
        ("semaphore", "semaphore-timed"),
        ("pi", "pi-timed"),
    ]:
        assert threads[one]["address"] == threads[other]["address"], (one, other)
    assert threads["condition"]["mutex"] == threads["condition-timed"]["mutex"] is not None


def test_a_mutex_inherited_through_fork_names_its_record_but_no_owner(program: list[int]) -> None:
    parent, child = settled(program)
    owner = next(thread["tid"] for thread in parent["threads"] if thread["comm"] == "owner")
    threads = {thread["comm"]: thread["lock"] for thread in child["threads"]}
    inherited = threads["inherited"]
    assert inherited["kind"] == "mutex_normal"
    assert inherited["owner_tid"] == owner
    assert not inherited["owner_exact"]
    assert inherited["problem"] == "owner thread does not exist in this process"
    # One in shared memory is the same mutex in both, and really held by the other process's thread.
    shared = threads["shared-child"]
    in_parent = next(thread["lock"] for thread in parent["threads"] if thread["comm"] == "shared")
    assert shared["owner_tid"] == owner
    assert shared["owner_exact"]
    assert shared["shared_key"] == in_parent["shared_key"] is not None
