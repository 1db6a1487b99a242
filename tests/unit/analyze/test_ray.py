"""Processes of Ray: who waits for the results of tasks, who works on one, and what Ray's own threads are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import Role, State, WaitKind
from pyhangtrace.model.stacks import Frame
from tests.unit.analyze import builders as b

WORKER = "/venv/ray/_private/worker.py"
DRIVER, ACTOR = 100, 101
IN_GET = (
    b.native("ray::core::GetRequest::Wait(long)", "/venv/ray/_raylet.so"),
    b.py("Worker.get_objects", WORKER),
    b.py("get", WORKER),
    b.py("main"),
)
LOOP = (b.py("Worker.main_loop", WORKER), b.py("<module>", "/venv/ray/_private/workers/default_worker.py"))
IO = (b.native("epoll_wait", "libc.so.6"), b.native("boost::asio::io_context::run()", "/venv/ray/_raylet.so"))
POOL = (b.native("boost::asio::detail::posix_thread::func::run()", "/venv/ray/_raylet.so"),)


def processes() -> list[Any]:
    return [b.process(DRIVER, role=Role.OTHER), b.process(ACTOR, role=Role.OTHER)]


def threads(pid: int, main: Any) -> list[Any]:
    return [
        main,
        b.sleeper(pid, pid + 1000, comm="client.poll0", frames=IO, syscall=232),
        b.sleeper(pid, pid + 2000, comm="ray::A", frames=POOL),
    ]


def judge(frames: tuple[Frame, ...], **actor: Any) -> Any:
    main = actor.pop("main", None) or b.sleeper(ACTOR, frames=frames, **actor)
    looks = b.twice(*threads(DRIVER, b.sleeper(DRIVER, frames=IN_GET)), *threads(ACTOR, main))
    return analyze(b.evidence(processes(), looks))


def test_who_waits_for_a_result_is_not_idle_and_who_works_on_a_task_is_a_candidate() -> None:
    asleep = b.asleep(ACTOR, seconds=3600)
    report = judge((), main=replace(asleep, frames=(*asleep.frames, *LOOP)))
    assert report.verdict.state is State.UNKNOWN
    assert report.verdict.culprits == ()
    (wait,) = [each for each in report.waits if each.tid == DRIVER]
    assert (wait.kind, wait.object.name) == (WaitKind.POLL, "results of tasks")
    assert [each.tid for each in wait.candidates] == [ACTOR]


def test_an_actor_that_waits_for_its_next_task_is_no_candidate() -> None:
    report = judge(LOOP)
    (wait,) = [each for each in report.waits if each.tid == DRIVER]
    assert wait.candidates == ()
    assert report.verdict.state is State.UNKNOWN


def test_two_that_wait_for_each_others_results_are_not_idle() -> None:
    report = judge((*IN_GET[:3], b.py("A.ask"), *LOOP))
    assert report.verdict.state is State.UNKNOWN


def test_a_lock_that_another_task_may_give_back_is_open() -> None:
    lock = b.on_python_lock(ACTOR, owner=None)
    report = judge((), main=lock)
    assert report.verdict.state is State.UNKNOWN
