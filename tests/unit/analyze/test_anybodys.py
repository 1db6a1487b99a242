"""Waits for whoever knows a name or a key: nothing proves that nobody comes, so who serves there is not accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Confidence, FdKind, State
from pyhangtrace.model.open_files import FdFacts, Holder, IpcFacts
from pyhangtrace.model.report import Verdict
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b

OPENAT, MSGRCV, MQ_TIMEDRECEIVE = 257, 70, 243
FIFO = "/run/job/orders"


def fifo(pid: int, *others: Holder, target: str = FIFO, mode: str = "r") -> FdFacts:
    return replace(b.pipe(pid, 5, 70, *others, mode=mode), target=target)


def opens(pid: int, tid: int | None = None, path: str = FIFO) -> ThreadSample:
    return b.sleeper(pid, tid, syscall=OPENAT, wchan="wait_for_partner", path=path)


def verdict_of(
    *threads: ThreadSample, fds: tuple[FdFacts, ...] = (), ipc: tuple[IpcFacts, ...] = ()
) -> Verdict:
    looks = tuple(replace(look, ipc=ipc) for look in b.twice(*threads, fds=list(fds)))
    pids = sorted({thread.pid for thread in threads})
    processes = [b.process(pid, ppid=pids[0] if pid != pids[0] else 50) for pid in pids]
    return analyze(b.evidence(processes, looks)).verdict


def parent_of(child: int) -> ThreadSample:
    return b.sleeper(100, syscall=b.WAIT4, args=(child, 0, 0, 0, 0, 0))


def wants_mutex(pid: int, *, owner: int) -> ThreadSample:
    return b.on_mutex(pid, 203, owner=owner)


def joins(pid: int, tid: int) -> ThreadSample:
    lock = LockFacts(kind="join", address=0x40, uaddr=0x40, op=0, value=tid, owner_tid=tid, owner_exact=True)
    return b.sleeper(pid, lock=lock)


@pytest.mark.parametrize(
    ("threads", "fds"),
    [
        ((parent_of(101), opens(101)), ()),
        ((parent_of(101), b.on_fd(101, fd=5)), (fifo(101, mode="rw"),)),
        ((joins(100, 201), opens(100, 201)), ()),
        ((joins(100, 201), opens(100, 201), wants_mutex(100, owner=201)), ()),
    ],
    ids=["its parent", "it keeps the FIFO open itself", "who joins it", "who wants its lock"],
)
def test_server_of_a_fifo_waits_for_whoever_opens_it(
    threads: tuple[ThreadSample, ...], fds: tuple[FdFacts, ...]
) -> None:
    verdict = verdict_of(*threads, fds=fds)
    assert (verdict.state, verdict.culprits) == (State.IDLE, ())


def test_who_reads_a_fifo_beside_other_threads_may_wait_for_them() -> None:
    threads = (joins(100, 201), b.on_fd(100, 201, fd=5), wants_mutex(100, owner=201))
    own = Holder(pid=100, fd=6, mode="w")
    verdict = verdict_of(*threads, fds=(fifo(100, own),))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    # Once the name is gone nobody else can come.
    gone = verdict_of(*threads, fds=(fifo(100, own, target=f"{FIFO} (deleted)"),))
    assert gone.state is State.HUNG


def test_rlock_of_who_waits_for_work_may_be_that_of_one_that_ended() -> None:
    def verdict(kind: str) -> Verdict:
        wants = b.on_python_lock(100, owner=201)
        assert wants.lock is not None
        listens = b.on_fd(100, 201, fd=5, syscall=b.ACCEPT)
        lock = replace(wants.lock, kind=kind, owner_from=None, owner_exact=True)
        return verdict_of(replace(wants, lock=lock), listens, fds=(b.connection(100, 5, 70, state="LISTEN"),))

    assert verdict("python_lock").state is State.IDLE
    assert (verdict("python_rlock").state, verdict("python_rlock").culprits) == (State.UNKNOWN, ())


def test_two_that_open_different_fifos_may_wait_for_each_other() -> None:
    verdict = verdict_of(opens(100), opens(101, path="/run/job/answers"))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    assert verdict_of(opens(100), opens(101)).state is State.IDLE


def test_deadlock_of_two_that_read_fifos_of_each_other_is_no_proof() -> None:
    def verdict(first: str, second: str) -> Verdict:
        fds = (
            fifo(100, Holder(pid=101, fd=6, mode="w"), target=first),
            fifo(101, Holder(pid=100, fd=6, mode="w"), target=second),
        )
        return verdict_of(b.on_fd(100, fd=5), b.on_fd(101, fd=5), fds=fds)

    assert (verdict("pipe:[70]", "pipe:[71]").state, verdict("pipe:[70]", "pipe:[71]").confidence) == (
        State.HUNG,
        Confidence.PROVEN,
    )
    named = verdict(FIFO, "/run/job/answers")
    assert (named.state, named.confidence) == (State.HUNG, Confidence.LIKELY)


@pytest.mark.parametrize("syscall", [MSGRCV, MQ_TIMEDRECEIVE])
def test_who_has_a_lock_and_waits_for_a_message_is_not_accused(syscall: int) -> None:
    receives = b.sleeper(100, 201, syscall=syscall, args=(5, 0, 8, 0, 0, 0))
    queue = FdFacts(pid=100, fd=5, kind=FdKind.MQUEUE, target="/orders", mode="rw")
    known = IpcFacts(pid=100, kind="msg", id=5, key=0x6B72, messages=0, queued=0)
    threads = (b.asleep(100, seconds=3600), receives, wants_mutex(100, owner=201))
    verdict = verdict_of(*threads, fds=(queue,), ipc=(known,))
    assert (verdict.state, verdict.culprits) == (State.UNKNOWN, ())
    # One that waits for who waits for it knows no more of that.
    behind = b.on_mutex(100, 204, owner=203, address=0x8100)
    assert verdict_of(*threads, behind, fds=(queue,), ipc=(known,)).state is State.UNKNOWN
