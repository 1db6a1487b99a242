"""Two processes that wait for each other over a socket: whether that ends by itself is a matter of its timeouts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyhangtrace._native", reason="needs the compiled extension (make setup)")

from pyhangtrace import _native
from tests.targets import running, until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
TOOL = str(Path(sys.executable).parent / "hangtrace")
AS_NOBODY = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
SENDTO, RECVFROM = 44, 45

# usage: FAMILY SECONDS; both ends read again and again, and nobody writes. With `user` both write, and nobody reads,
# and the seconds are those that TCP waits for what it has sent to be taken.
CIRCLE = """
import os, socket, struct, sys
family, limit_s = sys.argv[1], int(sys.argv[2])
writes = family == "user"
if family == "unix":
    ends = socket.socketpair()
else:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
for end in ends:
    if writes:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_s * 1000)
    else:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", limit_s, 0))
child = os.fork()
ends[not child].close()
if child:
    print("ready", flush=True)
while True:
    try:
        if writes:
            ends[bool(child)].send(bytes(100_000))
        elif not ends[bool(child)].recv(1):
            sys.exit()  # the other one has been killed
    except BlockingIOError:
        pass
"""


@contextmanager
def circle(family: str, limit_s: int, *prefix: str) -> Iterator[int]:
    """The pid of the one who started the other."""
    with running(*prefix, sys.executable, "-c", CIRCLE, family, str(limit_s), cwd=ROOT) as pid:
        call = SENDTO if family == "user" else RECVFROM
        for one in (pid, *children(pid)):
            until(lambda seen: seen["threads"][0]["syscall"] == call, one, _native.Engine())
        yield pid


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def report(pid: int, *prefix: str, options: tuple[str, ...] = ()) -> Any:
    words = [*prefix, TOOL, "attach", str(pid), "--json", *options]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def status(found: Any) -> Any:
    [one] = [each for each in found["coverage"] if each["source"] == "socket timeouts"]
    return one


def seen(family: str, limit_s: int) -> Any:
    with circle(family, limit_s) as pid:
        found = report(pid)
    if status(found)["state"] != "used":
        pytest.skip(f"needs BPF: {status(found)['reason']}")
    return found


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_without_a_timeout_it_hangs(family: str) -> None:
    found = seen(family, 0)
    verdict = found["verdict"]
    # A proof in a minute: until then the calls may have begun with another timeout than the sockets have now.
    assert (verdict["state"], verdict["cause"], verdict["confidence"]) == ("hung", "ipc.cycle", "likely")
    assert all("SO_RCVTIMEO is not set" in wait["evidence"] for wait in found["waits"])
    assert not any(wait["ends_by_itself"] for wait in found["waits"])


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_with_one_of_an_hour_it_hangs_until_then(family: str) -> None:
    found = seen(family, 3600)
    verdict = found["verdict"]
    assert (verdict["state"], verdict["cause"], verdict["confidence"]) == ("hung", "ipc.cycle", "likely")
    for wait in found["waits"]:
        assert wait["ends_by_itself"]
        assert 3500 < wait["object"]["remaining_s"] <= 3600


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_with_one_of_seconds_that_is_taken_up_again_nothing_is_proven(family: str) -> None:
    found = seen(family, 5)
    assert found["verdict"]["confidence"] != "proven"
    for wait in found["waits"]:
        assert wait["ends_by_itself"]
        assert 0 <= wait["object"]["remaining_s"] <= 5


def test_what_tcp_gives_up_within_seconds_is_no_deadlock() -> None:
    found = seen("user", 20)
    assert found["verdict"]["state"] != "hung"
    assert any("TCP_USER_TIMEOUT" in line for wait in found["waits"] for line in wait["evidence"])


def test_without_bpf_nothing_is_said_of_calls_that_may_have_a_timeout() -> None:
    with circle("unix", 20) as pid:
        found = report(pid, options=("--no-bpf",))
    assert (found["verdict"]["state"], found["verdict"]["culprits"]) == ("unknown", [])
    assert status(found)["state"] == "absent"
    assert "--no-bpf" in status(found)["fix"]
    assert status(found)["fix"] in found["verdict"]["next_steps"]


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_without_rights_it_is_open_for_a_minute_and_coverage_says_what_would_help(family: str) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    loads = [*AS_NOBODY, sys.executable, "-c", "from pyhangtrace import _native"]
    if subprocess.run(loads, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip("another user may not run this tree")
    with circle(family, 0, *AS_NOBODY) as pid:
        found = report(pid, *AS_NOBODY)
    assert (found["verdict"]["state"], found["verdict"]["culprits"]) == ("unknown", [])
    assert status(found)["state"] == "refused"
    assert "CAP_BPF" in status(found)["fix"]
