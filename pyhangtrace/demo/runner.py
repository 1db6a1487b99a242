"""Start a demo, wait until it really hangs, and take everything away again."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from pyhangtrace.demo.parts import Blocked, Member, Weights
from pyhangtrace.demo.scenes import DEFAULT_KIND, find_scene

_RANKS = 8
_MIB = 1 << 20

#: Page cache of a file on a disk can be given back at any time, memory of a tmpfs cannot.
_MAX_FILE_ON_DISK = 1024 * _MIB
_MAX_FILE_IN_MEMORY = 256 * _MIB

_START_DEADLINE_S = 60.0
_END_DEADLINE_S = 5.0
_POLL_S = 0.02

#: System calls by number, from <asm/unistd_64.h> and <asm-generic/unistd.h>.
_SYSCALLS: dict[str, dict[Blocked, frozenset[int]]] = {
    "x86_64": {
        Blocked.LOCK: frozenset({202, 449}),
        Blocked.FILE_LOCK: frozenset({72, 73}),
        Blocked.READ: frozenset({0, 45, 47}),
        # Python up to 3.10 sleeps in select.
        Blocked.SLEEP: frozenset({23, 34, 35, 230, 270}),
        Blocked.POLL: frozenset({7, 23, 232, 270, 271, 281}),
        Blocked.CHILD: frozenset({61, 247}),
    },
    "aarch64": {
        Blocked.LOCK: frozenset({98, 449}),
        Blocked.FILE_LOCK: frozenset({25, 32}),
        Blocked.READ: frozenset({63, 207, 212}),
        Blocked.SLEEP: frozenset({72, 101, 115}),
        Blocked.POLL: frozenset({22, 72, 73}),
        Blocked.CHILD: frozenset({95, 260}),
    },
}


class DemoFailed(RuntimeError):
    """A demo did not come to hang; the message says where it stopped."""


@dataclass(frozen=True, slots=True)
class RunningDemo:
    """A demo that hangs now. ``attach_pid`` is one of ``pids``; ``members`` maps each role to its process."""

    name: str
    attach_pid: int
    pids: tuple[int, ...]
    members: dict[str, Member]


@contextmanager
def start(name: str = DEFAULT_KIND) -> Iterator[RunningDemo]:
    """Start the demo of that name; on entry it hangs already, on exit all of it is gone.

    Raises KeyError for an unknown name and DemoFailed when it does not hang within a minute.
    """
    scene = find_scene(name)
    with ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="hangtrace-demo-", dir=_scratch()))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        weights = _make_weights(folder)
        deadline = time.monotonic() + _START_DEADLINE_S
        members: list[Member] = []
        if scene.needs_lock_holder:
            members += _launch(cleanup, ["hold-lock", str(folder)], members=1, deadline=deadline)[1]
        play = ["play", name, str(folder), str(weights.path), str(weights.size), str(weights.mappings)]
        launcher, others = _launch(cleanup, play, members=scene.members, deadline=deadline)
        members += others
        _await_blocked(members, deadline=deadline)
        by_role = {member.role: member for member in members}
        attach_pid = launcher if scene.attach_to == "launcher" else by_role[scene.attach_to].pid
        pids = dict.fromkeys(member.pid for member in sorted(members, key=lambda one: one.role))
        yield RunningDemo(name, attach_pid, tuple(pids), by_role)


def _scratch() -> str:
    # /tmp is often a tmpfs, where the pages of the sparse file could not be given back.
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK | os.X_OK):
        return "/var/tmp"
    return tempfile.gettempdir()


def _make_weights(folder: Path) -> Weights:
    """Make a sparse file and say how often each rank maps it, so that the sum of RSS exceeds the memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    each = total // _RANKS + total // (_RANKS * 10)
    most = _MAX_FILE_IN_MEMORY if _is_tmpfs(folder) else _MAX_FILE_ON_DISK
    mappings = -(-each // most)
    size = -(-each // mappings // (2 * _MIB)) * 2 * _MIB
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(size)
    return Weights(path, size, mappings)


def _is_tmpfs(folder: Path) -> bool:
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    return False


def _launch(
    cleanup: ExitStack, arguments: list[str], *, members: int, deadline: float
) -> tuple[int, list[Member]]:
    reader, writer = os.pipe()
    announcements = cleanup.enter_context(Connection(reader, writable=False))
    # The resource tracker of multiprocessing tidies up after killed processes and would complain about it.
    command = [sys.executable, "-W", "ignore:resource_tracker", "-m", "pyhangtrace.demo.stage"]
    try:
        process = subprocess.Popen(
            [*command, *arguments, str(writer)],
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(writer)
    cleanup.callback(_end, process, announcements)
    return process.pid, [_receive(announcements, deadline=deadline) for _ in range(members)]


def _receive(announcements: Connection, *, deadline: float) -> Member:
    if not announcements.poll(max(0.0, deadline - time.monotonic())):
        raise DemoFailed("the demo did not announce all of its processes in time")
    try:
        member = announcements.recv()
    except EOFError:
        raise DemoFailed("the demo ended before all of its processes had come up") from None
    assert isinstance(member, Member)
    return member


def _await_blocked(members: list[Member], *, deadline: float) -> None:
    """Wait until every member is in the wait it announced."""
    for member in members:
        while not _is_blocked(member):
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"{member.role} (pid {member.pid}) did not come to wait: {member.blocked.value}"
                )
            time.sleep(_POLL_S)


def _is_blocked(member: Member) -> bool:
    task = Path(f"/proc/{member.pid}/task/{member.tid}")
    try:
        state = (task / "stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        raise DemoFailed(f"{member.role} (pid {member.pid}) has ended") from None
    if member.blocked is Blocked.RUNNING:
        return state == "R"
    if member.blocked is Blocked.STOPPED:
        return state == "T"
    if state != "S":
        return False
    try:
        number = (task / "syscall").read_text().split()[0]
    except OSError:
        # Not permitted here: asleep after the announcement has to do.
        return True
    wanted = _SYSCALLS.get(platform.machine(), {}).get(member.blocked)
    return wanted is None or (number.isdigit() and int(number) in wanted)


def _end(process: subprocess.Popen[bytes], announcements: Connection) -> None:
    """Kill a launcher; its ranks die with it, stopped ones too. Returns when all of them are gone."""
    process.kill()
    process.wait()
    # Each of them has the other end: it is closed when the last one has ended.
    deadline = time.monotonic() + _END_DEADLINE_S
    try:
        while announcements.poll(max(0.0, deadline - time.monotonic())):
            announcements.recv()
    except EOFError:
        return
