"""Play a plan, look at it once everybody is where the plan wants them, and compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyhangtrace.engine import AttachOptions, attach
from pyhangtrace.model.codec import pack, report_to_json
from tests.hangs.facts import Program, Waits
from tests.hangs.processes import (
    POLL_S,
    Announcements,
    Member,
    NotReached,
    await_reached,
    end_sessions,
    start,
    stat_fields,
)
from tests.hangs.processes import PROGRAMS as ANNOUNCE
from tests.lockgraphs.compare import Compared, compare
from tests.lockgraphs.kinds import Language
from tests.lockgraphs.plan import Last, Plan, Player
from tests.lockgraphs.shapes import draw
from tests.lockgraphs.truth import truth_of

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 60.0

_FILE_LOCKS = ("flock", "fcntl", "ofd")
_PLACES = {
    Last.SLEEP: Waits.SLEEP,
    Last.PAUSE: Waits.SLEEP,
    Last.ACCEPT: Waits.ACCEPT,
    Last.CHILD: Waits.CHILD,
    Last.COMPUTE: Waits.RUNNING,
    Last.WANT: Waits.LOCK,
    Last.SHARE: Waits.LOCK,
    Last.TIMED: Waits.LOCK,
    Last.AWAIT: Waits.LOCK,
    Last.JOIN: Waits.LOCK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one look at one plan went."""

    plan: Plan
    compared: Compared
    verdict: str
    wall_s: float
    report: Mapping[str, Any]
    evidence: bytes
    members: Mapping[str, Member]


def build(folder: Path) -> Path:
    """Compiles the program that plays plans. Raises NotReached when the system's compiler does not."""
    built = folder / "lockplay"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    source = PROGRAMS / "lockplay.cpp"
    command = [os.environ.get("CXX", "c++"), *flags, "-I", str(ANNOUNCE), "-o", str(built), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise NotReached(f"cannot compile {source.name}: {done.stderr}")
    return built


def try_plan(plan: Plan, lockplay: Path, *, python: str = sys.executable) -> Trial:
    """Plays, looks and compares. Raises NotReached when the program does not come to where it should be."""
    argv = (str(lockplay),) if plan.language is Language.CPP else (python, str(PROGRAMS / "lockplay.py"))
    with playing(plan, argv) as members:
        began = time.monotonic()
        main = members[plan.players[0].name]
        result = attach([main.pid], AttachOptions())
        wall = time.monotonic() - began
    report = json.loads(report_to_json(result.report))
    verdict = report["verdict"]
    words = (verdict["state"], verdict["symptom"], verdict["cause"], verdict["confidence"])
    return Trial(
        plan=plan,
        compared=compare(report, plan, truth_of(plan), members),
        verdict=f"{' / '.join(map(str, words))}: {verdict['summary']}",
        wall_s=wall,
        report=report,
        evidence=pack(result.evidence),
        members=members,
    )


def try_seed(seed: int, lockplay: Path, python: str = sys.executable) -> Trial | str:
    """The trial of the plan of a seed, or why its program did not come to where it should be."""
    try:
        return try_plan(draw(seed), lockplay, python=python)
    except NotReached as problem:
        return str(problem)


@contextmanager
def playing(plan: Plan, argv: tuple[str, ...]) -> Iterator[dict[str, Member]]:
    """On entry all threads are where the plan wants them. Raises NotReached when one is not."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockgraphs-")))
        announcements = Announcements(folder / "announce")
        stack.callback(announcements.close)
        (folder / "plan").write_text(plan.text())
        gates = [_Gate(folder / name) for name in ("fork", "go")]
        for gate in gates:
            stack.callback(gate.close)
        program = Program(argv=(*argv, str(folder / "plan")), members={})
        places = {"scratch": str(folder)}
        sessions: list[subprocess.Popen[bytes]] = []
        stack.callback(end_sessions, sessions)
        deadline = time.monotonic() + DEADLINE_S
        members: dict[str, Member] = {}
        try:
            sessions += start(program, places, folder / "output")
            for gate, late in zip(gates, (False, True), strict=True):
                wanted = {one.name for one in plan.players if late or not _is_late(plan, one)}
                while missing := wanted - set(members):
                    members.update(announcements.read(missing, sessions, deadline=deadline))
                gate.close()
            _settle(plan, members, deadline)
        except NotReached as problem:
            output = (folder / "output").read_text(errors="replace")[-2000:]
            raise NotReached(f"{problem}\n{output}") from None
        yield members


class _Gate:
    """A named pipe that ends for its readers when this closes it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._file)


def _is_late(plan: Plan, player: Player) -> bool:
    return plan.processes[player.process].late


def _settle(plan: Plan, members: dict[str, Member], deadline: float) -> None:
    for player in plan.players:
        member = members[player.name]
        while player.last is Last.EXIT and stat_fields(member.pid, member.tid) is not None:
            if time.monotonic() > deadline:
                raise NotReached(f"{player.name} does not end")
            time.sleep(POLL_S)
    wanted = {player.name: _place(plan, player) for player in plan.players if player.last is not Last.EXIT}
    await_reached(members, wanted, deadline=deadline)


def _place(plan: Plan, player: Player) -> Waits:
    thing = plan.thing(player.on)
    if thing is not None and player.last is Last.WANT and thing.kind in _FILE_LOCKS:
        return Waits.FILE_LOCK
    if thing is not None and player.last is Last.AWAIT and thing.kind == "pipe":
        return Waits.READ
    return _PLACES.get(player.last, Waits.ANY)
