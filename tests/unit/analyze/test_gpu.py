"""Threads inside a GPU's driver: what they wait for, that they are not at work, and when a fault explains it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyhangtrace.analyze.gpu_calls import GpuCall, GpuWait, recognise
from pyhangtrace.analyze.gpu_devices import bus_of, xids
from pyhangtrace.analyze.report import analyze
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.gpu import (
    CudaProcess,
    DriverFacts,
    DriverGpu,
    GpuFacts,
    Prepared,
    PreparedExtra,
)
from pyhangtrace.model.host import HostFacts
from pyhangtrace.model.kinds import Confidence, Kind, Role, State, WaitKind
from pyhangtrace.model.report import Report, Wait
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import LockFacts, ThreadSample
from pyhangtrace.render.text.page import render_text
from tests.unit.analyze import builders as b

CUDA, CUDART, LIBC, TORCH = "libcuda.so.1", "libcudart.so.12", "libc.so.6", "libtorch_cuda.so"
NAMELESS = b.native("", CUDA)
SPINNING = (b.native("clock_gettime", "[vdso]"), NAMELESS, NAMELESS)


def stack(*frames: Frame) -> tuple[Frame, ...]:
    return (*frames, b.py("step"), b.py("main", line=40))


SYNCHRONIZE = stack(
    *SPINNING, b.native("cuStreamSynchronize", CUDA), b.native("cudaStreamSynchronize", CUDART)
)


def driver(function: str) -> Frame:
    return b.native(function, CUDA)


def runtime(function: str) -> Frame:
    return b.native(function, CUDART)


COPY_OF_TORCH = b.native("at::native::copy_kernel_cuda(at::TensorIterator&)", TORCH)
LINKED_IN = (b.native("", TORCH), b.native("", TORCH), b.native("cudaDeviceSynchronize", TORCH))
ROCM = (
    b.native("hsa_signal_wait_scacquire", "libhsa-runtime64.so.1"),
    b.native("hipStreamSynchronize", "libamdhip64.so.6"),
)
CALLS: tuple[tuple[tuple[Frame, ...], GpuWait, str | None], ...] = (
    (SYNCHRONIZE, GpuWait.STREAM, "cudaStreamSynchronize"),
    ((*SPINNING, driver("cuStreamSynchronize_ptsz")), GpuWait.STREAM, "cuStreamSynchronize_ptsz"),
    (
        (b.native("poll", LIBC), NAMELESS, driver("cuCtxSynchronize_v2")),
        GpuWait.DEVICE,
        "cuCtxSynchronize_v2",
    ),
    ((NAMELESS, driver("cuEventSynchronize")), GpuWait.EVENT, "cuEventSynchronize"),
    (
        (NAMELESS, driver("cuMemcpyDtoHAsync_v2"), runtime("cudaMemcpyAsync"), COPY_OF_TORCH),
        GpuWait.COPY,
        "cudaMemcpyAsync",
    ),
    ((NAMELESS, driver("cuMemFree_v2"), runtime("cudaFree")), GpuWait.IMPLICIT, "cudaFree"),
    # Lazy loading: the first launch of a kernel loads its module.
    (
        (NAMELESS, driver("cuModuleLoadData"), runtime("cudaLaunchKernel")),
        GpuWait.IMPLICIT,
        "cuModuleLoadData",
    ),
    ((NAMELESS, driver("cuLibraryLoadData")), GpuWait.IMPLICIT, "cuLibraryLoadData"),
    ((NAMELESS, driver("cuLaunchKernelEx")), GpuWait.LAUNCH, "cuLaunchKernelEx"),
    ((NAMELESS, runtime("cudaGraphLaunch")), GpuWait.GRAPH, "cudaGraphLaunch"),
    ((NAMELESS, driver("cuInit")), GpuWait.START, "cuInit"),
    # The runtime is linked into the library, whose own functions have no names.
    ((*SPINNING, *LINKED_IN), GpuWait.DEVICE, "cudaDeviceSynchronize"),
    ((*SPINNING, b.native("c10::cuda::device_synchronize()", TORCH)), GpuWait.OTHER, None),
    (ROCM, GpuWait.STREAM, "hipStreamSynchronize"),
)
NO_CALLS: tuple[tuple[Frame, ...], ...] = (
    (b.native("poll", LIBC),),
    (b.native("ncclGroupEnd", "libnccl.so.2"), runtime("cudaLaunchHostFunc")),
    (b.native("cublasSgemm_v2", "libcublas.so.12"),),
    (b.py("step"), driver("cuStreamSynchronize")),
    (),
)


@pytest.mark.parametrize(("frames", "wait", "function"), CALLS)
def test_calls(frames: tuple[Frame, ...], wait: GpuWait, function: str | None) -> None:
    assert recognise(stack(*frames)) == GpuCall(wait, function)


@pytest.mark.parametrize("frames", NO_CALLS)
def test_what_is_not_inside_of_the_driver(frames: tuple[Frame, ...]) -> None:
    assert recognise(stack(*frames)) is None


def spins(pid: int) -> tuple[ThreadSample, ...]:
    """The same thread in two looks, with CPU time in between."""
    thread = b.running(pid, frames=SYNCHRONIZE, stack_complete=True)
    return (replace(thread, run_ns=1_000_000), replace(thread, run_ns=101_000_000))


def two_looks(first: list[ThreadSample], second: list[ThreadSample]) -> tuple[object, ...]:
    looks = b.twice(*first)
    return (looks[0], replace(looks[1], threads=tuple(second)))


def spinning(*pids: int, **of_evidence: object) -> Evidence:
    pairs = [spins(pid) for pid in pids]
    looks = two_looks([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    evidence = b.evidence([b.rank(pid, number, len(pids)) for number, pid in enumerate(pids)], looks)
    return replace(evidence, **of_evidence)  # type: ignore[arg-type]


def wait_of(report: Report, pid: int) -> Wait:
    return next(wait for wait in report.waits if wait.pid == pid)


def test_a_thread_that_spins_in_the_driver_is_not_at_work() -> None:
    report = analyze(spinning(100, 101))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    wait = wait_of(report, 100)
    assert (wait.kind, wait.object.name, wait.ends_by_itself) == (
        WaitKind.GPU,
        "cudaStreamSynchronize",
        False,
    )
    assert "spins in cudaStreamSynchronize: waits for all work of one stream" in wait.evidence
    assert "waits for the GPU, in cudaStreamSynchronize" in report.verdict.summary
    assert "waits for the GPU, in cudaStreamSynchronize" in render_text(report, color=False)


def test_one_that_sleeps_there_is_told_so() -> None:
    frames = stack(b.native("poll", LIBC), NAMELESS, b.native("cuCtxSynchronize", CUDA))
    looks = b.twice(b.sleeper(100, syscall=b.POLL, frames=frames))
    report = analyze(b.evidence([b.process(100)], looks))
    wait = wait_of(report, 100)
    assert (wait.kind, wait.since_s) == (WaitKind.GPU, 10.0)
    assert "sleeps in cuCtxSynchronize: waits for all work of the GPU" in wait.evidence


def test_who_moves_on_between_two_looks_is_at_work() -> None:
    one, two = spins(100)
    two = replace(two, frames=(*SYNCHRONIZE[:-2], b.py("step", line=9), SYNCHRONIZE[-1]))
    report = analyze(b.evidence([b.rank(100, 0, 1)], two_looks([one], [two])))
    assert report.verdict.state is not State.HUNG
    assert wait_of(report, 100).kind is WaitKind.GPU


def test_a_lock_of_the_driver_leads_to_who_waits_for_the_device() -> None:
    lock = LockFacts(
        kind="mutex_normal",
        address=0x8000,
        uaddr=0x8000,
        op=0,
        value=2,
        owner_tid=100,
        owner_from="pthread_mutex_t.__owner",
        owner_exact=True,
    )
    frames = (
        b.native("___pthread_mutex_lock", LIBC),
        NAMELESS,
        b.native("cuMemAlloc_v2", CUDA),
        b.py("load"),
    )
    waiter = b.sleeper(100, 201, lock=lock, frames=frames, args=(0x8000, 0x80, 2, 0, 0, 0))
    one, two = spins(100)
    report = analyze(b.evidence([b.process(100)], two_looks([one, waiter], [two, waiter])))
    wait = next(wait for wait in report.waits if wait.tid == 201)
    assert wait.kind is WaitKind.MUTEX
    assert wait.holder is not None
    assert wait.holder.tid == 100
    assert report.verdict.state is State.UNKNOWN  # the device may yet be done


FELL_OFF = "NVRM: Xid (PCI:0000:81:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
EXCEPTION = "NVRM: Xid (PCI:0000:81:00): 13, pid=100, name=python3, Graphics SM Warp Exception"
DRIVER = DriverFacts(
    version="550.54.15",
    gpus=(DriverGpu(bus="0000:81:00.0", minor=4), DriverGpu(bus="0000:c1:00.0", minor=5)),
)


def cuda(pid: int, *minors: int) -> CudaProcess:
    return CudaProcess(pid=pid, minors=minors, control=True, uvm=True)


def with_log(line: str, **more: object) -> Report:
    host = HostFacts(name="node", machine="x86_64", xids=(line,))
    return analyze(spinning(100, 101, host=host, gpu_driver=DRIVER, **more))


def test_faults_in_the_log() -> None:
    host = HostFacts(
        name="node",
        xids=(FELL_OFF, EXCEPTION, "NVRM: Xid (PCI:0001:c1:00): 119, Timeout after 6s", "NVRM: Xid x"),
    )
    found = list(xids(spinning(100, host=host)))
    assert [(xid.number, xid.bus, xid.pid) for xid in found] == [
        (79, (0, 0x81, 0), None),
        (13, (0, 0x81, 0), 100),
        (119, (1, 0xC1, 0), None),
    ]
    assert bus_of("00000000:81:00.0") == (0, 0x81, 0)


@pytest.mark.parametrize(
    "more",
    [
        {"cuda": (cuda(100, 4), cuda(101, 5))},
        {"gpus": (GpuFacts(index=0, uuid="", name="", bus="00000000:81:00.0", pids=(100,)),)},
    ],
)
def test_who_waits_for_a_device_that_is_lost_waits_without_end(more: dict[str, object]) -> None:
    report = with_log(FELL_OFF, **more)
    verdict = report.verdict
    assert (verdict.state, verdict.cause, verdict.confidence) == (
        State.HUNG,
        Kind.GPU_FAULT,
        Confidence.LIKELY,
    )
    assert [(who.rank, who.pid) for who in verdict.culprits] == [(0, 100)]
    assert "Xid 79: it has fallen off the bus" in wait_of(report, 100).evidence
    assert any("nvidia-smi -q -i 00000000:81:00.0" in step for step in verdict.next_steps)


@pytest.mark.parametrize(
    ("line", "more"),
    [
        (FELL_OFF, {"cuda": (cuda(100, 4, 5), cuda(101, 4, 5))}),  # all have all open
        (FELL_OFF, {"cuda": (cuda(100, 5), cuda(101, 5))}),  # the device of somebody else
        (FELL_OFF, {}),
        (EXCEPTION, {"cuda": (cuda(100, 4), cuda(101, 5))}),  # an error that the program gets
        (FELL_OFF.replace("81", "e1"), {"cuda": (cuda(100, 4), cuda(101, 5))}),
    ],
)
def test_a_fault_that_may_be_of_somebody_else_accuses_nobody(line: str, more: dict[str, object]) -> None:
    report = with_log(line, **more)
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())


def test_a_fault_is_in_the_list_of_gpus_also_without_the_management_library() -> None:
    report = with_log(FELL_OFF)
    assert [(gpu.index, gpu.bus, gpu.xids) for gpu in report.gpus] == [
        (0, "0000:81:00.0", (79,)),
        (1, "0000:c1:00.0", ()),
    ]
    text = " ".join(render_text(report, color=False).split())
    assert "the driver has logged Xid 79" in text
    assert not any(item.suspect.startswith("gpu") for item in report.verdict.cleared)


H200 = GpuFacts(
    index=0,
    uuid="GPU-0",
    name="H200",
    pids=(100,),
    utilization=100,
    memory_utilization=0,
    memory_used=1 << 30,
    memory_total=4 << 30,
    power_w=118.0,
    power_limit_w=700.0,
)


def test_a_kernel_that_only_polls_is_told() -> None:
    report = analyze(spinning(100, 101, gpus=(H200, replace(H200, index=1, pids=(101,), power_w=600.0))))
    assert any("a kernel that only polls" in line for line in wait_of(report, 100).evidence)
    assert not any("polls" in line for line in wait_of(report, 101).evidence)
    assert report.verdict.state is State.UNKNOWN


def test_gpus_alike_share_a_row_and_trouble_is_told() -> None:
    sick = replace(
        H200,
        index=2,
        throttled=("hw power brake",),
        clock_sm=345,
        clock_sm_max=1980,
        ecc_uncorrected=1,
        links=4,
        links_down=(2,),
        recovery="gpu reset",
    )
    lost = GpuFacts(index=3, uuid="", name="", problem="GPU is lost")
    report = analyze(spinning(100, gpus=(H200, replace(H200, index=1), sick, lost)))
    text = " ".join(render_text(report, color=False).split())
    assert "gpus 0-1 H200, 100 % busy, memory 0 %, 118 of 700 W" in text
    assert "the driver asks for: gpu reset" in text
    assert "1 uncorrected memory error" in text
    assert "NVLink 2 of 4 down" in text
    assert "held back by hw power brake (345 of 1980 MHz)" in text
    assert "gpu 3 GPU is lost" in text


def test_what_was_prepared_is_offered_and_what_it_does_is_said() -> None:
    prepared = (
        PreparedExtra(kind=Prepared.GPU_CORE_DUMP, path="/data/core pipe", ends_process=True),
        PreparedExtra(kind=Prepared.TORCH_DUMP, path="/tmp/fr_0.pipe"),
        PreparedExtra(kind=Prepared.NCCL_PROXY_DUMP, signal=10),
    )
    settings = (("CUDA_LAUNCH_BLOCKING", "1"), ("CUDA_VISIBLE_DEVICES", "0"))
    process = CudaProcess(pid=100, minors=(4,), settings=settings, prepared=prepared)
    report = analyze(spinning(100, cuda=(process,)))
    steps = report.verdict.next_steps
    assert steps[0].startswith("echo 1 > '/proc/100/root/data/core pipe': writes a core dump")
    assert "ends it" in steps[0]
    assert steps[1].startswith("echo 1 > /proc/100/root/tmp/fr_0.pipe")
    assert steps[2].startswith("kill -10 100")
    assert "CUDA_LAUNCH_BLOCKING=1" in wait_of(report, 100).evidence


def test_threads_of_the_driver_only_serve() -> None:
    served = b.sleeper(100, 300, comm="cuda-EvtHandlr", frames=(b.native("poll", LIBC), NAMELESS))
    looks = b.twice(b.sleeper(100), served)
    report = analyze(b.evidence([b.process(100, role=Role.OTHER)], looks))
    assert not [wait for wait in report.waits if wait.tid == 300]


def test_a_rank_that_is_stopped_is_told_where_no_wait_leads_to_it() -> None:
    waiting = b.sleeper(100, frames=SYNCHRONIZE)
    report = analyze(b.evidence(b.ranks(2), b.twice(waiting, b.stopped(101))))
    assert (report.verdict.state, report.verdict.culprits) == (State.UNKNOWN, ())
    assert "Rank 1 (pid 101) is stopped" in report.verdict.summary
    assert "kill -CONT 101" in report.verdict.next_steps
