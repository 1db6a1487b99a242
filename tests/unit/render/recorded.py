"""A hand-made recording of two ranks: one waits for a lock, one works and faults."""

from __future__ import annotations

from pyhangtrace.model.kinds import FoundBy, FrameKind, Role
from pyhangtrace.model.probes import WakerCount
from pyhangtrace.model.recording import (
    CollectiveCount,
    EventKind,
    FaultCount,
    Metric,
    OffCpu,
    OffState,
    PlaceFaults,
    RecordedProcess,
    RecordedThread,
    Recording,
    RecordingCost,
    StackSample,
    TimedEvent,
    WordWaits,
)
from pyhangtrace.model.stacks import Frame


def native(function: str) -> Frame:
    return Frame(kind=FrameKind.NATIVE, function=function, module="/lib/libc.so.6", found_by=FoundBy.CFI)


def python(function: str, line: int, file: str = "/app/train.py") -> Frame:
    return Frame(kind=FrameKind.PYTHON, function=function, file=file, line=line, found_by=FoundBy.PYTHON)


MAIN = python("<module>", 90)
WAITS = (native("futex_wait"), python("take", 12), MAIN)
RUNS = (python("step; <b>", 30), MAIN)
REDUCES = (
    native("futex_wait"),
    python("all_reduce", 2800, "/venv/torch/distributed/distributed_c10d.py"),
    python("train", 40),
    MAIN,
)
WORD, OTHER_WORD = 0x7000_0000_1000, 0x7000_0000_2000


def recording(metric: Metric = Metric.FUTEX) -> Recording:
    def sample(at_s: float, pid: int, stack: int, **more: object) -> StackSample:
        return StackSample(at_s=at_s, pid=pid, tid=pid, stack=stack, **more)  # type: ignore[arg-type]

    return Recording(
        tool_version="0.0",
        taken_at="2026-01-01T00:00:00+00:00",
        host="node-a",
        attached_to=(100,),
        metric=metric,
        window_s=2.0,
        processes=(
            RecordedProcess(
                pid=100,
                rank=0,
                role=Role.RANK,
                title="python train.py",
                wakers=(WakerCount(tid=101, woke=100, count=4),),
                block_requests=2,
                block_bytes=8192,
            ),
            RecordedProcess(pid=200, rank=1, role=Role.RANK, title="python train.py"),
        ),
        threads=(
            RecordedThread(
                pid=100,
                tid=100,
                name="MainThread",
                waits=4,
                wait_s=0.8,
                longest_wait_s=0.5,
                open_wait_s=0.6,
                open_address=OTHER_WORD,
                cpu_s=0.1,
                seen_s=2.0,
            ),
            RecordedThread(
                pid=100, tid=101, name="helper", stood_s=2.0, stood_address=WORD, cpu_s=0.0, seen_s=2.0
            ),
            RecordedThread(
                pid=200,
                tid=200,
                name="MainThread",
                minor_faults=10,
                major_faults=2,
                cpu_s=1.5,
                seen_s=2.0,
            ),
        ),
        words=(
            WordWaits(pid=100, tid=100, address=WORD, operation="wait", waits=4, wait_s=0.8, longest_s=0.5),
        ),
        off_cpu=(
            OffCpu(
                pid=100,
                tid=100,
                state=OffState.SLEEPING,
                kernel=("__schedule", "futex_wait_queue", "do_futex"),
                times=5,
                off_s=1.4,
                longest_s=0.6,
            ),
            OffCpu(
                pid=200,
                tid=200,
                state=OffState.UNINTERRUPTIBLE,
                kernel=("__schedule", "io_schedule", "filemap_fault"),
                times=2,
                off_s=0.25,
                longest_s=0.2,
            ),
        )
        if metric is Metric.OFFCPU
        else (),
        places=(
            PlaceFaults(
                pid=200, tid=200, address=0x7F00_0000_0000, mapping="/data/model.bin", minor=3, major=2
            ),
        )
        if metric is Metric.FAULTS
        else (),
        events=(
            TimedEvent(
                kind=EventKind.FUTEX_WAIT, pid=100, tid=100, at_s=0.1, took_s=0.5, number=WORD, waker=101
            ),
            TimedEvent(kind=EventKind.UNINTERRUPTIBLE, pid=100, tid=100, at_s=0.2, took_s=0.1),
            TimedEvent(kind=EventKind.MAJOR_FAULT, pid=200, tid=200, at_s=0.3, number=0x7F00_0000_0000),
            TimedEvent(kind=EventKind.SIGNAL, pid=200, tid=200, at_s=0.4, number=10, text="SIGUSR1"),
            TimedEvent(kind=EventKind.EXIT, pid=200, tid=200, at_s=1.9),
        ),
        stacks=(WAITS, RUNS, REDUCES, (native("start_thread"),)),
        samples=(
            sample(0.0, 100, 0, state="S", syscall=202, address=WORD, slices=1),
            sample(0.0, 200, 1, state="R", slices=5, on_cpu=True),
            sample(0.5, 100, 0, state="S", syscall=202, address=WORD, slices=2),
            sample(0.5, 200, 1, state="R", slices=6, on_cpu=True),
            sample(1.0, 100, 3, state="S", syscall=202, address=WORD, slices=3),
            sample(1.0, 200, 2, state="S", syscall=202, address=OTHER_WORD, slices=7),
            sample(1.5, 100, 2, state="S", syscall=202, address=OTHER_WORD, slices=4),
            sample(1.5, 200, 2, state="S", syscall=202, address=OTHER_WORD, slices=7),
            sample(2.0, 100, 2, state="S", syscall=202, address=OTHER_WORD, slices=4),
            sample(2.0, 200, 1, state="R", slices=9, on_cpu=True),
        ),
        fault_counts=(
            FaultCount(at_s=0.0, pid=200, minor=100, major=1),
            FaultCount(at_s=1.0, pid=200, minor=110, major=3),
        ),
        collectives=(
            CollectiveCount(
                pid=100, group="default_pg", before=10, after=14, passed_s=2.0, last="all_reduce"
            ),
            CollectiveCount(pid=200, group="default_pg", before=10, after=13, passed_s=2.5),
        ),
        lost=(("waits that are in no sum by futex word", 3),),
        cost=RecordingCost(ready_s=0.4, attached_s=2.1, cpu_s=0.5, snapshots=5),
    )
