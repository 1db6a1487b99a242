"""Threads, stacks, locks and interpreters, by the native engine inside the guarded reader."""

from __future__ import annotations

import math
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect import rungs
from pyhangtrace.collect.guarded import MMAP_LOCK_HELD, GuardedReader, HelperState, Progress
from pyhangtrace.collect.named_values import TYPES
from pyhangtrace.collect.procfs import PROC, printable, read_text
from pyhangtrace.collect.threads import lock_keeper, read_thread, thread_ids
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import FoundBy, FrameKind, PolledThing, StackFrom, TaskKind, TaskObjectKind
from pyhangtrace.model.processes import PythonFacts
from pyhangtrace.model.stacks import Frame, StackSamples
from pyhangtrace.model.threads import LockFacts, NamedValue, TaskObject, TaskSample, ThreadSample

if TYPE_CHECKING:
    from pyhangtrace._native import (
        FrameTuple,
        LockCapture,
        ProcessCapture,
        PythonValue,
        TaskCapture,
        TaskObjectCapture,
        ThreadCapture,
    )

CAPTURE_TASK = "capture"
PROGRAM_ENVIRON_TASK = "program_environ"
ASLEEP_TASK = "asleep"
_ENGINE = "engine"
# Functions that try a lock, by what they are called in C and C++ (demangled), and that give one back.
_TRIES = re.compile(r"(?:^|[^a-z])try_?(?:rd|wr)?lock(?:_shared)?(?![a-z])", re.IGNORECASE)
_TESTS = re.compile(r"P?MPI_Test(?:all)?$")
_NAPS = re.compile(r"_*(?:u|nano|clock_nano)?sleep$|_*sched_yield$")
_GIVES = re.compile(r"(?:^|[^a-z])(?:un_?lock|release)", re.IGNORECASE)
_EXEC_START = "se.exec_start"
_ASLEEP_SHARE = 0.7  # of the time left, so that what was read also comes back
# Of a deadline; the rest is for naming and handing over what was read: what comes late is lost as a whole.
_READING_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How to look: locals to read by function, and which ways to registers may be used; without `running`, threads that
    run are not sampled and have no stack. `stop` are the processes of
    which a thread may be stopped for a moment where nothing else gives its stack. At `until` (time.monotonic(), the
    same clock in all processes) nothing further is read.
    """

    named_locals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bpf: bool = True
    running: bool = True
    stop: tuple[int, ...] = ()
    until: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessPicture:
    """One process in one look. `kernel_stacks` is by thread id."""

    pid: int
    threads: tuple[ThreadSample, ...]
    python: PythonFacts | None
    problem: str | None
    problem_tid: int | None
    cpus: dict[int, int]  # thread id -> the CPU it ran on last
    notes: tuple[str, ...] = ()
    rungs: tuple[SourceStatus, ...] = ()
    tasks: tuple[TaskSample, ...] = ()
    stopped_us: int = 0


def capture_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: one picture of all processes by the native engine, which keeps its caches in the helper."""
    options: CaptureOptions = argument
    found = native_engine(state).capture(
        list(pids),
        named_locals=dict(options.named_locals),
        bpf=options.bpf,
        running=options.running,
        stop=options.stop,
        on_process=progress,
        budget_s=max(0.0, options.until - time.monotonic()) if options.until is not None else None,
        workers=1 if state.one_at_a_time else 0,
    )
    for captured in found:
        yield captured["pid"], captured


def program_environ_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: os.environ as each Python program sees it now, only the names in `argument`."""
    for pid in pids:
        progress(pid)
        yield pid, native_engine(state).python_environ(pid, list(argument))


def native_engine(state: HelperState) -> Any:
    """The engine of the helper, with all that it has learned so far."""
    engine = state.kept.get(_ENGINE)
    if engine is None:
        from pyhangtrace import _native

        _allow_descriptors()
        engine = state.kept[_ENGINE] = _native.Engine(state.proc_root)
    return engine


def _allow_descriptors() -> None:
    """The engine keeps two files a thread open, if it may; only this helper process is changed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        return  # then it opens more often


def collect(
    reader: GuardedReader,
    pids: Sequence[int],
    *,
    options: CaptureOptions,
    deadline_s: float,
    proc_root: str = PROC,
) -> dict[int, ProcessPicture]:
    """One picture per process asked for. Of one that the reader had to give up, what needs no memory is there."""
    options = replace(options, until=time.monotonic() + _READING_SHARE * deadline_s)
    answers = reader.run(CAPTURE_TASK, pids, options, deadline_s=deadline_s)
    pictures = {pid: picture(captured) for pid, captured in answers.values.items()}
    for pid, problem in answers.problems.items():
        threads = threads_without_memory(pid, proc_root)
        keeper = lock_keeper(threads) if problem == MMAP_LOCK_HELD else None
        pictures[pid] = ProcessPicture(pid, threads, None, problem if threads else "gone", keeper, {})
    return {pid: pictures[pid] for pid in dict.fromkeys(pids) if pid in pictures}


