"""Our stacks against those of debuggers, of processes that are held still while all of them look.

We look first, at the process as it is. Then it is stopped, which moves no thread that sleeps, and we look again, and
after us the others. A stack is wrong if no other tool shows the same PCs as far as ours goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyhangtrace import _native
from tests.stacks.job import PROGRAMS
from tests.stacks.peers import beside_python

STOP_DEADLINE_S = 20.0
PEER_DEADLINE_S = 300.0
#: Another name of /proc, below which the engine reads what anybody may, and asks the kernel for nothing more.
WITHOUT_RUNGS = "/proc/."

LOWEST_CODE = 0x1000  # nothing is ever mapped below

Pcs = dict[int, tuple[int, ...]]
PythonStack = tuple[tuple[str, str, int], ...]  # (file, bare name of the function, line), innermost first


@dataclass(slots=True)
class Tally:
    """What was found; lists name each thing that is not as it should be."""

    threads: int = 0  # asleep in a system call and unmoved
    complete: int = 0  # of these, by what anybody may read
    with_rungs: int = 0  # of these, by all that we may use here
    compared: int = 0  # stacks that some other tool shows too
    frames: int = 0  # of ours that were compared
    python: int = 0  # Python stacks compared
    wrong: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # ours differ though PC and SP are the same

    @property
    def completeness(self) -> float:
        return self.complete / max(1, self.threads)

    def __str__(self) -> str:
        return (
            f"{self.complete} of {self.threads} complete ({100 * self.completeness:.2f} %), {self.with_rungs} with all"
            f" rungs, {self.compared} stacks with {self.frames} frames compared,"
            f" {self.python} Python stacks, {len(self.wrong)} wrong"
        )


def missing() -> str | None:
    """Why nothing can be compared here."""
    return None if native_peers() else "needs gdb (with Python) or eu-stack"


def native_peers() -> dict[str, Callable[[int], Pcs]]:
    """The debuggers that are here: name -> PCs of a process by thread."""
    peers: dict[str, Callable[[int], Pcs]] = {}
    if shutil.which("eu-stack"):
        peers["eu-stack"] = eu_stack_pcs
    if shutil.which("gdb") and _gdb_has_python():
        peers["gdb"] = gdb_pcs
    return peers


def _gdb_has_python() -> bool:
    command = ["gdb", "-nx", "-batch", "-ex", "python print('it has')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_DEADLINE_S, check=False)
    return "it has" in done.stdout


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PEER_DEADLINE_S,
        env={**os.environ, "LC_ALL": "C", "DEBUGINFOD_URLS": ""},
        check=False,
    )
    return done.stdout


_EU_THREAD = re.compile(r"^TID (\d+):$")
_EU_FRAME = re.compile(r"^#\d+\s+0x([0-9a-f]+)")


def eu_stack_pcs(pid: int) -> Pcs:
    """PCs by thread, innermost first, as eu-stack prints them."""
    stacks: dict[int, list[int]] = {}
    current: list[int] = []
    for line in _output("eu-stack", "-n", "0", "-r", "-p", str(pid)).splitlines():
        if begins := _EU_THREAD.match(line):
            current = stacks.setdefault(int(begins[1]), [])
        elif shown := _EU_FRAME.match(line):
            current.append(int(shown[1], 16))
    return {tid: tuple(pcs) for tid, pcs in stacks.items()}


def gdb_pcs(pid: int) -> Pcs:
    """PCs by thread, innermost first, of the frames that gdb finds on the stack."""
    settings = ("set backtrace past-main on", "set backtrace past-entry on", "set debuginfod enabled off")
    arguments = [word for setting in settings for word in ("-ex", setting)]
    script = str(PROGRAMS / "gdb_pcs.py")
    found = {}
    for line in _output("gdb", "-nx", "-batch", "-p", str(pid), *arguments, "-x", script).splitlines():
        if line.startswith("PCS "):
            tid, pcs = json.loads(line[4:])
            # Behind code without table it takes whatever lies on the stack for a return address.
            found[tid] = tuple(pc for pc in pcs if pc >= LOWEST_CODE)
    return found


def py_spy_stacks(pid: int) -> dict[int, PythonStack]:
    """Python frames by thread, as py-spy shows them."""
    output = _output(beside_python("py-spy"), "dump", "--nonblocking", "--json", "--pid", str(pid))
    return {
        thread["os_thread_id"]: tuple((f["filename"], f["name"], f["line"]) for f in thread["frames"])
        for thread in json.loads(output)
    }


_PYSTACK_THREAD = re.compile(r"^Traceback for thread (\d+) ")
_PYSTACK_FRAME = re.compile(r'^    \(Python\) File "(.*)", line (\d+), in (.*)$')


def pystack_stacks(pid: int) -> dict[int, PythonStack]:
    """Python frames by thread, as pystack shows them."""
    stacks: dict[int, list[tuple[str, str, int]]] = {}
    current: list[tuple[str, str, int]] = []
    for line in _output(
        beside_python("pystack"), "remote", "--no-color", "--no-block", str(pid)
    ).splitlines():
        if begins := _PYSTACK_THREAD.match(line):
            current = stacks.setdefault(int(begins[1]), [])
        elif shown := _PYSTACK_FRAME.match(line):
            current.insert(0, (shown[1], shown[3], int(shown[2])))
    return {tid: tuple(frames) for tid, frames in stacks.items()}


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """A process of ours, all of its threads stopped by SIGSTOP for the time of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + STOP_DEADLINE_S
        while not all(state == "T" for state in _states(pid)):
            assert time.monotonic() < deadline, f"{pid} does not stop"
            time.sleep(0.005)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> Iterator[str]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield (task / "stat").read_text(errors="replace").rpartition(") ")[2][0]


