"""Remote calls of torch: who waits for a result, who serves until all have come to their end, and who moves bytes."""

from __future__ import annotations

from typing import Any

import pytest

from pyhangtrace.analyze import analyze
from pyhangtrace.model.kinds import State
from tests.unit.analyze import builders as b

API = "/venv/torch/distributed/rpc/api.py"
FUTURE = b.native("torch::jit::PythonFutureWrapper::wait()", "libtorch_python.so")
CALLS = (FUTURE, b.py("rpc_sync", API), b.py("main"))
SERVES = (
    b.py("Condition.wait", b.THREADING),
    b.py("Event.wait", b.THREADING),
    b.py("_all_gather", API),
    b.py("shutdown", API),
    b.py("main"),
)
REACTOR = (b.native("tensorpipe::BusyPollingLoop::eventLoop()"),)
POOL = (b.native("c10::ThreadPool::main_loop(unsigned long)", "libc10.so"),)


def threads(pid: int, main: Any) -> list[Any]:
    return [
        main,
        b.running(pid, pid + 1000, comm="TP_SHM_reactor", frames=REACTOR),
        b.sleeper(pid, pid + 2000, comm="pt_thread_pool", frames=POOL),
    ]


@pytest.mark.parametrize(
    ("first", "state"),
    [
        (b.sleeper(100, frames=CALLS), State.UNKNOWN),
        (b.on_fd(100, fd=5, syscall=43), State.IDLE),  # accept: a client may come
    ],
)
def test_a_reactor_that_spins_moves_nothing(first: Any, state: State) -> None:
    seen = [*threads(100, first), *threads(101, b.sleeper(101, frames=SERVES))]
    verdict = analyze(b.evidence(b.ranks(2), b.twice(*seen))).verdict
    assert (verdict.state, verdict.culprits) == (state, ())