def program_environs(
    reader: GuardedReader, pids: Sequence[int], names: Sequence[str], *, deadline_s: float
) -> dict[int, dict[str, str]]:
    """os.environ from memory, for the processes where there was one."""
    answers = reader.run(PROGRAM_ENVIRON_TASK, pids, tuple(names), deadline_s=deadline_s)
    return {
        pid: {name: printable(value) for name, value in found.items()}
        for pid, found in answers.values.items()
        if found
    }


def picture(captured: ProcessCapture) -> ProcessPicture:
    """A native capture as evidence."""
    pid = captured["pid"]
    python = captured["python"]
    facts = None
    if python is not None:
        gil = python["gil"]
        facts = PythonFacts(
            version=python["version"],
            layout_from=python["layout_from"],
            free_threaded=python["free_threaded"],
            gil_address=gil["address"] if gil else None,
            gil_locked=gil["locked"] if gil else None,
            gil_holder_tid=gil["holder_tid"] if gil else None,
            problem=python["problem"],
        )
    return ProcessPicture(
        pid=pid,
        threads=tuple(_sample(pid, thread) for thread in captured["threads"]),
        python=facts,
        problem="exec_changed" if captured["exec_changed"] else captured["error"],
        problem_tid=captured["error_tid"],
        cpus={thread["tid"]: thread["cpu"] for thread in captured["threads"]},
        notes=tuple(captured["notes"]),
        rungs=tuple(rungs.status(*rung) for rung in captured["rungs"]),
        tasks=_tasks(pid, captured["tasks"]),
        stopped_us=captured["stopped_us"],
    )


def _sample(pid: int, thread: ThreadCapture) -> ThreadSample:
    frames = tuple(_frame(frame) for frame in thread["frames"])
    unmerged = tuple(_frame(frame) for frame in thread["unmerged_python"])
    apart: tuple[Frame, ...] = ()
    if unmerged and thread["running"]:
        # What the program does is in its Python frames, and what these wait for is known by them.
        frames, unmerged, apart = unmerged, (), frames
    samples = thread["samples"]
    asked, polled = _asked(thread["nap_loop"])
    kernel = tuple(
        Frame(kind=FrameKind.KERNEL, function=printable(function.partition("+")[0]))
        for function in thread["kernel_stack"]
    )
    return ThreadSample(
        pid=pid,
        tid=thread["tid"],
        comm=printable(thread["comm"]),
        name=printable(thread["python_name"]) if thread["python_name"] else None,
        state=thread["state"],
        wchan=thread["wchan"],
        syscall=thread["syscall"],
        args=tuple(thread["args"]),
        run_ns=thread["run_ns"],
        slices=thread["slices"],
        utime_ticks=thread["utime"],
        stime_ticks=thread["stime"],
        minor_faults=thread["minflt"],
        major_faults=thread["majflt"],
        moved=thread["moved"],
        running=thread["running"],
        holds_gil=thread["holds_gil"],
        frames=(*kernel, *frames),
        unmerged_python=unmerged,
        unmerged_native=apart,
        samples=StackSamples(
            count=samples["count"],
            same_leaf=samples["same_leaf"],
            same_stack=samples["same_stack"],
            leaves=tuple(map(printable, samples["leaves"])),
        )
        if samples is not None
        else None,
        stack_from=StackFrom(thread["stack_from"]),
        stack_complete=thread["complete"],
        stack_problem=thread["stack_problem"],
        python_problem=thread["python_problem"],
        lock=_lock(thread["lock"]) if thread["lock"] is not None else None,
        named_values=_named_values(thread["named_values"]),
        polls_for=asked,
        polled=polled,
        lets_go=thread["lets_go"],
    )


def _asked(called: Sequence[str]) -> tuple[str | None, PolledThing | None]:
    """The call by which a loop in C asks between naps: for a lock, if it gives none back, or for the end of what it
    began in MPI, if it does nothing else.
    """
    names = [name.partition("(")[0] for name in called]
    request = next((name for name in names if _TESTS.match(name)), None)
    if request is not None and all(_TESTS.match(name) or _NAPS.match(name) for name in names):
        return f"{printable(request)}()", PolledThing.MPI_REQUEST
    tried = next((name for name in names if _TRIES.search(name)), None)
    if tried is None or any(_GIVES.search(name) for name in called):
        return None, None
    return f"{printable(tried)}()", PolledThing.LOCK


