"""Threads that run, are stopped, or are inside the kernel or a GPU driver: the state says more than any frame."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze import objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import polls, python_frames
from pyhangtrace.analyze.gpu_devices import device_words, fault_of, settings_words
from pyhangtrace.analyze.progress import GOES_ON, STOPPED, Progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.spinning import Loop, describe_samples, loop_of
from pyhangtrace.model.kinds import Confidence, FdKind, FrameKind, Kind, WaitKind
from pyhangtrace.model.report import ReportHolder, WaitObject
from pyhangtrace.model.threads import ThreadSample

_USER_FAULT = "userfault"
# Where a thread queues for the lock of its memory map. Kernels that do not show the lock's own functions show who
# called them (mm/mmap.c, mm/vma.c, include/linux/mmap_lock.h).
_QUEUED = (
    "rwsem_down",
    "down_",
    "mmap_read_lock",
    "mmap_write_lock",
    "vm_mmap_pgoff",
    "__vm_munmap",
    "vm_munmap",
    "do_mprotect_pkey",
    "__do_sys_brk",
    "vma_start_",
    "__vma_start_",
)
_MAP_CALLS = frozenset({"mmap", "munmap", "mprotect", "mremap", "brk", "madvise", "msync"})

# Name of the object of a wait that a control group keeps up.
FREEZER = "freezer"

# A control group whose quota took more of the window than this kept its members from their work.
THROTTLED_SHARE = 0.3


def stopped(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Stopped by a signal or a tracer."""
    process = scene.processes.get(sample.pid)
    if process is not None and process.frozen_by is not None and _may_be_frozen(sample):
        return _frozen(draft, process.frozen_by, sample)
    if sample.state not in STOPPED:
        return None
    tracer = sample.tracer_pid or (process.tracer_pid if process is not None else None)
    evidence = [f"state {sample.state} ({'stopped by a tracer' if tracer else 'stopped by a signal'})"]
    if tracer:
        evidence.append(f"TracerPid {tracer}")
    else:
        evidence.append(f"{objects.NO_OWNER}: the kernel does not keep who sent the signal")
    return changed(
        draft,
        kind=WaitKind.STOPPED,
        standing=Standing.STOPPED,
        cause=Kind.OBSERVER_STUCK if tracer else Kind.PEER_STOPPED,
        holder=ReportHolder(pid=tracer) if tracer else None,
        ends_by_itself=False,
        lasts_s=None,
        evidence=(*evidence, *draft.evidence),
    )


def _may_be_frozen(sample: ThreadSample) -> bool:
    """The group may have been thawed since it was looked at: a thread that sleeps elsewhere by now is not frozen.

    In the unified hierarchy it sleeps in do_freezer_trap(), which compilers put into get_signal().
    """
    where = sample.wchan or ""
    return not sample.running and (
        not where or "refrigerator" in where or "freezer" in where or where == "get_signal"
    )


def _frozen(draft: Blocked, group: str, sample: ThreadSample) -> Blocked:
    return changed(
        draft,
        kind=WaitKind.STOPPED,
        standing=Standing.STOPPED,
        cause=Kind.PEER_STOPPED,
        object=WaitObject(name=FREEZER, path=group),
        ends_by_itself=False,
        lasts_s=None,
        evidence=(
            f"state {sample.state}, frozen by the control group {group}",
            f"{objects.NO_OWNER}: the kernel does not keep who froze the group",
            *draft.evidence,
        ),
    )


