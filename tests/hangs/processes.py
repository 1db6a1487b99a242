"""Start programs, see in /proc that they are where they said, and end every process of theirs."""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hangs.facts import Case, Program, Waits
from tests.hangs.ports import reserved_ports

PROGRAMS = Path(__file__).parent / "programs"
START_DEADLINE_S = 90.0
END_DEADLINE_S = 20.0
POLL_S = 0.02
# Twice the same picture, this far apart, is taken for a wait and not for a passage.
STABLE_S = 0.1

COMPILERS = ("cc1", "cc1plus", "clang", "ptxas", "cicc")

# <asm/unistd_64.h> and <asm-generic/unistd.h>
_SYSCALLS: dict[str, dict[Waits, frozenset[int]]] = {
    "x86_64": {
        Waits.LOCK: frozenset({202, 449}),
        Waits.FILE_LOCK: frozenset({72, 73}),
        Waits.READ: frozenset({0, 17, 19, 45, 47}),
        Waits.WRITE: frozenset({1, 18, 20, 44, 46}),
        Waits.POLL: frozenset({7, 23, 232, 270, 271, 281}),
        Waits.ACCEPT: frozenset({43, 288}),
        # Python up to 3.10 sleeps in select.
        Waits.SLEEP: frozenset({23, 34, 35, 128, 230, 270}),
        Waits.CHILD: frozenset({61, 247}),
    },
    "aarch64": {
        Waits.LOCK: frozenset({98, 449}),
        Waits.FILE_LOCK: frozenset({25, 32}),
        Waits.READ: frozenset({63, 65, 67, 207, 212}),
        Waits.WRITE: frozenset({64, 66, 68, 206, 211}),
        Waits.POLL: frozenset({22, 72, 73}),
        Waits.ACCEPT: frozenset({202, 242}),
        Waits.SLEEP: frozenset({72, 101, 115, 133, 137}),
        Waits.CHILD: frozenset({95, 260}),
    },
}

#: Asks for SIGKILL when we end (PR_SET_PDEATHSIG) and becomes the program; a preexec_fn is not safe with threads.
_DIE_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class NotReached(Exception):
    """A program did not come to the state its case describes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process or thread of a running case, under the role it announced."""

    role: str
    pid: int
    tid: int

    @property
    def rank(self) -> int | None:
        """The rank that the role speaks of: 3 for ``rank3`` and for ``rank3.writer``."""
        head = self.role.partition(".")[0]
        return int(head[4:]) if head.startswith("rank") and head[4:].isdigit() else None


@dataclass(frozen=True, slots=True)
class Running:
    """A case whose members all are where they should be."""

    case: Case
    members: dict[str, Member]
    scratch: Path


# -- what /proc says -----------------------------------------------------------------------------------------


def stat_fields(pid: int, tid: int | None = None) -> list[str] | None:
    """Fields of stat from the state on (proc(5) numbers them from 3), or None when it is gone."""
    path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
    try:
        return Path(path).read_text(errors="replace").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def await_gone(pids: Iterable[int]) -> None:
    """Wait until none of the processes is alive. Raises NotReached after a deadline."""
    deadline = time.monotonic() + END_DEADLINE_S
    for pid in pids:
        while is_alive(pid):
            if time.monotonic() > deadline:
                raise NotReached(f"pid {pid} is still there")
            time.sleep(POLL_S)


