"""The client of NCCL's RAS service, against servers that speak as its releases do, badly, or not at all."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pyhangtrace.collect import ras
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.ras import RasAnswer, RasFormat
from tests.unit.collect.helpers import program, write
from tests.unit.collect.ras_server import Answer, Server, serving, speaks

ANSWERS = Path(__file__).parent / "ras_answers"
TEXT = (ANSWERS / "mismatch-2.27.7.txt").read_text()
JSON = (ANSWERS / "stopped-2.32.3.json").read_text()
OLD = ["CLIENT PROTOCOL 2", "SET FORMAT json", "TIMEOUT 1", "VERBOSE STATUS"]
NEW = ["CLIENT PROTOCOL 2", "SET FORMAT json", "TIMEOUT 1", "STATUS"]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server of these tests may answer late."""
    monkeypatch.setattr(ras, "_PATIENCE_S", 20.0)
    monkeypatch.setattr(ras, "_ACCEPT_S", 20.0)


def question(server: Server, **more: object) -> ras.Question:
    asked = ras.Question(
        port=server.port,
        members=(os.getpid(),),
        asked=(os.getpid(),),
        json_only=False,
        leg_timeout_s=1,
        deadline_s=10.0,
    )
    return replace(asked, **more)


def ask(answer: Answer, **more: object) -> tuple[RasAnswer | None, SourceStatus, list[list[str]]]:
    with serving(answer) as server:
        found, status = ras.query(question(server, **more))
        return found, status, server.said


def test_text_of_a_release_without_json() -> None:
    found, status, said = ask(speaks(TEXT))
    assert (status.state, said) == (SourceState.USED, [OLD])
    assert found is not None
    assert (found.format, found.nccl_version, found.complete) == (RasFormat.TEXT, "2.27.7", True)
    assert (found.answered_by, found.unknown) == (os.getpid(), ())
    assert found.address.startswith("127.0.0.1:")


def test_json_where_there_is_some() -> None:
    found, status, said = ask(speaks("", json=JSON))
    assert (status.state, said) == (SourceState.USED, [NEW])
    assert found is not None
    assert (found.format, found.nccl_version) == (RasFormat.JSON, "2.32.3")


def test_where_text_is_dangerous_it_is_not_asked_for() -> None:
    found, status, said = ask(speaks(TEXT), json_only=True)
    assert (found, status.state, said) == (None, SourceState.SKIPPED, [OLD[:2]])


def test_an_address_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with serving(speaks(TEXT), host="::1") as server:
        found, status = ras.query(question(server))
    assert status.state is SourceState.USED
    assert found is not None
    assert found.address == f"[::1]:{server.port}"


def test_a_process_that_does_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_ACCEPT_S", 0.5)
    with serving(speaks(TEXT), accepts=False) as server:
        found, status = ras.query(question(server, deadline_s=2.0))
    assert (found, status.state) == (None, SourceState.TIMED_OUT)
    assert "connections was accepted: who listens is stopped" in status.reason


def test_a_process_that_accepts_and_keeps_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_PATIENCE_S", 1.0)
    found, status, said = ask(lambda connection, line: True)
    assert (found, status.state, said) == (None, SourceState.TIMED_OUT, [OLD[:1]])


def test_the_deadline_holds_in_all() -> None:
    def drips(connection: socket.socket, line: str) -> bool:
        if not line.endswith("STATUS"):
            return speaks(TEXT)(connection, line)
        connection.sendall(TEXT[:100].encode())
        return True

    began = time.monotonic()
    found, status, said = ask(drips, deadline_s=5.0)
    assert time.monotonic() - began < 15.0
    assert (status.state, said) == (SourceState.FAILED, [OLD])
    assert found is not None
    assert (found.complete, found.nccl_version) == (False, "2.27.7")


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 5000, b"\xff\xfe\n"])
def test_another_service(reply: bytes) -> None:
    def answer(connection: socket.socket, line: str) -> bool:
        connection.sendall(reply)
        return False

    found, status, said = ask(answer)
    assert (found, status.state, said) == (None, SourceState.FAILED, [OLD[:1]])
    assert "is not RAS" in status.reason


@pytest.mark.parametrize("report", ["", "hello\n" * 20, "\0\xff", '{"communicators": 7}'])
def test_a_report_that_is_none(report: str) -> None:
    for answer in (speaks(report), speaks("", json=report)):
        found, status, _ = ask(answer)
        assert (found, status.state) == (None, SourceState.FAILED)


def test_half_a_report() -> None:
    found, status, _ = ask(speaks(TEXT[: TEXT.index("Warnings")]))
    assert (status.state, status.reason) == (SourceState.FAILED, "the answer ended too early")
    assert found is not None
    assert not found.complete
    assert ask(speaks("", json=JSON[:400]))[0] is None


