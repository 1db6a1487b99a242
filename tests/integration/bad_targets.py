"""What the tests of bad targets share: the tool as a subprocess, and odd processes to point it at."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hangs.attach import tool
from tests.hangs.processes import await_gone, descendants, in_sessions

TARGETS = Path(__file__).parent / "targets"

#: Two looks, at most 3 s more for a wait that is young, and the deadline of a reader that got stuck.
LOOK_DEADLINE_S = 30.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Look:
    """What the tool did."""

    code: int
    out: str
    err: str
    wall_s: float

    @property
    def report(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


def look(*arguments: str, prefix: Sequence[str] = ()) -> Look:
    """Run ``hangtrace attach``. Whatever the target is, the tool ends in time and leaves nothing behind."""
    started = time.monotonic()
    process = subprocess.Popen(
        [*prefix, *tool(), "attach", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LOOK_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"not done after {LOOK_DEADLINE_S:.0f} s: {arguments}") from None
    wall = time.monotonic() - started
    await_that("no process of ours is left", lambda: not in_sessions({process.pid}))
    return Look(process.returncode, out, err, wall)


def assert_complete(seen: Look) -> None:
    """A complete report, or one clear sentence; never a traceback."""
    assert "Traceback" not in seen.err, seen.err
    assert seen.code in (0, 3, 4, 5, 6), (seen.code, seen.err)
    if seen.code in (0, 3):
        report = seen.report
        assert report["schema"] == "hangtrace.report/1"
        assert report["verdict"]["state"]
        assert report["verdict"]["summary"]
        assert not any(report["cost"]["stopped_us"].values())
    else:
        assert not seen.out.strip()
        lines = seen.err.strip().splitlines()
        assert lines
        assert len(lines) <= 4, seen.err


def compile_c(source: Path, built: Path, *flags: str) -> Path:
    """Compile one C file."""
    command = [os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread"]
    programs = TARGETS.parents[1] / "hangs" / "programs"
    subprocess.run(
        [*command, *flags, "-I", str(programs), "-o", str(built), str(source)], check=True, timeout=60
    )
    return built


@contextmanager
def started(*argv: str | Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end, with all below it."""
    process = subprocess.Popen([str(word) for word in argv], start_new_session=True, **options)
    try:
        yield process
    finally:
        below = descendants(process.pid)
        process.kill()
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended with its parent
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        await_gone(below)


def thread_states(pid: int) -> dict[int, str]:
    """State letter by thread."""
    states = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            states[int(task.name)] = (task / "stat").read_text(errors="replace").rpartition(") ")[2][:1]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return states


def status(pid: int, name: str) -> str:
    """One field of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith(name + ":"):
            return line.partition(":")[2].strip()
    raise AssertionError(f"no {name} in the status of {pid}")


def await_that(what: str, condition: Callable[[], object], *, deadline_s: float = 60.0) -> None:
    """Poll a condition until it holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(POLL_S)


def write_elf32(path: Path) -> Path:
    """Write a static 32-bit x86 program that pauses for ever: `again: mov eax, 29; int 0x80; jmp again`."""
    code = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"
    base, header, program_header = 0x08048000, 52, 32
    start = header + program_header
    elf = struct.pack(
        "<16sHHIIIIIHHHHHH",
        b"\x7fELF\x01\x01\x01".ljust(16, b"\0"),
        2,  # ET_EXEC
        3,  # EM_386
        1,
        base + start,
        header,
        0,
        0,
        header,
        program_header,
        1,
        0,
        0,
        0,
    )
    size = start + len(code)
    load = struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000)
    path.write_bytes(elf + load + code)
    path.chmod(0o755)
    return path


@contextmanager
def frozen_file_system(folder: Path) -> Iterator[tuple[Path, Any]]:
    """A small ext4 in a file, mounted; yields its mount point and a function that freezes it.

    Skips the test where this machine cannot. It is thawed again whatever happens.
    """
    for name in ("mkfs.ext4", "mount", "umount", "fsfreeze"):
        if shutil.which(name, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin") is None:
            pytest.skip(f"needs {name}")
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/sbin:/usr/sbin"}

    def run(*argv: str | Path) -> subprocess.CompletedProcess[bytes]:
        command = [str(word) for word in argv]
        return subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False)

    run("mkfs.ext4", "-q", image)
    if run("mount", "-o", "loop", image, mounted).returncode != 0:
        pytest.skip("cannot mount a file system in a file (no loop device, or not permitted)")
    try:

        def freeze() -> None:
            done = run("fsfreeze", "-f", mounted)
            assert done.returncode == 0, done.stderr

        yield mounted, freeze
    finally:
        run("fsfreeze", "-u", mounted)
        await_that("unmount", lambda: run("umount", mounted).returncode == 0)
