"""Frames of real libraries, innermost first, and what they wait for."""

from __future__ import annotations

import pytest

from pyhangtrace.analyze.calls import Meaning, connects_to_store, gloo_work, recognise
from pyhangtrace.analyze.openmp import place
from pyhangtrace.analyze.services import service_of, serving
from pyhangtrace.model.stacks import Frame
from tests.unit.analyze import builders as b

QUEUE = "/usr/lib/python3.12/queue.py"
QUEUES = "/usr/lib/python3.12/multiprocessing/queues.py"
LOGGER = "/x/torch/distributed/c10d_logger.py"
WAIT = b.native("c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)")


@pytest.mark.parametrize(
    ("frames", "meaning", "op"),
    [
        (
            [WAIT, b.py("all_reduce", b.C10D), b.py("wrapper", LOGGER), b.py("step")],
            Meaning.COLLECTIVE,
            "all_reduce",
        ),
        (
            [
                WAIT,
                b.py("all_gather", b.C10D),
                b.py("wrapper", LOGGER),
                b.py("all_gather_object", b.C10D),
                b.py("f"),
            ],
            Meaning.COLLECTIVE,
            "all_gather_object",
        ),
        ([WAIT, b.py("step")], Meaning.COLLECTIVE, "unknown"),
        (
            [
                WAIT,
                b.native("c10d::Reducer::finalize_backward()"),
                b.py("_engine_run_backward", "/x/torch/autograd/graph.py"),
                b.py("backward", "/x/torch/_tensor.py"),
                b.py("step"),
            ],
            Meaning.COLLECTIVE,
            "all_reduce",
        ),
        ([b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("recv", b.C10D)], Meaning.RECV, "recv"),
        ([b.native("c10d::ProcessGroupGloo::RecvWork::wait()"), b.py("step")], Meaning.RECV, "recv"),
        (
            [
                b.native("c10d::TCPStore::waitForWorkers()"),
                b.py("_create_c10d_store", "/x/torch/distributed/rendezvous.py"),
                b.py("init_process_group", b.C10D),
                b.py("main"),
            ],
            Meaning.RENDEZVOUS,
            "init_process_group",
        ),
        (
            [WAIT, b.py("barrier", b.C10D), b.py("new_group", b.C10D), b.py("main")],
            Meaning.RENDEZVOUS,
            "new_group",
        ),
        (
            [b.py("Condition.wait", b.THREADING), b.py("Queue.get", QUEUE), b.py("f")],
            Meaning.QUEUE_GET,
            "get",
        ),
        # Before Python 3.11 frames have no class.
        ([b.py("wait", b.THREADING), b.py("get", QUEUE), b.py("f")], Meaning.QUEUE_GET, "get"),
        (
            [b.py("wait", b.THREADING), b.py("_wait", b.THREADING), b.py("wait", b.THREADING)],
            Meaning.BARRIER,
            "barrier",
        ),
        (
            [
                b.py("wait", b.SYNCHRONIZE),
                b.py("wait_for", b.SYNCHRONIZE),
                b.py("_wait", b.THREADING),
                b.py("wait", b.THREADING),
            ],
            Meaning.SHARED_BARRIER,
            "barrier",
        ),
        (
            [b.py("Condition.wait", b.THREADING), b.py("Event.wait", b.THREADING), b.py("f")],
            Meaning.EVENT,
            "wait",
        ),
        ([b.py("Thread.join", b.THREADING), b.py("main")], Meaning.JOIN_THREAD, "join"),
        (
            [b.py("Queue.get", QUEUES), b.py("_worker_loop", "/x/torch/utils/data/_utils/worker.py")],
            Meaning.WORKER_LOOP,
            "_worker_loop",
        ),
        ([b.native("PMPI_Allreduce", "libmpi.so"), b.native("main")], Meaning.COLLECTIVE, "all_reduce"),
        (
            [
                b.native("void (anonymous namespace)::shm_cc_ops::shm_cc_loop<c10::BFloat16>(long)"),
                b.native("GOMP_parallel", "libgomp.so.1"),
                b.native("shm_allreduce(long, at::Tensor&)::{lambda()#1}::operator()() const"),
                b.native("shm_allreduce(long, at::Tensor&)"),
                b.py("OpOverloadPacket.__call__", "/x/torch/_ops.py"),
                b.py("_CPUSHMDistributed.all_reduce", "/x/cpu_communicator.py"),
            ],
            Meaning.COLLECTIVE,
            "all_reduce",
        ),
    ],
)
def test_known_waits(frames: list[Frame], meaning: Meaning, op: str) -> None:
    call = recognise(frames)
    assert call is not None
    assert (call.meaning, call.op) == (meaning, op)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b.py("all_reduce"), b.py("main")],
        [b.py("wait", "/job/queue_utils.py")],
        [b.py("time_sleep"), b.py("all_reduce", b.C10D)],
        [b.native("mkl_blas_sgemm"), b.py("step")],
    ],
)
def test_names_of_the_program_mean_nothing(frames: list[Frame]) -> None:
    assert recognise(frames) is None


def test_caller_is_the_first_frame_of_the_program() -> None:
    call = recognise([WAIT, b.py("all_reduce", b.C10D), b.py("wrapper", LOGGER), b.py("step", line=12)])
    assert call is not None
    assert call.caller is not None
    assert (call.caller.function, call.caller.line) == ("step", 12)


def test_run_loop_of_gloo_names_its_operation() -> None:
    frames = [
        b.native("gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>)"),
        b.native("c10d::(anonymous namespace)::AsyncAllreduceWork::allreduce(std::vector<at::Tensor>&)"),
        b.native("c10d::ProcessGroupGloo::runLoop(int)"),
    ]
    assert gloo_work(frames) == "all_reduce"


@pytest.mark.parametrize(
    ("comm", "frames", "service"),
    [
        ("pt_gloo_runloop", (b.native("runLoop"),), "gloo run loop"),
        ("pt_tcpstore_uv", (b.native("uv_run"),), "store server"),
        (
            "python3",
            (b.py("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py"),),
            "thread pool worker",
        ),
        ("QueueFeederThre", (b.py("Queue._feed", QUEUES),), "queue feeder"),
        ("python3", (b.native("gomp_thread_start", "libgomp.so"),), "openmp worker"),
        (
            "python3",
            (b.py("task"), b.py("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py")),
            None,
        ),
        ("python3", (b.py("serve"),), None),
    ],
)
def test_serving_threads(comm: str, frames: tuple[Frame, ...], service: str | None) -> None:
    assert (
        service_of(b.sleeper(100, 201, comm=comm, frames=frames), serving(frames), place(frames)) == service
    )


def test_main_thread_does_not_serve_by_its_name() -> None:
    assert service_of(b.sleeper(100, comm="cuda-app", frames=()), serving(()), None) is None


def test_a_nap_between_two_tries_to_reach_the_store() -> None:
    making = b.native("c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&)")
    nap = b.native("nanosleep", "libc.so.6")
    trying = b.native("c10d::detail::(anonymous namespace)::SocketConnectOp::tryConnect(addrinfo const&)")
    workers = b.native("c10d::TCPStore::waitForWorkers()")
    assert connects_to_store((b.native("clock_nanosleep"), nap, making))
    assert connects_to_store((b.native("poll"), trying, making))
    assert not connects_to_store((b.native("clock_nanosleep"), nap, workers, making))
    assert not connects_to_store((b.native("poll"), b.native("c10d::TCPStore::doWait()"), b.py("main")))
