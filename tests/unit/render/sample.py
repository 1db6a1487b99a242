"""A report made by hand: eight ranks, seven in an all_reduce, rank 3 behind a file lock of a stopped outsider."""

from __future__ import annotations

from pyhangtrace.model.evidence import Evidence, JobFacts, Look
from pyhangtrace.model.host import HostFacts
from pyhangtrace.model.kinds import (
    Confidence,
    FoundBy,
    FrameKind,
    Kind,
    MemoryVerdict,
    Part,
    Role,
    SourceState,
    StackFrom,
    State,
    WaitKind,
)
from pyhangtrace.model.report import (
    Cleared,
    Collective,
    Coverage,
    Culprit,
    MemoryReport,
    Phase,
    Report,
    ReportCost,
    ReportHolder,
    ReportMemory,
    ReportProcess,
    ReportThread,
    Verdict,
    Victim,
    Wait,
    WaitObject,
    Workload,
)
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.result import Result

GB = 1_000_000_000
RANKS = tuple(rank for rank in range(8) if rank != 3)


def frame(function: str, file: str, line: int) -> Frame:
    """A Python frame."""
    return Frame(kind=FrameKind.PYTHON, function=function, file=file, line=line, found_by=FoundBy.PYTHON)


def native(function: str, module: str) -> Frame:
    """A native frame."""
    return Frame(
        kind=FrameKind.NATIVE, function=function, module=module, address=0x7F0000001000, found_by=FoundBy.CFI
    )


VICTIM_STACK = (
    native("pthread_cond_wait", "/lib/x86_64-linux-gnu/libc.so.6"),
    native("c10d::Work::wait(std::chrono::duration<long>)", "/opt/torch/lib/libtorch_cpu.so"),
    frame("all_reduce", "/opt/torch/distributed/distributed_c10d.py", 3252),
    frame("forward", "/opt/serve/model.py", 88),
    frame("<module>", "/opt/serve/worker.py", 12),
)
CULPRIT_STACK = (
    native("flock", "/lib/x86_64-linux-gnu/libc.so.6"),
    frame("build", "/opt/serve/kernels.py", 41),
    frame("forward", "/opt/serve/model.py", 88),
    frame("<module>", "/opt/serve/worker.py", 12),
)


def process(rank: int, *, stack: tuple[Frame, ...], wait: str) -> ReportProcess:
    """A scheduler process with one interesting and one service thread."""
    pid = 4240 + rank
    return ReportProcess(
        pid=pid,
        ppid=4200,
        host="a100-07",
        rank=rank,
        local_rank=rank,
        coords={"tp": rank},
        rank_from=("title",),
        role=Role.SCHEDULER,
        title=f"sglang::scheduler_TP{rank}",
        state="S",
        exit_code=None,
        asleep_for_s=74.0,
        memory=ReportMemory(rss=425 * GB),
        probe=None,
        threads=(
            ReportThread(
                tid=pid,
                name="MainThread",
                comm="sglang::schedul",
                state="S",
                wait=wait,
                asleep_for_s=74.0,
                stack_from=StackFrom.PC_SP,
                stack=stack,
            ),
            ReportThread(
                tid=pid + 1000,
                name=None,
                comm="gloo_tcp_loop",
                state="S",
                service="gloo loop",
                stack_from=StackFrom.PC_SP,
                stack=(native("epoll_wait", "/lib/x86_64-linux-gnu/libc.so.6"),),
            ),
        ),
    )


def outsider() -> ReportProcess:
    """The foreign holder of the file lock."""
    return ReportProcess(
        pid=9911,
        ppid=1,
        host="a100-07",
        rank=None,
        local_rank=None,
        coords={},
        rank_from=(),
        role=Role.OUTSIDER,
        title="python warmup.py \x1b[31m<evil>",
        state="T",
        exit_code=None,
        asleep_for_s=360.0,
        memory=ReportMemory(rss=27_000_000),
        probe=None,
        threads=(ReportThread(tid=9911, name=None, comm="python", state="T", wait="w9"),),
    )


