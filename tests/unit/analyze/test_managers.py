"""Managers of multiprocessing: from a client over the thread that serves it to the client that has the lock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Kind, State, WaitKind
from pyhangtrace.model.open_files import Holder, SocketTimeouts
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import ThreadSample
from tests.unit.analyze import builders as b

_MANAGER, _SERVES_ONE, _SERVES_TWO = 100, 110, 120
_ONE, _TWO = 200, 300

_FILE = "/usr/lib/python3.11/multiprocessing/managers.py"
_SERVE = (b.py("Server.serve_client", _FILE),)
_READS = (b.py("Connection._recv", "/usr/lib/python3.11/multiprocessing/connection.py"), *_SERVE)


def serving(thread: ThreadSample, fd: int) -> ThreadSample:
    return replace(thread, named_values=(b.local("Server.serve_client", "conn._handle", fd),))


def report(thread: ThreadSample, two: ThreadSample) -> Report:
    """Two clients: the first waits for an answer of its thread, the other one may have the lock."""
    fds = [
        b.connection(_ONE, 5, 70, Holder(pid=_MANAGER, fd=7, mode="rw")),
        b.connection(_MANAGER, 7, 71, Holder(pid=_ONE, fd=5, mode="rw")),
        b.connection(_MANAGER, 8, 81, Holder(pid=_TWO, fd=5, mode="rw")),
    ]
    endless = SocketTimeouts(receive_s=None, send_s=None)
    fds = [replace(fd, timeouts=endless) for fd in fds]
    threads = (
        b.sleeper(_MANAGER),
        serving(thread, 7),
        serving(b.on_fd(_MANAGER, _SERVES_TWO, fd=8, frames=_READS), 8),
        b.on_fd(_ONE, fd=5),
        two,
    )
    processes = [b.process(_MANAGER), b.process(_ONE, ppid=_MANAGER), b.process(_TWO, ppid=_MANAGER)]
    return analyze(b.evidence(processes, b.twice(*threads, fds=fds)))


def locked(owner: int | None = None) -> ThreadSample:
    sample = b.on_python_lock(_MANAGER, _SERVES_ONE, frames=_SERVE, owner=owner)
    assert sample.lock is not None
    if owner is None:
        return sample
    rlock = replace(sample.lock, kind="python_rlock", owner_from="rlock_owner", owner_exact=True)
    return replace(sample, lock=rlock)


def test_owner_of_an_rlock_is_the_client_of_its_thread() -> None:
    found = report(locked(_SERVES_TWO), b.asleep(_TWO, seconds=3600))
    assert (found.verdict.state, found.verdict.cause) == (State.HUNG, Kind.LOCK_HELD)
    assert [(one.pid, one.part.value) for one in found.verdict.culprits] == [(_TWO, "culprit")]
    wait = next(one for one in found.waits if one.pid == _ONE)
    assert wait.holder is not None
    assert (wait.kind, wait.holder.pid, wait.holder.tid) == (WaitKind.SOCKET, _MANAGER, _SERVES_ONE)


@pytest.mark.parametrize("two", [b.asleep(_TWO, seconds=3600), b.running(_TWO)], ids=["sleeps", "runs"])
def test_lock_without_an_owner_accuses_no_client(two: ThreadSample) -> None:
    found = report(locked(), two)
    assert found.verdict.state is State.UNKNOWN
    assert not found.verdict.culprits
    wait = next(one for one in found.waits if one.tid == _SERVES_ONE)
    assert [one.tid for one in wait.candidates] == [_SERVES_TWO]