def _named_values(found: Sequence[tuple[str, str, PythonValue]]) -> tuple[NamedValue, ...]:
    values = []
    own = True
    for function, name, value in found:
        if name == "self":
            # Another class may have a method of that name; a qualified one is meant in any case.
            kind = value["type"] if isinstance(value, dict) else None
            own = "." in function or function.startswith("_") or kind in TYPES.get(function, ())
            meant = own
        else:
            meant = own or not name.startswith("self.")
        if meant and (value is not None or not {".", "["}.intersection(name)):
            values.append(_named_value(printable(function), name.removeprefix("self."), value))
    return tuple(values)


def _named_value(function: str, name: str, value: PythonValue) -> NamedValue:
    """What the evidence keeps of a value: names, numbers, and of objects which ones they are."""
    if isinstance(value, str):
        return NamedValue(function=function, name=name, value=printable(value))
    if isinstance(value, dict):
        items = value.get("items", []) if "[" in name or value["type"] == "dict" else []
        members = (item["address"] if isinstance(item, dict) else item for item in items)
        return NamedValue(
            function=function,
            name=name,
            value=None,
            type=printable(value["type"]),
            address=value["address"],
            length=value.get("length"),
            members=tuple(member if isinstance(member, int) else 0 for member in members),
        )
    if isinstance(value, float):
        return NamedValue(
            function=function, name=name, value=int(value * 1e6) if math.isfinite(value) else None
        )
    return NamedValue(function=function, name=name, value=int(value) if isinstance(value, int) else None)


def _tasks(pid: int, tasks: Sequence[TaskCapture]) -> tuple[TaskSample, ...]:
    samples = [
        TaskSample(
            pid=pid,
            tid=task["tid"],
            kind=TaskKind(task["kind"]),
            name=printable(task["name"]),
            address=task["address"],
            current=task["current"],
            done=task["done"],
            moved=task["moved"],
            exception=printable(task["exception"]) if task["exception"] else None,
            awaits=printable(task["awaits"]) if task["awaits"] else None,
            awaits_address=task["awaits_address"],
            object=_task_object(task["object"]),
            needs=tuple(sorted(task["needs"])),
            needs_known=task["needs_known"],
            lock=task["lock"],
            holds=tuple(sorted(task["holds"])),
            computes=task["computes"],
            wakes_in_s=round(task["wakes_in_s"], 3) if task["wakes_in_s"] is not None else None,
            lets_go=task["lets_go"],
            frames=tuple(_frame(frame) for frame in task["frames"]),
            problem=task["problem"],
        )
        for task in tasks
    ]
    # The interpreter keeps them in no order.
    return tuple(sorted(samples, key=lambda task: (task.kind, task.done, task.name, task.address)))


def _task_object(found: TaskObjectCapture | None) -> TaskObject | None:
    if found is None:
        return None
    return TaskObject(
        kind=TaskObjectKind(found["kind"]),
        method=printable(found["method"]),
        address=found["address"],
        count=found["count"],
        limit=found["limit"],
    )


@lru_cache(maxsize=1 << 14)
def _frame(frame: FrameTuple) -> Frame:
    # Most of them are in many threads, and the same in the next look.
    kind, function, file, line, module, address, found_by = frame
    return Frame(
        kind=FrameKind(kind),
        function=printable(function),
        file=printable(file) if file is not None else None,
        line=line,
        module=printable(module) if module is not None else None,
        address=address,
        found_by=FoundBy(found_by),
    )


def _lock(lock: LockCapture) -> LockFacts:
    return LockFacts(
        kind=lock["kind"],
        address=lock["address"],
        uaddr=lock["uaddr"],
        op=lock["op"],
        value=lock["value"],
        timeout=lock["timeout"],
        owner_tid=lock["owner_tid"],
        owner_from=lock["owner_from"],
        owner_exact=lock["owner_exact"],
        readers=lock["readers"],
        shared_key=lock["shared_key"],
        shared_file=printable(lock["shared_file"]) if lock["shared_file"] else None,
        owner_age_s=lock["owner_age_s"],
        unseen_owner=lock["unseen_owner"],
        python_lock_address=lock["python_lock_address"],
        problem=lock["problem"],
        expected=lock["expected"],
        mutex=lock["mutex"],
        owner_function=printable(lock["owner_function"]) if lock["owner_function"] else None,
    )


def threads_without_memory(pid: int, proc_root: str = PROC) -> tuple[ThreadSample, ...]:
    """What can be said of the threads of a process whose memory must not be touched."""
    samples = (read_thread(pid, tid, proc_root) for tid in thread_ids(pid, proc_root))
    return tuple(sample for sample in samples if sample is not None)