def running(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """On the CPU, and not polling in a wait."""
    # Who looks again and again in a call that is known for it is on the CPU now and then, and waits all the same.
    if draft.progress is not Progress.RUNNING or polls(draft.call):
        return None
    share = scene.thread_cpu_s((sample.pid, sample.tid))
    samples = scene.samples[draft.key]
    evidence = [f"state {sample.state}, on the CPU"]
    if share is not None and scene.evidence.window_s > 0:
        evidence.append(f"{share:.2f} s CPU within {scene.evidence.window_s:.1f} s")
    throttled = throttled_share(scene, sample.pid)
    if throttled > THROTTLED_SHARE:
        group = scene.processes[sample.pid].cpu_cgroup
        evidence.append(f"throttled by the CPU quota of {group} for {throttled:.0%} of the time")
    sampled = describe_samples(samples)
    if sampled is not None:
        evidence.append(sampled)
    return changed(
        draft,
        kind=WaitKind.THROTTLED if throttled > THROTTLED_SHARE else WaitKind.RUNNING,
        standing=Standing.RUNNING,
        cause=Kind.CPU_THROTTLED
        if throttled > THROTTLED_SHARE
        else _running_cause(scene, sample, loop_of(samples)),
        evidence=tuple(evidence),
    )


def throttled_share(scene: Scene, pid: int) -> float:
    """For how much of the window the quota of its control group kept a process off the CPU; 0.0 if unknown."""
    process = scene.processes.get(pid)
    window = scene.evidence.window_s
    if process is None or process.throttled_s_in_window is None or window <= 0:
        return 0.0
    return min(1.0, process.throttled_s_in_window / window)


def _running_cause(scene: Scene, sample: ThreadSample, loop: Loop | None) -> Kind:
    if scene.is_compiler(sample.pid):
        return Kind.COMPILE_RUNNING
    # One function in all samples may as well compute: only what is known to do nothing but wait is a spin.
    spins = loop is not None and loop.is_spin
    return Kind.CPU_SPIN if spins or scene.syscall(sample) == "sched_yield" else Kind.CPU_BUSY


def gpu(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Inside a GPU driver: at work or hung, the host does not tell."""
    if draft.service is not None or (sample.lock is not None and sample.lock.owner_tid is not None):
        # A lock of the driver: whoever has it may be the one that waits for the device.
        return None
    call = scene.reading(sample).gpu
    if call is None:
        return None
    samples = scene.samples[draft.key]
    stays = len(samples) > 1 and len({_python_stack(each) for each in samples}) == 1
    spins = draft.progress in GOES_ON
    fault = fault_of(scene, sample.pid)
    return changed(
        draft,
        kind=WaitKind.GPU,
        standing=Standing.OPAQUE if fault is None else Standing.FIRM,
        cause=Kind.UNKNOWN if fault is None else Kind.GPU_FAULT,
        basis=Confidence.LIKELY,
        # The driver spins while it waits: burning CPU at one place is no progress.
        progress=(Progress.REARMED if stays else Progress.MOVING) if spins else draft.progress,
        ends_by_itself=False,
        object=WaitObject(name=call.function),
        evidence=(
            *draft.evidence,
            f"{'spins' if spins else 'sleeps'} in {call.function or 'the driver'}: waits for {call.wait.value}",
            *settings_words(scene, sample.pid),
            *device_words(scene, sample.pid, fault),
        ),
    )


def _python_stack(sample: ThreadSample) -> tuple[tuple[str, int | None], ...]:
    return tuple((frame.function, frame.line) for frame in python_frames(sample.frames))


def kernel(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Asleep in the kernel without a call that says for what: storage, page faults, drivers."""
    if sample.state != "D" and sample.syscall != -1:
        return None
    functions = [frame.function for frame in sample.frames if frame.kind is FrameKind.KERNEL]
    answerers = _answerers(scene, sample)
    # One thread that sleeps inside of a call for the map has its lock, also where the kernel does not tell its owner.
    keeper = answerers if len(answerers) == 1 and _waits_for_map(scene, sample) else ()
    owner = _map_owner(scene, sample)
    recorded = owner not in (None, sample.tid)
    faults = any("fault" in name for name in functions) or (sample.syscall == -1 and not functions)
    return changed(
        draft,
        kind=WaitKind.PAGE_FAULT if faults else WaitKind.IO,
        standing=Standing.FIRM,
        cause=_kernel_cause(sample, functions),
        basis=Confidence.PROVEN if recorded else Confidence.LIKELY if keeper else draft.basis,
        object=_kernel_object(scene, sample),
        holder=ReportHolder(pid=sample.pid, tid=owner) if recorded else None,
        targets=keeper,
        candidates=answerers,
        evidence=(
            *draft.evidence,
            f"state {sample.state} in {sample.wchan or (functions[0] if functions else 'the kernel')}",
            *_kernel_words(scene, sample, answerers),
        ),
    )


def named_file(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Asleep in a call that names a file or an address; the kernel's function says what it does there."""
    if sample.path is None:
        return None
    where = (*((f"in {sample.wchan}",) if sample.wchan else ()), *_path_words(scene, sample))
    return changed(
        draft,
        object=WaitObject(path=sample.path, name=sample.wchan),
        candidates=tuple((pid, 0) for pid in _file_servers(scene, sample) if pid != sample.pid),
        evidence=(*draft.evidence, *where),
    )


def _path_words(scene: Scene, sample: ThreadSample) -> tuple[str, ...]:
    if sample.path_mount is None:
        return ()
    mapped = "the only mapped file that has to be provided, " if sample.syscall == -1 else ""
    words = [f"{mapped}{sample.path} is on a file system of type {sample.path_mount}"]
    if servers := _file_servers(scene, sample):
        words.append(f"served by pid {', '.join(map(str, servers))}; {objects.NO_OWNER}")
    return tuple(words)


def _kernel_object(scene: Scene, sample: ThreadSample) -> WaitObject:
    """The kernel's function, and the file that the call names."""
    facts = scene.fds.get((sample.pid, sample.io_fds[0])) if sample.io_fds else None
    found = objects.thing(facts, facts.fd) if facts is not None else WaitObject(path=sample.path)
    return changed(found, name=sample.wchan)


def _answerers(scene: Scene, sample: ThreadSample) -> tuple[Key, ...]:
    """Who could answer: for a userfaultfd those who have it open, for a memory map's lock the thread inside of it."""
    if _USER_FAULT in (sample.wchan or ""):
        pids = {fd.pid for fd in scene.fds.values() if fd.kind is FdKind.USERFAULTFD}
        return tuple((pid, 0) for pid in sorted(pids))
    if servers := _file_servers(scene, sample):
        return tuple((pid, 0) for pid in servers if pid != sample.pid)
    if (owner := _map_owner(scene, sample)) and owner != sample.tid:
        return ((sample.pid, owner),)
    if _waits_for_map(scene, sample):
        return tuple(
            key
            for key in scene.threads_of(sample.pid)
            if key[1] != sample.tid
            and (other := scene.thread(key)) is not None
            and other.state == "D"
            and not (other.wchan or "").startswith(_QUEUED)
            and _may_have_map(scene, other)
        )
    return ()


def _file_servers(scene: Scene, sample: ThreadSample) -> tuple[int, ...]:
    """Processes that serve the FUSE file system on whose account a thread sleeps."""
    if sample.fuse_connection is None:
        return ()
    connection = ("fuse_connection", sample.fuse_connection)
    return tuple(
        sorted({fd.pid for fd in scene.fds.values() if fd.target == "/dev/fuse" and connection in fd.info})
    )


def _may_have_map(scene: Scene, sample: ThreadSample) -> bool:
    """Whether what a thread sleeps in is done with the lock of the memory map: a page fault, or a call for the map."""
    return sample.syscall in (-1, None) or scene.syscall(sample) in _MAP_CALLS


def _waits_for_map(scene: Scene, sample: ThreadSample) -> bool:
    queued = (sample.wchan or "").startswith(_QUEUED)
    return queued and (sample.syscall == -1 or scene.syscall(sample) in _MAP_CALLS)


def _map_owner(scene: Scene, sample: ThreadSample) -> int | None:
    """The thread that the kernel records as having the lock of the map: another one, or this one itself."""
    process = scene.processes.get(sample.pid)
    owner = process.map_lock_tid if process is not None else None
    if owner is None or not _waits_for_map(scene, sample) or scene.thread((sample.pid, owner)) is None:
        return None
    return owner


def _map_words(scene: Scene, sample: ThreadSample, answerers: Sequence[Key]) -> str:
    owner = _map_owner(scene, sample)
    if owner is not None and owner != sample.tid:
        return f"queues for the lock of its memory map, which thread {owner} has, by the kernel's own word"
    inside = ", ".join(str(tid) for _, tid in answerers)
    keeper = f", with which thread {inside} sleeps in the kernel" if inside else ""
    if owner is not None:
        return (
            f"has the lock of its memory map, and queues for that of one mapping{keeper}; {objects.NO_OWNER}"
        )
    return f"queues for the lock of its memory map{keeper}; {objects.NO_OWNER}"


def _kernel_words(scene: Scene, sample: ThreadSample, answerers: Sequence[Key]) -> list[str]:
    words = []
    if _USER_FAULT in (sample.wchan or ""):
        who = ", ".join(str(pid) for pid, _ in answerers)
        open_in = f"open in pid {who}" if who else "nobody that could be searched has one open"
        words.append(f"a userfaultfd in which a fault waits: {open_in}; {objects.NO_OWNER}")
    if _waits_for_map(scene, sample):
        words.append(_map_words(scene, sample, answerers))
    facts = scene.fds.get((sample.pid, sample.io_fds[0])) if sample.io_fds else None
    if facts is not None and facts.fs_type is not None:
        at = f" mounted at {facts.mount}" if facts.mount is not None else ""
        words.append(f"{facts.target} is on a file system of type {facts.fs_type}{at}")
    return [*words, *_path_words(scene, sample)]


def _kernel_cause(sample: ThreadSample, functions: list[str]) -> Kind:
    names = [*functions, sample.wchan or ""]
    return (
        Kind.DRIVER_BLOCKED if any("nvidia" in name or "uvm_" in name for name in names) else Kind.IO_STALLED
    )
