"""Serving engines: queues in shared memory, sockets of ZeroMQ, loops that look for requests, parts that are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.kinds import Confidence, FdKind, Kind, Part, Role, State
from pyhangtrace.model.open_files import FdFacts, Holder, SharedSegment, SocketFacts
from pyhangtrace.model.processes import ProcessFacts, RankClaim
from pyhangtrace.model.report import Report
from pyhangtrace.model.threads import NamedValue, ThreadSample
from pyhangtrace.render.text.page import render_text
from tests.unit.analyze import builders as b

QUEUE = "/venv/vllm/distributed/device_communicators/shm_broadcast.py"
SCHEDULER = "/venv/sglang/srt/managers/scheduler.py"
ENGINE, WORKERS = 60, (100, 101)
COMMANDS, ANSWERS = "/psm_commands", "/psm_answers"


def at_queue(
    pid: int,
    segment: str,
    *,
    method: str = "acquire_read",
    index: int = 3,
    read: int | None = 7,
    **changes: Any,
) -> ThreadSample:
    """Asleep in ZeroMQ's poll until the other side of a queue pings it."""
    function = f"MessageQueue.{method}"
    values = [
        NamedValue(function=function, name="buffer.shared_memory._name", value=segment),
        NamedValue(function=function, name="current_idx", value=index),
    ]
    if read is not None:
        values.append(NamedValue(function=function, name="_spin_condition.last_read", value=read))
    frames = (
        b.native("zmq_poll", "/venv/pyzmq.libs/libzmq-1.so.5"),
        b.py("Poller.poll", "/venv/zmq/sugar/poll.py"),
        b.py("SpinCondition.wait", QUEUE),
        b.py(function, QUEUE),
        b.py("MessageQueue.dequeue", QUEUE),
        b.py("serve"),
    )
    return b.sleeper(pid, **{"syscall": b.POLL, "frames": frames, "named_values": tuple(values), **changes})


def at_work(pid: int, queue_of_python: bool = True) -> ThreadSample:
    """Waits for a piece of work from another thread of its process."""
    return b.sleeper(pid, frames=(b.py("Queue.get", "/usr/lib/python3.11/queue.py"), b.py("run_busy_loop")))


def server(looks: Sequence[Look], *, segments: Sequence[SharedSegment] | None = None, **parts: Any) -> Report:
    """An engine core and two workers."""
    shared = (
        SharedSegment(name=COMMANDS, users=(ENGINE, *WORKERS)),
        SharedSegment(name=ANSWERS, users=(ENGINE, WORKERS[0])),
    )
    title = [RankClaim(source="title", rank=rank, coords=(("tp", rank),)) for rank in range(2)]
    processes = [
        b.process(ENGINE, ppid=50, role=Role.ENGINE, title="VLLM::EngineCore"),
        *(
            b.rank(pid, rank, ppid=ENGINE, claims=(title[rank],), title=f"VLLM::Worker_TP{rank}", identity=())
            for rank, pid in enumerate(WORKERS)
        ),
    ]
    found = tuple(b.replace(look, segments=tuple(shared if segments is None else segments)) for look in looks)
    return analyze(b.evidence(processes, found, **parts))


def test_who_writes_a_queue_is_who_has_it_and_does_not_read() -> None:
    report = server(b.twice(at_work(ENGINE), *(at_queue(pid, COMMANDS) for pid in WORKERS)))
    waits = [wait for wait in report.waits if wait.pid in WORKERS]
    assert [wait.holder.pid if wait.holder else None for wait in waits] == [ENGINE, ENGINE]
    assert {wait.object.path for wait in waits} == {COMMANDS}


def test_where_another_user_is_elsewhere_either_may_be_the_writer() -> None:
    report = server(b.twice(at_work(ENGINE), at_queue(100, COMMANDS), b.running(101)))
    (wait,) = (wait for wait in report.waits if wait.pid == 100)
    assert wait.holder is None
    assert [one.pid for one in wait.candidates] == [ENGINE, 101]


def test_an_engine_and_its_workers_that_wait_for_each_other_are_a_circle() -> None:
    report = server(b.twice(at_queue(ENGINE, ANSWERS), *(at_queue(pid, COMMANDS) for pid in WORKERS)))
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.IPC_CYCLE,
        Confidence.LIKELY,
    )
    assert {who.pid for who in verdict.culprits} == {ENGINE, 100}
    assert {victim.pid for victim in verdict.victims} == {101}


