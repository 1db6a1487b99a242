"""What every test gets: a skip with its reason where the machine lacks something, and a check for leftovers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples always: a failure is a failure for everybody. `--hypothesis-profile default` tries new ones.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips, with the reason, what the machine cannot run; a marker says what a test needs."""
    reasons = {
        "root": None if os.geteuid() == 0 else "needs root",
        "torch": None if importlib.util.find_spec("torch") else "needs PyTorch (make setup-test)",
        "browser": why_no_browser(),
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def why_no_browser() -> str | None:
    if not browser() or not shutil.which("chromedriver"):
        return "needs Chromium and chromedriver"
    try:
        socket.getaddrinfo("localhost", 80, family=socket.AF_INET)
    except socket.gaierror:
        return "needs the name localhost (in /etc/hosts), at which chromedriver looks for the browser"
    return None


def browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; mark the test `browser`."""
    path = browser()
    assert path, "a test that uses this fixture must be marked `browser`"
    return path


@pytest.fixture(scope="session")
def c_compiler() -> str:
    """Path of a C compiler; skips the test where there is none."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("needs a C compiler")
    return compiler


@pytest.fixture(scope="session")
def in_pid_namespace() -> tuple[str, ...]:
    """A command that runs another one as the first process of a PID namespace that shows in its /proc; skips the
    test where there can be none.
    """
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux)")
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    done = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"no PID namespace can be made here: {done.stderr.strip()}")
    return command


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """Fails a test that leaves a child process behind, which would slow down and colour the next ones."""
    before = children()
    yield
    left = {pid for pid in children() - before if "multiprocessing.resource_tracker" not in command(pid)}
    if left and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        # Where nobody gets a CPU, one that was killed dies after who killed it has stopped waiting for that.
        left = {pid for pid in left if not ended_late(pid)}
    assert not left, "left running: " + ", ".join(f"{pid} ({command(pid)})" for pid in sorted(left))


def ended_late(pid: int) -> bool:
    """Whether a child that has no program any more can be waited for."""
    deadline = time.monotonic() + 10.0
    while not command(pid) and time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.05)
    return False


def children() -> set[int]:
    """Direct children of this process, zombies included, over all of its threads."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:  # the thread ended, or the kernel lacks CONFIG_PROC_CHILDREN
            continue
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "gone"