def descendants(pid: int) -> set[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


def _picture(member: Member, waits: Waits) -> str | None:
    """What must stay the same while the member waits; None when it is not there (yet)."""
    fields = stat_fields(member.pid, member.tid)
    if fields is not None and waits is Waits.ENDED:
        return fields[0] if fields[0] == "Z" else None
    if fields is None or fields[0] in "ZX":
        raise NotReached(f"{member.role} (pid {member.pid}) has ended")
    state = fields[0]
    if waits is Waits.ANY:
        return state
    if waits is Waits.STOPPED:
        return state if state == "T" else None
    if waits is Waits.TRACED:
        return state if state == "t" else None
    if waits is Waits.RUNNING:
        return state if state == "R" else None
    if waits is Waits.COMPILER:
        return "compiles" if any(map(_is_compiling, descendants(member.pid))) else None
    if state not in "SD":
        return None
    line = Path(f"/proc/{member.pid}/task/{member.tid}/syscall").read_text().split()
    if waits is Waits.ASLEEP:
        return " ".join(line[:3]) if line[0] != "running" else None
    numbers = _SYSCALLS[platform.machine()][waits]
    return " ".join(line[:3]) if line[0].isdigit() and int(line[0]) in numbers else None


def _is_compiling(pid: int) -> bool:
    try:
        comm = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return False
    fields = stat_fields(pid)
    return comm in COMPILERS and fields is not None and fields[0] == "R"


def await_reached(members: dict[str, Member], wanted: dict[str, Waits], *, deadline: float) -> None:
    """Wait until every member shows the same wanted picture twice."""
    seen: dict[str, tuple[str | None, float]] = {}
    left = dict(wanted)
    while left:
        for role, waits in list(left.items()):
            now, time_now = _picture(members[role], waits), time.monotonic()
            before, since = seen.get(role, (None, time_now))
            if now is None or now != before:
                seen[role] = (now, time_now)
            elif waits is Waits.ANY or time_now - since >= STABLE_S:
                del left[role]
        if left and time.monotonic() > deadline:
            role, waits = next(iter(left.items()))
            member = members[role]
            raise NotReached(f"{role} (pid {member.pid}, tid {member.tid}) is not in {waits.value}")
        if left:
            time.sleep(POLL_S)


# -- start and end -------------------------------------------------------------------------------------------


@contextmanager
def running(case: Case) -> Iterator[Running]:
    """Start the programs of a case one after the other; on entry every member is where it should be.

    Raises NotReached when one is not, with the end of its output.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hangs-")))
        announcements = Announcements(scratch / "announce")
        stack.callback(announcements.close)
        ports = stack.enter_context(reserved_ports(2))
        sessions: list[subprocess.Popen[bytes]] = []
        stack.callback(end_sessions, sessions)
        members: dict[str, Member] = {}
        log = scratch / "output"
        deadline = time.monotonic() + START_DEADLINE_S
        places = {"python": sys.executable, "programs": str(PROGRAMS), "scratch": str(scratch)}
        places["repository"] = str(PROGRAMS.parents[2])
        places["port"], places["port2"] = map(str, ports)
        try:
            for program in case.programs:
                sessions += start(program, places, log)
                while missing := set(program.members) - set(members):
                    members.update(announcements.read(missing, sessions, deadline=deadline))
                await_reached(members, dict(program.members), deadline=deadline)
        except NotReached as problem:
            output = log.read_text(errors="replace")[-3000:] if log.exists() else ""
            raise NotReached(f"{case.kind}: {problem}\n{output}") from None
        yield Running(case, members, scratch)


class Announcements:
    """A named pipe to which members write who they are, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # Read and write, so that it does not end when the first writer closes it.
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._rest = b""

    def close(self) -> None:
        os.close(self._fd)

    def read(
        self, missing: set[str], sessions: list[subprocess.Popen[bytes]], *, deadline: float
    ) -> dict[str, Member]:
        """Read what has come; waits for at least one line. Raises NotReached when nothing can come any more."""
        while b"\n" not in self._rest:
            if select.select([self._fd], [], [], 0.2)[0]:
                self._rest += os.read(self._fd, 65536)
            elif time.monotonic() > deadline:
                raise NotReached(f"not announced in time: {', '.join(sorted(missing))}")
            elif failed := [one for one in sessions if one.poll() not in (None, 0)]:
                raise NotReached(f"exit code {failed[0].returncode} before {', '.join(sorted(missing))} came")
        lines, _, self._rest = self._rest.rpartition(b"\n")
        found = [Member(**json.loads(line)) for line in lines.splitlines()]
        return {member.role: member for member in found}


def start(program: Program, places: dict[str, str], log: Path) -> list[subprocess.Popen[bytes]]:
    """Starts the command of a program, or one for each of its ranks. `places` is what stands in braces."""
    scratch = Path(places["scratch"])

    def command(**more: str) -> list[str]:
        return [_executable(word.format(**places, **more), scratch, program.argv[0]) for word in program.argv]

    env = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROGRAMS), os.environ.get("PYTHONPATH")))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HANGS_ANNOUNCE": str(scratch / "announce"),
        **{name: value.format(**places) for name, value in program.env.items()},
    }
    if not program.ranks:
        return [_spawn(command(), env, log, stdin_open=program.stdin_open)]
    if not program.variables:
        return [_spawn(command(rank=str(rank)), env, log, stdin_open=False) for rank in program.ranks]
    world_size = str(program.world_size or len(program.ranks))
    ranked = {"WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": places["port"]}
    return [
        _spawn(
            command(), {**ranked, **env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log, stdin_open=False
        )
        for rank in program.ranks
    ]


def _spawn(argv: list[str], env: dict[str, str], log: Path, *, stdin_open: bool) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_US, *argv],
            env=env,
            stdin=subprocess.PIPE if stdin_open else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _executable(word: str, scratch: Path, launcher: str) -> str:
    if not word.endswith(".c"):
        return word
    source, built = Path(word), scratch / Path(word).stem
    if not built.exists():
        flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
        compiler = os.environ.get("CC", "cc")
        if word.endswith(".mpi.c"):
            compiler = launcher.replace("mpirun", "mpicc")
            # MPICH's way to say that no status is wanted is an array of none.
            flags.append("-Wno-stringop-overflow")
        command = [compiler, *flags, "-I", str(PROGRAMS), "-o", str(built), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise NotReached(f"cannot compile {source.name}: {done.stderr}")
    return str(built)


def end_sessions(leaders: list[subprocess.Popen[bytes]]) -> None:
    """Kill all below these and in sessions that they lead, stopped ones too, and wait until they are gone."""
    sessions = {leader.pid for leader in leaders}
    # Some launchers give each rank a session of its own.
    sessions.update(*(descendants(leader.pid) for leader in leaders))
    deadline = time.monotonic() + END_DEADLINE_S
    while left := in_sessions(sessions):
        # multiprocessing's resource tracker ends by itself and removes the semaphores of the dead.
        late = time.monotonic() > deadline - END_DEADLINE_S / 2
        for pid in left:
            if late or not _is_resource_tracker(pid):
                _kill(pid)
        for leader in leaders:
            leader.poll()
        if time.monotonic() > deadline:
            raise NotReached(f"cannot end {sorted(left)}")
        time.sleep(POLL_S)
    for leader in leaders:
        leader.wait(END_DEADLINE_S)
        if leader.stdin is not None:
            leader.stdin.close()


def in_sessions(sessions: set[int]) -> set[int]:
    """Living processes of these sessions."""
    found = set()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in "ZX" and int(fields[3]) in sessions:
            found.add(pid)
    return found


def _is_resource_tracker(pid: int) -> bool:
    fields = stat_fields(pid)
    if fields is None or fields[0] == "D":
        return False  # its command line may not be had as long as its memory map is locked
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was quicker