def test_who_has_read_something_in_between_is_not_in_a_circle() -> None:
    workers = tuple(at_queue(pid, COMMANDS) for pid in WORKERS)
    first = b.look(at_queue(ENGINE, ANSWERS), *workers)
    again = b.moved(at_queue(ENGINE, ANSWERS, read=9, asleep_for_s=0.01))
    report = server((first, b.look(again, *workers, at=0.1)))
    assert report.verdict.state is not State.HUNG
    # It spins at the same place, and the place alone tells little.
    spins = b.running(ENGINE)
    for read, hung in ((None, False), (7, True)):
        seen = at_queue(ENGINE, ANSWERS, read=read)
        first = b.look(b.replace(spins, frames=seen.frames, named_values=seen.named_values), *workers)
        later = b.look(b.moved(first.threads[0], 100_000_000), *workers, at=0.1)
        assert (server((first, later)).verdict.state is State.HUNG) == hung


def test_an_engine_that_waits_for_a_worker_is_a_victim_of_who_holds_that_up() -> None:
    late = b.asleep(101, seconds=3600)
    report = server(b.twice(at_queue(ENGINE, ANSWERS), b.in_collective(100), late))
    assert report.verdict.state is State.HUNG
    assert [who.pid for who in report.verdict.culprits] == [101]
    assert {victim.pid for victim in report.verdict.victims} == {100, ENGINE}


def test_a_worker_that_is_ready_waits_for_the_others_through_the_engine() -> None:
    ready = at_queue(100, COMMANDS, method="wait_until_ready", read=None)
    pipe = b.pipe(ENGINE, 5, 500, Holder(pid=101, fd=6, mode="w"))
    engine = b.on_fd(ENGINE, fd=5)
    for second in (b.asleep(101, seconds=3600), b.running(101)):
        report = server(b.twice(engine, ready, second, fds=[pipe]))
        (wait,) = (wait for wait in report.waits if wait.pid == 100)
        assert [one.pid for one in wait.candidates] == [ENGINE, 101]
        hung = second.state == "S"
        assert (report.verdict.state is State.HUNG) == hung
        if hung:
            assert [who.pid for who in report.verdict.culprits] == [101]
            assert ENGINE in {victim.pid for victim in report.verdict.victims}


def test_the_text_says_who_is_the_engine_core() -> None:
    late = b.asleep(101, seconds=3600)
    text = render_text(server(b.twice(at_queue(ENGINE, ANSWERS), b.in_collective(100), late)), color=False)
    assert "engine core: waits for a queue in shared memory" in text


def test_a_segment_that_nobody_was_searched_for_accuses_nobody() -> None:
    looks = b.twice(at_queue(ENGINE, ANSWERS), *(at_queue(pid, COMMANDS) for pid in WORKERS))
    assert server(looks, segments=()).verdict.culprits == ()


# -- ZeroMQ ----------------------------------------------------------------------------------------------------

MAILBOX, SET, SOCKET, LISTENER = 8, 9, 10, 11


def zmq_process(pid: int, *peers: int, listens: bool = False) -> tuple[list[ThreadSample], list[FdFacts]]:
    """A thread that receives, and the library's own thread with connections to these processes."""
    frames = (b.native("zmq_msg_recv", "/venv/pyzmq.libs/libzmq-1.so.5"), b.py("event_loop"))
    waits = b.sleeper(pid, syscall=b.POLL, frames=frames, io_fds=(MAILBOX,))
    inner = b.sleeper(
        pid,
        pid + 1000,
        comm="ZMQbg/IO/0",
        name=None,
        syscall=b.EPOLL,
        args=(SET, 0, 0, 0, 0, 0),
        io_fds=(SET,),
        frames=(),
    )
    sockets = [
        b.connection(pid, SOCKET + 2 * at, pid * 10 + at, Holder(pid=peer, fd=99))
        for at, peer in enumerate(peers)
    ]
    watched = [facts.fd for facts in sockets]
    if listens:
        sockets.append(b.connection(pid, LISTENER, pid * 10 + 9, state="LISTEN"))
        watched.append(LISTENER)
    fds = [
        FdFacts(pid=pid, fd=MAILBOX, kind=FdKind.EVENTFD, target="anon_inode:[eventfd]"),
        FdFacts(pid=pid, fd=SET, kind=FdKind.EPOLL, target="anon_inode:[eventpoll]", watches=tuple(watched)),
        *sockets,
    ]
    return [waits, inner], fds


