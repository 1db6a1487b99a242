"""Threads that run, are stopped, or are inside the kernel or a GPU driver: the state says more than any frame."""

from __future__ import annotations

from dataclasses import replace

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.calls import python_frames, waits_for_gpu
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.analyze.spinning import Loop, describe_samples, loop_of
from pyhangtrace.model.evidence import ThreadSample
from pyhangtrace.model.kinds import Confidence, FrameKind, Kind, WaitKind
from pyhangtrace.model.report import ReportHolder, WaitObject


def stopped(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Stopped by a signal or a tracer."""
    if sample.state not in ("T", "t"):
        return None
    process = scene.processes.get(sample.pid)
    tracer = process.tracer_pid if process is not None and process.tracer_pid else None
    evidence = [f"state {sample.state} ({'stopped by a tracer' if tracer else 'stopped by a signal'})"]
    if tracer:
        evidence.append(f"TracerPid {tracer}")
    return replace(
        draft,
        kind=WaitKind.STOPPED,
        standing=Standing.STOPPED,
        cause=Kind.OBSERVER_STUCK if tracer else Kind.PEER_STOPPED,
        holder=ReportHolder(pid=tracer) if tracer else None,
        ends_by_itself=False,
        lasts_s=None,
        evidence=(*evidence, *draft.evidence),
    )


def running(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """On the CPU, and not spinning in a wait."""
    spins = draft.call is not None and draft.call.spins
    if draft.progress is not Progress.RUNNING or spins:
        return None
    share = scene.thread_cpu_s((sample.pid, sample.tid))
    samples = scene.samples[draft.key]
    evidence = [f"state {sample.state}, on the CPU"]
    if share is not None and scene.evidence.window_s > 0:
        evidence.append(f"{share:.2f} s CPU within {scene.evidence.window_s:.1f} s")
    sampled = describe_samples(samples)
    if sampled is not None:
        evidence.append(sampled)
    return replace(
        draft,
        kind=WaitKind.RUNNING,
        standing=Standing.RUNNING,
        cause=_running_cause(scene, sample, loop_of(samples)),
        evidence=tuple(evidence),
    )


def _running_cause(scene: Scene, sample: ThreadSample, loop: Loop | None) -> Kind:
    if scene.is_compiler(sample.pid):
        return Kind.COMPILE_RUNNING
    # One function in all samples may as well compute: only what is known to do nothing but wait is a spin.
    spins = loop is not None and loop.is_spin
    return Kind.CPU_SPIN if spins or scene.syscall(sample) == "sched_yield" else Kind.CPU_BUSY


def gpu(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Inside a GPU driver: at work or hung, the host does not tell."""
    if draft.service is not None or not waits_for_gpu(sample.frames):
        return None
    samples = scene.samples[draft.key]
    stays = len(samples) > 1 and len({_python_stack(each) for each in samples}) == 1
    spins = draft.progress in (Progress.RUNNING, Progress.MOVING)
    return replace(
        draft,
        kind=WaitKind.GPU,
        standing=Standing.OPAQUE,
        cause=Kind.UNKNOWN,
        basis=Confidence.LIKELY,
        # The driver spins while it waits: burning CPU at one place is no progress.
        progress=(Progress.REARMED if stays else Progress.MOVING) if spins else draft.progress,
        ends_by_itself=False,
    )


def _python_stack(sample: ThreadSample) -> tuple[tuple[str, int | None], ...]:
    return tuple((frame.function, frame.line) for frame in python_frames(sample.frames))


def kernel(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Asleep in the kernel without a call that says for what: storage, page faults, drivers."""
    if sample.state != "D" and sample.syscall != -1:
        return None
    functions = [frame.function for frame in sample.frames if frame.kind is FrameKind.KERNEL]
    faults = any("fault" in name for name in functions) or (sample.syscall == -1 and not functions)
    return replace(
        draft,
        kind=WaitKind.PAGE_FAULT if faults else WaitKind.IO,
        standing=Standing.FIRM,
        cause=_kernel_cause(sample, functions),
        object=WaitObject(name=sample.wchan),
        evidence=(
            *draft.evidence,
            f"state D in {sample.wchan or (functions[0] if functions else 'the kernel')}",
        ),
    )


def _kernel_cause(sample: ThreadSample, functions: list[str]) -> Kind:
    names = [*functions, sample.wchan or ""]
    return (
        Kind.DRIVER_BLOCKED if any("nvidia" in name or "uvm_" in name for name in names) else Kind.IO_STALLED
    )