def report() -> Report:
    """The whole report."""
    waits = [
        Wait(
            id=f"w{rank}",
            pid=4240 + rank,
            tid=4240 + rank,
            kind=WaitKind.COLLECTIVE,
            object=WaitObject(collective="c0"),
            since_s=73.9,
            evidence=("frame all_reduce",),
        )
        for rank in RANKS
    ]
    waits.append(
        Wait(
            id="w3",
            pid=4243,
            tid=4243,
            kind=WaitKind.FILE_LOCK,
            object=WaitObject(path="/root/.cache/flashinfer/0.2.9/90/cached_ops/lock", fd=17),
            holder=ReportHolder(pid=9911),
            since_s=74.2,
            evidence=("syscall flock(17, LOCK_EX)", "/proc/locks names pid 9911"),
        )
    )
    waits.append(
        Wait(id="w9", pid=9911, tid=9911, kind=WaitKind.STOPPED, since_s=360.0, evidence=("state T",))
    )
    return Report(
        tool_version="0.1.0",
        host="a100-07",
        taken_at="2026-01-02T03:04:05Z",
        attached_to=(4242,),
        window_s=0.1,
        verdict=Verdict(
            state=State.HUNG,
            symptom=Kind.COLLECTIVE_MISSING_RANK,
            cause=Kind.FILE_LOCK_HELD,
            confidence=Confidence.PROVEN,
            summary="Rank 3 (pid 4243) never entered all_reduce of tp: its main thread waits for a file lock "
            "held by pid 9911, which is stopped.",
            culprits=(
                Culprit(rank=3, pid=4243, tid=4243, thread="MainThread", wait="w3", part=Part.CULPRIT),
                Culprit(rank=None, pid=9911, tid=9911, thread="python", wait="w9", part=Part.CULPRIT),
            ),
            victims=tuple(
                Victim(rank=rank, pid=4240 + rank, tid=4240 + rank, wait=f"w{rank}") for rank in RANKS
            ),
            chain=("w0", "w3", "w9"),
            cleared=(
                Cleared(
                    suspect="memory",
                    because="RSS 3.4 TB is one set of pages mapped 8 times: the group holds at most 412 GB of "
                    "page cache, 415 GB available, no OOM kill",
                ),
            ),
            next_steps=("kill -CONT 9911, or end it: the lock is then released",),
        ),
        workload=Workload(
            framework="sglang",
            world_size=8,
            ranks_seen=tuple(range(8)),
            phase=Phase(name="weight_loading", detail="done"),
        ),
        processes=(
            *(
                process(rank, stack=CULPRIT_STACK if rank == 3 else VICTIM_STACK, wait=f"w{rank}")
                for rank in range(8)
            ),
            outsider(),
        ),
        waits=tuple(waits),
        collectives=(
            Collective(
                id="c0",
                group="tp",
                backend="gloo",
                op="all_reduce",
                seq=418,
                count=4096,
                dtype="bfloat16",
                expected=tuple(range(8)),
                entered=RANKS,
                missing=(3,),
                sources=("stack",),
            ),
        ),
        memory=MemoryReport(
            verdict=MemoryVerdict.RSS_ILLUSION, rss_sum=3400 * GB, summary="one set of pages"
        ),
        gpus=(),
        coverage=(
            Coverage(source="ebpf", state=SourceState.REFUSED, reason="not root", fix="sudo hangtrace …"),
            Coverage(source="stacks", state=SourceState.USED),
        ),
        cost=ReportCost(wall_s=0.8, cpu_s=0.4, stopped_us={}, probe_attached_s=0.0),
    )


def result() -> Result:
    """The report beside the smallest evidence that can be packed."""
    evidence = Evidence(
        tool_version="0.1.0",
        taken_at="2026-01-02T03:04:05Z",
        attached_to=(4242,),
        host=HostFacts(name="a100-07"),
        job=JobFacts(root_pid=4200, members=(4242,), found_by="by hand"),
        processes=(),
        looks=(Look(at_s=0.0, threads=()),),
    )
    return Result(report=report(), evidence=evidence)