def talk(*others: ThreadSample, peers: Sequence[int] = (70,), listens: bool = False) -> Report:
    threads, fds = zmq_process(60, *peers, listens=listens)
    processes = [b.process(60, ppid=1), *(b.process(pid, ppid=60) for pid in (70, 71))]
    return analyze(b.evidence(processes, b.twice(*threads, *others, fds=fds)))


def test_who_receives_waits_for_whom_it_is_connected_with() -> None:
    report = talk(b.stopped(70), b.asleep(71, seconds=3600))
    (wait,) = (wait for wait in report.waits if wait.pid == 60)
    assert wait.holder is not None
    assert wait.holder.pid == 70
    verdict = report.verdict
    assert verdict.state is State.HUNG
    assert [who.pid for who in verdict.culprits] == [70]


def test_any_of_several_peers_is_enough() -> None:
    report = talk(b.stopped(70), b.running(71), peers=(70, 71))
    assert report.verdict.state is not State.HUNG


def test_who_lets_others_connect_waits_for_the_world() -> None:
    report = talk(b.stopped(70), b.asleep(71, seconds=3600), listens=True)
    assert report.verdict.culprits == ()


# -- loops and parts -------------------------------------------------------------------------------------------


def scheduler(pid: int, *inner: str) -> ThreadSample:
    frames = tuple(b.py(name, SCHEDULER) for name in (*inner, "Scheduler.event_loop_normal"))
    call = b.in_collective(pid, "broadcast")
    return b.replace(call, frames=(*call.frames[:3], *frames), asleep_for_s=0.0001)


def sglang(
    *samples: Sequence[ThreadSample], more: Sequence[ProcessFacts] = (), fds: Sequence[FdFacts] = ()
) -> Report:
    """Looks at two schedulers of which both have moved in between, and at `more`."""
    titles = [RankClaim(source="title", rank=rank) for rank in range(2)]
    processes = [
        b.rank(
            pid,
            rank,
            role=Role.SCHEDULER,
            claims=(titles[rank],),
            title=f"sglang::scheduler_TP{rank}",
            identity=(),
        )
        for rank, pid in enumerate(WORKERS)
    ]
    looks = tuple(
        b.look(
            *(b.moved(one, 10_000_000 * at) if one.pid in WORKERS else one for one in threads),
            at=0.1 * at,
            fds=fds,
        )
        for at, threads in enumerate(samples)
    )
    return analyze(b.evidence([*processes, *more], looks))


def seeks(*calls: str) -> list[ThreadSample]:
    return [scheduler(pid, *calls) for pid in WORKERS]


def test_schedulers_that_look_for_requests_again_and_again_are_idle() -> None:
    loop = ("Scheduler.broadcast_pyobj", "Scheduler.recv_requests")
    assert sglang(seeks(*loop), seeks(*loop)).verdict.state is State.IDLE


def test_a_stack_of_which_only_the_innermost_part_was_read_says_nothing() -> None:
    loop = ("Scheduler.broadcast_pyobj", "Scheduler.recv_requests")
    parts = [
        b.replace(sample, frames=sample.frames[:2], unmerged_python=(b.py("broadcast", b.C10D),))
        for sample in seeks(*loop)
    ]
    assert sglang(parts, seeks(*loop)).verdict.state is State.IDLE
    assert sglang(parts, parts).verdict.state is State.RUNNING


@pytest.mark.parametrize("call", ["Scheduler.run_batch", "Scheduler.process_batch_result"])
def test_one_that_was_seen_at_a_batch_is_not(call: str) -> None:
    loop = ("Scheduler.broadcast_pyobj", "Scheduler.recv_requests")
    assert sglang(seeks(*loop), seeks(call)).verdict.state is State.RUNNING


def test_a_stack_without_its_outer_end_says_nothing() -> None:
    loop = ("Scheduler.broadcast_pyobj", "Scheduler.recv_requests")
    whole = [b.replace(one, frames=one.frames[:3]) for one in seeks(*loop)]
    half = [b.replace(one, stack_complete=False) for one in whole]
    assert sglang(seeks(*loop), half).verdict.state is State.IDLE
    assert sglang(seeks(*loop), whole).verdict.state is State.RUNNING
    assert sglang(half, half).verdict.state is State.RUNNING


