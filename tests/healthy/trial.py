"""Start a healthy program, look at it from every member, and hold what is said against what may be said."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess, Popen, TimeoutExpired
from typing import Any

from tests.hangs import processes
from tests.hangs.attach import ATTACH_DEADLINE_S, look
from tests.hangs.ports import reserved_ports
from tests.hangs.processes import NotReached
from tests.healthy.facts import PROGRAMS, Well, postgres_binaries

#: How to look, in turn.
WAYS: tuple[tuple[str, ...], ...] = ((), ("-d", "0.1"), ("--no-bpf",), ("-d", "0.1", "--no-bpf"))
NO_SUCH_PROCESS = 5


@dataclass(slots=True)
class Tally:
    """What the looks at one program said."""

    states: Counter[str] = field(default_factory=Counter)
    gone: int = 0  # looks at a process that ended before
    defects: list[str] = field(default_factory=list)

    @property
    def looks(self) -> int:
        return self.states.total()


@contextmanager
def at_work(scene: Well) -> Iterator[list[Popen[bytes]]]:
    """The scene's programs, started and announced. Raises NotReached with the end of their output."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="healthy-")))
        announcements = processes.Announcements(scratch / "announce")
        stack.callback(announcements.close)
        places = {
            "python": sys.executable,
            "programs": str(processes.PROGRAMS),
            "here": str(PROGRAMS),
            "scratch": str(scratch),
            "port": str(stack.enter_context(reserved_ports(1))[0]),
            "postgres": str(postgres_binaries()),
        }
        started: list[Popen[bytes]] = []
        stack.callback(processes.end_sessions, started)
        log = scratch / "output"
        deadline = time.monotonic() + processes.START_DEADLINE_S
        try:
            for program in scene.programs:
                started += processes.start(program, places, log)
                missing = set(program.members)
                while missing:
                    missing -= set(announcements.read(missing, started, deadline=deadline))
        except NotReached as problem:
            output = log.read_text(errors="replace")[-3000:] if log.exists() else ""
            raise NotReached(f"{scene.name}: {problem}\n{output}") from None
        yield started


def members(started: list[Popen[bytes]]) -> list[int]:
    """All living processes of the scene, oldest ids first."""
    leaders = {one.pid for one in started if one.poll() is None}
    below = set().union(*map(processes.descendants, leaders))
    return sorted(pid for pid in leaders | below | processes.in_sessions(leaders) if processes.is_alive(pid))


def try_scene(scene: Well, *, looks: int, first: int = 0, keep: Path | None = None) -> Tally:
    """Look so often at the scene. `first` is the number of the first look, which chooses member and way.

    `keep` is a folder for the evidence of looks that went wrong. Raises NotReached.
    """
    tally = Tally()
    with at_work(scene) as started:
        for turn in range(first, first + looks):
            pids = members(started)
            if not pids:
                tally.defects.append(f"look {turn}: all of it has ended")
                break
            _one_look(scene, pids, turn, tally, keep)
            if failed := [one.args for one in started if one.poll() not in (None, 0)]:
                tally.defects.append(f"look {turn}: ended after it: {failed[0]}")
                break
    return tally


def _one_look(scene: Well, pids: list[int], turn: int, tally: Tally, keep: Path | None) -> None:
    # Each member is looked at in each way: the member moves on by one each time the ways are through.
    pid, way = pids[(turn + turn // len(WAYS)) % len(pids)], WAYS[turn % len(WAYS)]
    evidence = keep / f"{scene.name}-{turn}.hang" if keep else None
    title = _title(pid)
    try:
        done = look(pid, *way, *(("-o", str(evidence)) if evidence else ()))
    except TimeoutExpired:
        problems = [f"not done after {ATTACH_DEADLINE_S:.0f} s"]
    else:
        if done.returncode == NO_SUCH_PROCESS:
            tally.gone += 1
            return
        problems = _problems(scene, done, tally)
    tally.defects += [f"look {turn} at {title} {' '.join(way)}: {problem}" for problem in problems]
    if evidence and not problems:
        evidence.unlink(missing_ok=True)


def _problems(scene: Well, done: CompletedProcess[bytes], tally: Tally) -> list[str]:
    complaint = done.stderr.decode(errors="replace").strip()[-500:]
    if done.returncode not in (0, 3):
        return [f"exit code {done.returncode}: {complaint}"]
    report = json.loads(done.stdout)
    tally.states[report["verdict"]["state"]] += 1
    return judge(report, scene.states)


def judge(report: dict[str, Any], states: frozenset[str]) -> list[str]:
    """What is wrong with a report on a healthy program of which these states may be said."""
    verdict = report["verdict"]
    problems = []
    if verdict["state"] not in states:
        problems.append(f"{verdict['state']} ({verdict['confidence']}): {verdict['summary']}")
    elif verdict["culprits"] and verdict["state"] not in ("busy", "slow"):
        problems.append(f"{verdict['state']}, but it names {verdict['culprits']}: {verdict['summary']}")
    return problems


def _title(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"{pid} (gone)"
    return f"{pid} ({words.strip()[:60]})"
