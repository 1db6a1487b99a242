"""Whose thread id a lock in a file records, where processes of other pid namespaces could have written it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.targets import running

DEADLINE_S = 20.0
SOURCE = Path(__file__).parent / "shared_lock_target.c"


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> Path:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to make a pid namespace")
    built = tmp_path_factory.mktemp("shared") / "shared_lock_target"
    subprocess.run([c_compiler, "-pthread", SOURCE, "-o", built], check=True, timeout=60)
    return built


@contextmanager
def part(binary: Path, name: str, file: Path, *, namespace: bool = False) -> Iterator[int]:
    """The pid of what plays a part, once it is ready; of one in a pid namespace that of unshare above it."""
    apart = ("unshare", "--pid", "--fork", "--kill-child") if namespace else ()
    with running(*apart, binary, name, file) as pid:
        yield pid


def waiting_thread(pids: list[int]) -> Any:
    """The lock of the one thread that waits for the mutex."""
    engine = _native.Engine()
    end = time.monotonic() + DEADLINE_S
    while True:
        threads = [thread for process in engine.capture(pids) for thread in process["threads"]]
        asleep = all(thread["state"] == "S" and not thread["moved"] for thread in threads)
        found = [thread["lock"] for thread in threads if thread["lock"] is not None]
        if asleep and found:
            assert len(found) == 1
            return found[0]
        assert time.monotonic() < end, [(one["comm"], one["state"], one["moved"]) for one in threads]


@pytest.mark.parametrize(("beside", "known"), [(None, True), ("see", True), ("map", False)])
def test_the_owner_is_named_unless_another_pid_namespace_maps_the_lock(
    binary: Path, tmp_path: Path, beside: str | None, known: bool
) -> None:
    file = tmp_path / "lock"
    with ExitStack() as stack:
        owner = stack.enter_context(part(binary, "make", file))
        if beside is not None:
            stack.enter_context(part(binary, beside, file, namespace=True))
        waiter = stack.enter_context(part(binary, "wait", file))
        lock = waiting_thread([owner, waiter])
    assert lock["shared_file"]
    assert (lock["owner_tid"], lock["owner_exact"]) == ((owner, True) if known else (None, False))
    assert ("pid namespaces" in (lock["problem"] or "")) is not known