DETOKENIZER = 110


def unread(size: int) -> list[FdFacts]:
    about = SocketFacts(family="unix", state="ESTABLISHED", peer_rx_queue=size)
    facts = b.connection(100, 30, 3000, Holder(pid=DETOKENIZER, fd=5))
    return [b.replace(facts, socket=about)]


@pytest.mark.parametrize(("size", "sure"), [(48, Confidence.PROVEN), (0, Confidence.LIKELY)])
def test_a_stopped_part_of_a_server_is_named_though_nobody_waits_for_it(size: int, sure: Confidence) -> None:
    part = b.process(DETOKENIZER, role=Role.DETOKENIZER, title="sglang::detokenizer", state="T")
    looks = [[*seeks("Scheduler.recv_requests"), b.stopped(DETOKENIZER)] for _ in range(2)]
    report = sglang(*looks, more=[part], fds=unread(size))
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (State.HUNG, Kind.PEER_STOPPED, sure)
    assert [who.pid for who in verdict.culprits] == [DETOKENIZER]
    assert verdict.victims == ()
    assert ("sent it lies unread" in verdict.summary) == (size > 0)


def test_a_part_that_has_ended_is_told() -> None:
    part = b.process(
        DETOKENIZER, role=Role.DETOKENIZER, comm="sglang::detoken", title="", state="Z", exit_code=9
    )
    looks = [seeks("Scheduler.recv_requests") for _ in range(2)]
    verdict = sglang(*looks, more=[part]).verdict
    assert (verdict.state, verdict.cause) == (State.ENDED, Kind.PEER_EXITED)
    assert [who.pid for who in verdict.culprits] == [DETOKENIZER]
    assert "was killed by signal 9" in verdict.summary


@pytest.mark.parametrize(("code", "state"), [(9, State.ENDED), (0, State.IDLE)])
def test_a_worker_that_was_killed_is_told_by_its_cut_name(code: int, state: State) -> None:
    worker = b.process(
        DETOKENIZER, role=Role.RANK, comm="VLLM::Worker_TP", title="", state="Z", exit_code=code
    )
    looks = [seeks("Scheduler.recv_requests") for _ in range(2)]
    verdict = sglang(*looks, more=[worker]).verdict
    assert verdict.state is state
    assert [who.pid for who in verdict.culprits] == ([DETOKENIZER] if code else [])


def test_a_stopped_helper_of_no_part_is_nobodys_business() -> None:
    other = b.process(DETOKENIZER, title="python helper.py", state="T")
    looks = [[*seeks("Scheduler.recv_requests"), b.stopped(DETOKENIZER)] for _ in range(2)]
    assert sglang(*looks, more=[other]).verdict.state is State.IDLE


def loads(pid: int, since_s: float, *frames: Any) -> ThreadSample:
    """In a page fault on a file that has to be read in."""
    return b.sleeper(
        pid,
        state="D",
        syscall=-1,
        args=(),
        wchan="folio_wait_bit_common",
        asleep_for_s=since_s,
        frames=frames,
    )


LOADS = b.py("DefaultModelLoader.load_weights", "/venv/sglang/srt/model_loader/loader.py")


@pytest.mark.parametrize(
    ("since_s", "frame", "state"),
    [(8.0, LOADS, State.SLOW), (1.0, LOADS, None), (8.0, b.py("main"), None), (90.0, LOADS, State.HUNG)],
)
def test_ranks_that_wait_for_the_storage_while_they_load_are_slow(
    since_s: float, frame: Any, state: State | None
) -> None:
    report = analyze(
        b.evidence(b.ranks(2), b.twice(*(loads(100 + rank, since_s, frame) for rank in range(2))))
    )
    verdict = report.verdict
    if state is not State.SLOW:
        assert verdict.state is state or (state is None and verdict.state not in (State.SLOW, State.HUNG))
        return
    assert (verdict.state, verdict.cause) == (State.SLOW, Kind.IO_STALLED)
    assert [(who.rank, who.part) for who in verdict.culprits] == [(0, Part.PARTY), (1, Part.PARTY)]
    assert any("hangtrace memory" in step for step in verdict.next_steps)