def asleep_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: {tid: seconds asleep} for the (tid, cpu) pairs of each pid in `argument`, which also says for how many
    seconds to go on; and for pid 0 whether that was enough.

    A CPU's scheduler clock is only comparable with itself, so we read from the CPU that the thread ran on last.
    """
    wanted, budget_s = argument
    until = time.monotonic() + budget_s
    in_time = True
    by_cpu: dict[int, list[tuple[int, int]]] = {}
    for pid in pids:
        for tid, cpu in wanted.get(pid, ()):
            by_cpu.setdefault(cpu, []).append((pid, tid))
    found: dict[int, dict[int, float]] = {pid: {} for pid in pids}
    allowed = os.sched_getaffinity(0)
    try:
        for cpu in sorted(by_cpu.keys() & allowed):
            os.sched_setaffinity(0, {cpu})
            now_ms = exec_start_ms(f"{state.proc_root}/self/sched")
            if now_ms is None:
                continue
            for pid, tid in by_cpu[cpu]:
                in_time = time.monotonic() < until
                if not in_time:
                    break
                then_ms = exec_start_ms(f"{state.proc_root}/{pid}/task/{tid}/sched")
                if then_ms is not None and then_ms > 0:
                    found[pid][tid] = max(0.0, (now_ms - then_ms) / 1e3)
    finally:
        os.sched_setaffinity(0, allowed)
    yield 0, in_time
    yield from ((pid, asleep) for pid, asleep in found.items() if pid != 0)


def exec_start_ms(path: str) -> float | None:
    """When the task last got on its CPU, in that CPU's scheduler clock; `None` if the kernel does not say."""
    text = read_text(path, 4096)
    start = (text or "").find(_EXEC_START)
    if text is None or start < 0:
        return None
    line = text[start : text.find("\n", start)]
    try:
        return float(line.partition(":")[2])
    except ValueError:
        return None


def _sleeps(thread: ThreadSample) -> bool:
    return not thread.moved and not thread.running and thread.state != "R"


def carry_asleep(
    before: Mapping[int, ProcessPicture], pictures: dict[int, ProcessPicture], passed_s: float
) -> dict[int, ProcessPicture]:
    """Takes over from an earlier look what is still true: a thread that has not run since has slept so much longer."""
    result = dict(pictures)
    for pid, shown in pictures.items():
        if pid not in before:
            continue
        earlier = {thread.tid: thread for thread in before[pid].threads}
        threads = []
        for thread in shown.threads:
            old = earlier.get(thread.tid)
            if (
                old is not None
                and old.asleep_for_s is not None
                and _sleeps(thread)
                and thread.slices is not None
                and (old.run_ns, old.slices) == (thread.run_ns, thread.slices)
            ):
                thread = replace(thread, asleep_for_s=round(old.asleep_for_s + passed_s, 3))
            threads.append(thread)
        result[pid] = replace(shown, threads=tuple(threads))
    return result


def with_later_ages(pictures: dict[int, ProcessPicture], by_s: float) -> dict[int, ProcessPicture]:
    """With the ages of locks' owners as of so much later, when times asleep were asked for: who compares them must not
    take a look that took long for an owner that was started late.
    """
    return {
        pid: replace(shown, threads=tuple(_with_later_age(thread, by_s) for thread in shown.threads))
        if any(thread.lock is not None and thread.lock.owner_age_s is not None for thread in shown.threads)
        else shown
        for pid, shown in pictures.items()
    }


def _with_later_age(thread: ThreadSample, by_s: float) -> ThreadSample:
    lock = thread.lock
    if lock is None or lock.owner_age_s is None:
        return thread
    return replace(thread, lock=replace(lock, owner_age_s=lock.owner_age_s + by_s))


def with_asleep(
    reader: GuardedReader, pictures: dict[int, ProcessPicture], *, deadline_s: float
) -> tuple[dict[int, ProcessPicture], str]:
    """Fills in `asleep_for_s` of threads that sleep and did not move; and why some are missing, "" if none."""
    wanted = {
        pid: [
            (thread.tid, shown.cpus[thread.tid])
            for thread in shown.threads
            if thread.tid in shown.cpus and thread.asleep_for_s is None and _sleeps(thread)
        ]
        for pid, shown in pictures.items()
    }
    wanted = {pid: threads for pid, threads in wanted.items() if threads}
    if not wanted:
        return pictures, ""
    answers = reader.run(
        ASLEEP_TASK, [0, *wanted], (wanted, deadline_s * _ASLEEP_SHARE), deadline_s=deadline_s
    )
    result = dict(pictures)
    in_time = answers.values.pop(0, False)
    for pid, asleep in answers.values.items():
        shown = pictures[pid]
        threads = tuple(
            replace(thread, asleep_for_s=round(asleep[thread.tid], 3)) if thread.tid in asleep else thread
            for thread in shown.threads
        )
        result[pid] = replace(shown, threads=threads)
    if not in_time:
        return result, "not all threads could be asked in time"
    return result, "" if any(answers.values.values()) else "the kernel shows no /proc/PID/task/TID/sched"
