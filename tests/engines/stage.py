"""Play a scene: the server, what stands beside it, what befalls it; on entry all members are where they should be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines import servers, venvs
from tests.engines.scenes import Scene
from tests.hangs.facts import Waits
from tests.hangs.ports import reserved_ports
from tests.hangs.processes import (
    Announcements,
    Member,
    NotReached,
    await_gone,
    await_reached,
    descendants,
    end_sessions,
    stat_fields,
)

PROGRAMS = Path(__file__).parents[1] / "hangs" / "programs"
#: Seconds from what befalls a server until it stands still.
REACH_DEADLINE_S = 180.0
#: Seconds a client waits for an answer that does not come.
CLIENT_PATIENCE_S = 900.0
_TITLES = {"engine": "VLLM::EngineCore", "detokenizer": "sglang::detokenizer"}
#: The kernel may read tens of megabytes ahead at a time, of which nothing shows before all of it is there.
THROTTLE_BPS = 10_000_000


@dataclass(frozen=True, slots=True)
class Played:
    """A scene that is reached. `env` is what the server was told."""

    scene: Scene
    members: dict[str, Member]
    scratch: Path
    log: Path
    started_s: float


@contextmanager
def played(scene: Scene) -> Iterator[Played]:
    """Starts a scene. Raises NotReached, with the end of the server's log, and NoEngine."""
    venvs.python(scene.engine)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-")))
        log = scratch / "server.log"
        try:
            yield _play(scene, scratch, log, stack)
        except NotReached as problem:
            said = log.read_text(errors="replace")[-4000:] if log.exists() else ""
            raise NotReached(f"{scene.name}: {problem}\n{said}") from None


def _play(scene: Scene, scratch: Path, log: Path, stack: ExitStack) -> Played:
    announcements = Announcements(scratch / "announce")
    stack.callback(announcements.close)
    [port] = stack.enter_context(reserved_ports(1))
    model = _model(scene)
    processes: list[subprocess.Popen[bytes]] = []
    stack.callback(end_sessions, processes)
    env = _told(scene, scratch, model, stack)
    members: dict[str, Member] = {}
    for role in scene.beside:
        processes.append(_beside(role, scratch, env))
        members.update(_renamed(role, announcements.read({role}, processes, deadline=time.monotonic() + 30)))
        if role == "peer":
            env["ENGINE_PEER"] = (scratch / "peer-port").read_text()
    started = time.monotonic()
    deadline = started + servers.START_DEADLINE_S
    writes_to, drained, reader = _log(scene, log, stack)
    if reader is not None:
        processes.append(reader)
        members["reader"] = Member("reader", reader.pid, reader.pid)
    server = servers.start(
        scene.engine,
        model=model,
        port=port,
        ranks=scene.ranks,
        scratch=scratch,
        log=writes_to,
        env=env,
        options=scene.options,
    )
    os.close(writes_to)
    processes.append(server)
    members["server"] = Member("server", server.pid, server.pid)
    announced = {f"rank{rank}" for rank in range(scene.ranks)}
    announced |= {role for role in scene.waits if "." in role}
    while missing := announced - set(members):
        members.update(announcements.read(missing, processes, deadline=deadline))
    if scene.serving is not None:
        servers.await_serving(server, port, deadline=deadline)
    for role, title in _TITLES.items():
        if role in scene.roles or f"kill {role}" in (scene.serving or ()):
            pid = _titled(server.pid, title)
            members[role] = Member(role, pid, pid)
    started_s = time.monotonic() - started
    for step in scene.serving or ():
        _do(step, port=port, model=model, members=members, scratch=scratch, drained=drained)
    await_reached(members, dict(scene.waits), deadline=time.monotonic() + REACH_DEADLINE_S)
    return Played(scene, members, scratch, log, started_s)


def _model(scene: Scene) -> Path:
    folder = venvs.cache() / f"model-{scene.vocabulary or 'tiny'}"
    if not (folder / ".complete").exists():
        servers.make_model(scene.engine, folder, vocabulary=scene.vocabulary)
        (folder / ".complete").touch()
    return folder