def compare(pids: Sequence[int], *, python: bool = False) -> Tally:
    """Every sleeping thread of these processes, which are ours, compared with all tools that are here."""
    tally = Tally()
    engine, plain = _native.Engine(), _native.Engine(WITHOUT_RUNGS)
    peers = native_peers()
    for pid in pids:
        [first] = engine.capture([pid], python=False)
        with held(pid):
            [again] = engine.capture([pid], python=False)
            [by_anybody] = plain.capture([pid], python=False)
            [merged] = engine.capture([pid], python=True)
            shown = {name: peer(pid) for name, peer in peers.items()}
            frames = [py_spy_stacks(pid), pystack_stacks(pid)] if python else []
        assert again["error"] is None, again["error"]
        _compare_native(tally, pid, first, again, by_anybody, shown)
        if python:
            _compare_python(tally, pid, merged, frames)
    return tally


def _compare_native(
    tally: Tally, pid: int, first: Any, again: Any, by_anybody: Any, shown: dict[str, Pcs]
) -> None:
    before = {thread["tid"]: thread for thread in first["threads"]}
    without_rungs = {thread["tid"]: thread for thread in by_anybody["threads"]}
    for thread in again["threads"]:
        tid = thread["tid"]
        earlier = before.get(tid)
        ours = _pcs(thread)
        label = f"{pid}/{tid} {thread['comm']} in {thread['syscall']}"
        stayed = earlier is not None and _stayed(earlier, thread)
        if stayed and earlier["syscall"] is not None and earlier["syscall"] >= 0 and not earlier["moved"]:
            tally.threads += 1
            tally.with_rungs += earlier["complete"]
            if without_rungs[tid]["complete"]:
                tally.complete += 1
            else:
                tally.incomplete.append(f"{label}: {without_rungs[tid]['stack_problem']}")
            if _pcs(earlier) != ours:
                tally.changed.append(f"{label}: {_hex(_pcs(earlier))} then {_hex(ours)}")
        for what, one in (("", thread), (" without rungs", without_rungs[tid])):
            others = {name: pcs[tid] for name, pcs in shown.items() if pcs.get(tid)}
            if not others or not one["frames"]:
                continue
            mine = _pcs(one)
            if not what:
                tally.compared += 1
                tally.frames += len(mine)
            if not any(_agree(mine, theirs) for theirs in others.values()):
                told = "; ".join(f"{name} {_hex(theirs)}" for name, theirs in others.items())
                tally.wrong.append(f"{label}{what} ({one['stack_from']}): {_hex(mine)}; {told}")


def _stayed(earlier: Any, stopped: Any) -> bool:
    """Whether a thread ran for nothing but the stop, which takes one turn on the CPU, since we looked first.

    The same PC and SP are not enough: what works in rounds comes back to them by another way.
    """
    where = ("pc", "sp")
    return (
        all(earlier[word] == stopped[word] for word in where) and stopped["slices"] - earlier["slices"] <= 1
    )


def _agree(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """The same as far as both go; a zero at the end of a stack is no frame."""
    length = min(len(ours), len(theirs))
    return ours[:length] == theirs[:length]


def _compare_python(tally: Tally, pid: int, merged: Any, peers: list[dict[int, PythonStack]]) -> None:
    for thread in merged["threads"]:
        tid = thread["tid"]
        ours = _python_frames(thread)
        others = [peer[tid] for peer in peers if peer.get(tid)]
        if not others:
            continue
        tally.python += 1
        if ours not in others:
            tally.wrong.append(f"{pid}/{tid} {thread['python_name']}: {ours}; {others}")


def _python_frames(thread: Any) -> PythonStack:
    frames = [frame for frame in thread["frames"] if frame[0] == "python"] or thread["unmerged_python"]
    return tuple((file, name.rpartition(".")[2], line) for _, name, file, line, *_ in frames)


def _pcs(thread: Any) -> tuple[int, ...]:
    return tuple(frame[5] for frame in thread["frames"])


def _hex(pcs: tuple[int, ...]) -> str:
    return " ".join(f"{pc:x}" for pc in pcs)
