"""What a BPF iterator reads of sockets and pipes is what their owner set."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pyhangtrace import _native
from tests.targets import running

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032

# Prints what it has, as the reader should say it, and stays.
TARGET = """
import os, socket, struct, sys
ours, theirs = socket.socketpair()
ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 7, 0))
print("ready", flush=True)
sys.stdin.read()
"""

#: Reads its own descriptor 0.
ALONE = "from pyhangtrace import _native; import os; "
ALONE += "print(*_native.OpenFileReader().read({os.getpid(): [0]})['status'])"


@pytest.fixture
def reader() -> _native.OpenFileReader:
    reader = _native.OpenFileReader()
    state, reason = reader.read({os.getpid(): [0]})["status"]
    if state != "used":
        pytest.skip(f"needs BPF: {reason}")
    return reader


def timeouts(
    reader: _native.OpenFileReader, *files: socket.socket
) -> list[tuple[float | None, float | None]]:
    wanted = [file.fileno() for file in files]
    found = reader.read({os.getpid(): wanted})["sockets"]
    by_fd = {fd: (inode, (receive_s, send_s)) for _, fd, inode, receive_s, send_s, _ in found}
    assert set(by_fd) == set(wanted)
    assert all(by_fd[fd][0] == os.fstat(fd).st_ino for fd in wanted)
    return [by_fd[fd][1] for fd in wanted]


def limit(file: socket.socket, option: int, seconds: float) -> None:
    whole = int(seconds)
    file.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, round((seconds - whole) * 1e6)))


def test_the_time_that_tcp_waits_for_what_it_has_sent(reader: _native.OpenFileReader) -> None:
    ours, theirs = socket.socketpair()
    with socket.socket() as timed, socket.socket() as untimed, ours, theirs:
        timed.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_500)
        files = (timed, untimed, ours)
        found = reader.read({os.getpid(): [file.fileno() for file in files]})["sockets"]
        by_fd = {fd: user_s for _, fd, *_, user_s in found}
        assert [by_fd[file.fileno()] for file in files] == [20.5, None, None]


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_timeouts_of_sockets(reader: _native.OpenFileReader, family: int, kind: int) -> None:
    try:
        first, second = socket.socket(family, kind), socket.socket(family, kind)
    except OSError as error:
        pytest.skip(f"no such sockets here: {error.strerror}")
    with first, second:
        assert timeouts(reader, first, second) == [(None, None), (None, None)]
        limit(first, socket.SO_RCVTIMEO, 86400.5)
        limit(second, socket.SO_SNDTIMEO, 2)
        assert timeouts(reader, first, second) == [(86400.5, None), (None, 2.0)]
        limit(first, socket.SO_RCVTIMEO, 0)
        limit(first, socket.SO_SNDTIMEO, 0.25)
        [(receive_s, send_s)] = timeouts(reader, first)
        assert receive_s is None
        assert send_s == pytest.approx(0.25, abs=0.01)  # kept in ticks of the kernel's clock


def test_pipes_that_are_empty_full_and_in_between(reader: _native.OpenFileReader) -> None:
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)

        def fill() -> tuple[int, int]:
            pipes = reader.read({os.getpid(): [read_end, write_end]})["pipes"]
            [one] = {(queued, capacity) for _, _, _, queued, capacity in pipes}
            assert {fd for _, fd, _, _, _ in pipes} == {read_end, write_end}
            return one

        capacity = fcntl.fcntl(read_end, F_GETPIPE_SZ)
        assert fill() == (0, capacity)
        written = os.write(write_end, b"x" * 70) + os.write(write_end, b"y" * 9000)
        assert fill() == (written, capacity)
        os.read(read_end, 5000)
        assert fill() == (written - 5000, capacity)
        larger = fcntl.fcntl(write_end, F_SETPIPE_SZ, 1 << 20)
        written += os.write(write_end, b"z" * (2 << 20))
        assert fill() == (written - 5000, larger)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_sockets_of_another_process(reader: _native.OpenFileReader) -> None:
    with running(sys.executable, "-c", TARGET) as pid:
        fds = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        found = reader.read({pid: fds, os.getpid(): []})
        links = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in fds}
        assert {fd for fd, link in links.items() if link.startswith("socket:")} == {
            fd for _, fd, *_ in found["sockets"]
        }
        assert all(links[fd] == f"socket:[{inode}]" for _, fd, inode, *_ in found["sockets"])
        assert sorted(receive_s or 0 for _, _, _, receive_s, *_ in found["sockets"]) == [0, 7]


def test_who_is_not_there_any_more_has_nothing(reader: _native.OpenFileReader) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    found = reader.read({gone.pid: [0, 1, 2]})
    assert (found["sockets"], found["pipes"], found["status"]) == ([], [], ("used", ""))


def test_ids_are_those_of_the_pid_namespace_that_asks(reader: _native.OpenFileReader) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", ALONE]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(command, cwd=ROOT, stdin=theirs, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr:
        pytest.skip(f"needs a pid namespace: {done.stderr.strip()}")
    assert done.stdout.split() == ["used"], done.stderr


def test_without_type_information_nothing_is_said(tmp_path: Path) -> None:
    missing = _native.OpenFileReader(str(tmp_path / "none"))
    found = missing.read({os.getpid(): [0]})
    assert (found["sockets"], found["pipes"]) == ([], [])
    state, reason = found["status"]
    assert state == "absent"
    assert "type information" in reason


def test_without_rights_nothing_is_said() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    nobody = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
    done = subprocess.run(
        [*nobody, sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        pytest.skip("another user may not run this tree")
    assert done.stdout.startswith("refused ")