def _told(scene: Scene, scratch: Path, model: Path, stack: ExitStack) -> dict[str, str]:
    """Environment of the server."""
    cache = scratch / "kernels"
    cache.mkdir()
    env = {
        "HANGS_ANNOUNCE": str(scratch / "announce"),
        "ENGINE_HANG": scene.hang,
        "ENGINE_ARMED": str(scratch / "armed"),
        "ENGINE_CACHE_LOCK": str(cache / "kernels.lock"),
        "TORCH_EXTENSIONS_DIR": str(cache),
        **scene.env,
    }
    if scene.weights_gb is not None:
        weights = scratch / "model.safetensors"
        with weights.open("wb") as file:
            file.truncate(int(scene.weights_gb * 2**30))
        env.update(ENGINE_WEIGHTS=str(weights), ENGINE_MAPPINGS=str(scene.mappings))
    if scene.hang.endswith(":throttle"):
        env["ENGINE_CGROUP"] = str(_throttled(model, stack))
    return env


def _throttled(model: Path, stack: ExitStack) -> Path:
    """A control group whose members read from the model's disk slowly, and the model out of the page cache."""
    root = Path("/sys/fs/cgroup/blkio")
    group = root / f"hangtrace-engines-{os.getpid()}"
    device = os.stat(model).st_dev
    try:
        group.mkdir()
        stack.callback(_end_group, group, root)
        limit = f"{os.major(device)}:{os.minor(device)} {THROTTLE_BPS}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
    except OSError as problem:
        raise NotReached(f"reading cannot be throttled here: {problem}") from None
    for file in model.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return group


def _end_group(group: Path, root: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            (root / "cgroup.procs").write_text(pid)
    group.rmdir()


def _beside(role: str, scratch: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    commands = {
        "holder": ("hold_file_lock.py", "flock", env["ENGINE_CACHE_LOCK"]),
        "peer": ("silent_server.py", "tcp", str(scratch / "peer-port")),
    }
    program, *words = commands[role]
    command = [sys.executable, str(PROGRAMS / program), *words]
    return subprocess.Popen(
        command,
        env={**os.environ, "HANGS_ANNOUNCE": env["HANGS_ANNOUNCE"]},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _renamed(role: str, announced: dict[str, Member]) -> dict[str, Member]:
    [member] = announced.values()
    return {role: Member(role, member.pid, member.tid)}


def _log(
    scene: Scene, log: Path, stack: ExitStack
) -> tuple[int, threading.Event, subprocess.Popen[bytes] | None]:
    """Where the server writes; with a pipe, it is read into the log until the event is set, and a process that reads
    nothing is who has the other end then.
    """
    stop = threading.Event()
    if not scene.log_pipe:
        return os.open(log, os.O_WRONLY | os.O_CREAT), stop, None
    reads, writes = os.pipe()
    reader = subprocess.Popen(["sleep", "7200"], stdin=reads, start_new_session=True)

    def drain() -> None:
        with log.open("wb") as file:
            os.set_blocking(reads, False)
            while not stop.wait(0.05):
                with contextlib.suppress(BlockingIOError):
                    while piece := os.read(reads, 65536):
                        file.write(piece)
        os.close(reads)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)
    return writes, stop, reader


def _titled(root: int, title: str) -> int:
    """The process below `root` with this title. Raises NotReached."""
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
                return pid
    raise NotReached(f"there is no {title}")


def _do(
    step: str, *, port: int, model: Path, members: dict[str, Member], scratch: Path, drained: threading.Event
) -> None:
    what, _, role = step.partition(" ")
    if step == "ask":
        servers.ask(port, model, timeout=120)
    elif step == "ask in vain":
        servers.ask_in_vain(port, model, timeout=CLIENT_PATIENCE_S)
    elif step == "arm":
        (scratch / "armed").touch()
    elif step == "flood":
        drained.set()
        servers.flood(port, timeout=5)
    elif what == "stop":
        os.kill(members[role].pid, signal.SIGSTOP)
    elif what == "kill":
        member = members.pop(role)
        # Its command line goes with it, and its rank.
        members["killed"] = Member("killed", member.pid, member.tid)
        os.kill(member.pid, signal.SIGKILL)
        await_gone([member.pid])
    else:
        raise ValueError(step)


def harm_done(stage: Played) -> list[str]:
    """Members that have ended or stand still although they did not before the look."""
    harm = []
    for role, member in stage.members.items():
        wanted, fields = stage.scene.waits.get(role), stat_fields(member.pid, member.tid)
        if role == "killed":
            continue
        if fields is None or fields[0] in "ZX":
            harm.append(f"{role} has ended meanwhile")
        elif fields[0] in "Tt" and wanted is not Waits.STOPPED:
            harm.append(f"{role} is left in state {fields[0]}")
    return harm


def members_as_json(members: dict[str, Member]) -> str:
    """For a recorded scene: who was who."""
    return json.dumps({role: [member.pid, member.tid] for role, member in members.items()}, indent=1)