def test_a_report_without_end() -> None:
    def answer(connection: socket.socket, line: str) -> bool:
        if not line.endswith("STATUS"):
            return speaks(TEXT)(connection, line)
        connection.sendall(TEXT.encode())
        for _ in range(40):
            connection.sendall(b"#0-0 (0123456789abcdef) MISMATCH\n" * 16_384)
        return False

    found, status, _ = ask(answer, deadline_s=30.0)
    assert status.state is SourceState.FAILED
    assert found is not None
    assert not found.complete
    assert len(found.communicators) == 2


def test_it_hangs_up() -> None:
    found, status, _ = ask(lambda connection, line: False)
    assert (found, status.state) == (None, SourceState.FAILED)


def test_nobody_of_the_job_listens() -> None:
    with serving(speaks(TEXT)) as server:
        found, status = ras.query(question(server, members=(1,)))
        assert (found, status.state, server.said) == (None, SourceState.ABSENT, [])
    found, status = ras.query(question(server))
    assert (found, status.state) == (None, SourceState.ABSENT)
    assert "RAS has not started" in status.reason


SHARES_A_PORT = """
import socket, sys
from tests.unit.collect.ras_server import _serve, speaks
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
print("ready", flush=True)
stop, stopped = socket.socketpair()
_serve(listener, stopped, speaks(open(sys.argv[2]).read()), [])
"""


def test_another_job_on_the_same_port_hears_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_text(TEXT)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with (
            program(SHARES_A_PORT, str(port), str(report)) as ours,
            program(SHARES_A_PORT, str(port), str(ANSWERS / "stopped-2.27.7.txt")),
        ):
            for _ in range(4):
                found, status = ras.query(question(Server(port), members=(ours.pid,), asked=(ours.pid,)))
                assert status.state is SourceState.USED, status.reason
                assert found is not None
                assert found.answered_by == ours.pid
                assert found.communicators[0].hash == "dfdc24fb47aee1e5"


def test_of_two_members_the_one_that_was_named_is_asked(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        with (
            program(SHARES_A_PORT, port, str(ANSWERS / "mismatch-2.27.7.txt")) as first,
            program(SHARES_A_PORT, port, str(ANSWERS / "mismatch-2.27.7.txt")) as second,
        ):
            members = (first.pid, second.pid)
            for named in members * 2:
                found, _ = ras.query(question(Server(int(port)), members=members, asked=(named,)))
                assert found is not None
                assert found.answered_by == named


IN_A_CONTAINER = """
import ctypes, fcntl, socket, struct, sys
from tests.unit.collect.ras_server import _serve, speaks
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x40000000):
    print("ready refused", flush=True)
    sys.stdin.read()
with socket.socket() as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))
listener = socket.create_server(("127.0.0.1", 28028))
print("ready", flush=True)
stop, stopped = socket.socketpair()
_serve(listener, stopped, speaks(open(sys.argv[1]).read()), [])
"""


def test_a_container_with_a_network_of_its_own() -> None:
    if os.geteuid() != 0:
        pytest.skip("entering a network namespace needs root")
    ours = os.readlink("/proc/self/ns/net")
    with program(IN_A_CONTAINER, str(ANSWERS / "mismatch-2.27.7.txt")) as child:
        if os.readlink(f"/proc/{child.pid}/ns/net") == ours:
            pytest.skip("no network namespace can be made here")
        found, status = ras.query(question(Server(28028), members=(child.pid,)))
    assert (status.state, status.reason) == (SourceState.USED, "")
    assert found is not None
    assert found.answered_by == child.pid
    assert os.readlink("/proc/self/ns/net") == ours


def settings(tmp_path: Path, files: dict[str, str | bytes]) -> tuple[int, str | None]:
    write(tmp_path, files)
    with GuardedReader(TASKS, proc_root=str(tmp_path)) as reader:
        return ras._port(reader, [7])


def test_settings_of_the_job(tmp_path: Path) -> None:
    assert settings(tmp_path / "a", {"7/environ": b"A=1\0"}) == (28028, None)
    assert settings(tmp_path / "b", {"7/environ": b"NCCL_RAS_ADDR=localhost:4000\0"}) == (4000, None)
    assert settings(tmp_path / "c", {"7/environ": b"NCCL_RAS_ENABLE=0\0"})[1] is not None
    files: dict[str, str | bytes] = {
        "7/environ": b"HOME=/home/x\0",
        "7/root/home/x/.nccl.conf": "NCCL_RAS_ADDR=[::1]:4001\n",
        "7/root/etc/nccl.conf": "# all jobs\nNCCL_RAS_ADDR = localhost:4002\n",
    }
    assert settings(tmp_path / "d", files)[0] == 4001
    files["7/environ"] = b"HOME=/home/x\0NCCL_RAS_ENABLE=1\0NCCL_CONF_FILE=/else\0"
    files["7/root/else"] = "NCCL_RAS_ENABLE=0\n"
    assert settings(tmp_path / "e", files) == (4002, None)


@pytest.mark.parametrize(
    ("address", "port"),
    [("", 28028), ("localhost:1", 1), ("[::1]:70000", 28028), ("host", 28028), ("a:b", 28028)],
)
def test_ports(address: str, port: int) -> None:
    assert ras.port_of(address) == port
