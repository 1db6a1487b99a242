"""NCCL's communicators, from the memory of the processes that have it loaded, inside the guarded reader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import printable, read_text
from pyhangtrace.collect.resting import at_rest
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.nccl import (
    NcclCall,
    NcclCommunicator,
    NcclMember,
    NcclPeer,
    NcclPicture,
    NcclPlan,
    NcclState,
    NcclTask,
    NcclTransfer,
    is_in_nccl,
)
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

if TYPE_CHECKING:
    from pyhangtrace._native import NcclFound, NcclInspector, NcclTaskCapture

SOURCE = "nccl memory"
NCCL_TASK = "nccl"
MEMBERS_TASK = "nccl_members"
FRAMEWORK = "nccl"  # as `maps` names the libraries that have it, or may have
_SLACK_S = 0.1  # for the way to the reader and back
_ASLEEP_WITHIN_S = 0.01
_POLL_S = 0.0003
#: Of one communicator: a page names no more.
_MOST_MEMBERS = 64
# Of a build without debug information and of no known release: only what all releases have in common.
_BARE_LAYOUTS = ("disassembly", "fingerprint")
#: In these a communicator is being set up, which the library's own list does not have yet.
_SETTING_UP = ("ncclCommInit", "ncclCommSplit", "ncclCommShrink", "bootstrapInit", "ncclAsyncJobMain")


def members_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: what each pid knows of ranks of its communicators; `argument` is (seconds, {pid: (library,
    [(address, ranks)])}).
    """
    budget_s, wanted = argument
    until = time.monotonic() + budget_s
    for pid in pids:
        progress(pid)
        left_s = max(0.0, until - time.monotonic())
        library, members = wanted[pid]
        found = _inspector(state).inspect(pid, members=members, libraries=(library,), budget_s=left_s)
        yield pid, found["members"] if found is not None else None


def _inspector(state: HelperState) -> NcclInspector:
    if "nccl" not in state.kept:
        # The rest of the helper works without the extension.
        from pyhangtrace._native import NcclInspector

        state.kept["nccl"] = NcclInspector(state.proc_root)
    inspector: NcclInspector = state.kept["nccl"]
    return inspector


def nccl_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: what NCCL knows in each pid, or None; `argument` is (seconds, {pid: (threads in NCCL, search memory,
    libraries)}).
    """
    inspector = _inspector(state)
    budget_s, wanted = argument
    until = time.monotonic() + budget_s
    for number, pid in enumerate(pids):
        progress(pid)
        tids, search, libraries = wanted[pid]
        callers = [
            (tid, pointer) for tid in tids if (pointer := _at_rest(state.proc_root, pid, tid)) is not None
        ]
        # What one does not need is the next one's.
        left_s = max(0.0, until - time.monotonic()) / (len(pids) - number)
        yield (
            pid,
            inspector.inspect(pid, callers=callers, search=search, libraries=libraries, budget_s=left_s),
        )


def _at_rest(proc_root: str, pid: int, tid: int) -> int | None:
    """Where a thread sleeps. One that waits in NCCL polls: most of the time it is asleep, and not always."""
    until = time.monotonic() + _ASLEEP_WITHIN_S
    return at_rest(lambda: _stack_pointer(proc_root, pid, tid), until, again_s=_POLL_S)


def _stack_pointer(proc_root: str, pid: int, tid: int) -> int | None:
    """Of a thread that is blocked."""
    words = (read_text(f"{proc_root}/{pid}/task/{tid}/syscall") or "").split()
    return int(words[-2], 16) if len(words) >= 3 else None


def collect(
    reader: GuardedReader,
    pids: Sequence[int],
    threads: Sequence[ThreadSample],
    *,
    linked: Mapping[int, tuple[str, str]],
    at_s: float,
    deadline_s: float,
) -> tuple[NcclPicture, SourceStatus]:
    """What NCCL knows in these processes, which have it loaded, and how far that went. `linked`: path and release of
    programs it was linked into.
    """
    wanted: dict[int, tuple[tuple[int, ...], bool, tuple[str, ...]]] = {}
    for pid in pids:
        own = [thread for thread in threads if thread.pid == pid]
        callers = tuple(thread.tid for thread in own if _is_inside(thread) or not thread.stack_complete)
        libraries = {frame.module for thread in own for frame in _nccl_frames(thread) if frame.module}
        if pid in linked:
            libraries.add(linked[pid][0])
        wanted[pid] = (callers, any(map(_sets_up, own)), tuple(sorted(libraries)))
    began = time.monotonic()
    answers = reader.run(
        NCCL_TASK, list(pids), (max(0.0, deadline_s - _SLACK_S), wanted), deadline_s=deadline_s
    )
    states = tuple(_state(pid, found) for pid, found in sorted(answers.values.items()) if found is not None)
    problems = [f"process {pid}: {why}" for pid, why in sorted(answers.problems.items())]
    problems += [f"process {state.pid}: {state.problem}" for state in states if state.problem is not None]
    nameless = [pid for pid in sorted(linked) if pid in answers.values and answers.values[pid] is None]
    problems += [_nameless(pid, *linked[pid]) for pid in nameless]
    source = SourceState.USED if any(state.communicators for state in states) else SourceState.ABSENT
    if problems and source is not SourceState.USED:
        source = SourceState.FAILED
    reason = "; ".join(problems) or _provenance(states)
    left_s = deadline_s - (time.monotonic() - began)
    if left_s > _SLACK_S:
        states = _with_others(reader, states, left_s)
    picture = NcclPicture(at_s=round(at_s + time.monotonic() - began, 6), states=states)
    fix = ""
    if nameless:
        fix = "keep the symbols of the program (no strip)"
    elif _lacks_counters(states):
        fix = "use a build of the library with its debug information, as that of the wheels on PyPI"
    return picture, SourceStatus(source=SOURCE, state=source, reason=reason, fix=fix)


def _nameless(pid: int, path: str, version: str) -> str:
    return f"process {pid}: NCCL {version} was linked into {printable(path)}, which has no symbols of it"


def _with_others(
    reader: GuardedReader, states: tuple[NcclState, ...], deadline_s: float
) -> tuple[NcclState, ...]:
    """The same, with what the first rank seen of each communicator knows of those that are not."""
    seen: dict[tuple[int, int], set[int]] = {}
    first: dict[tuple[int, int], tuple[int, NcclCommunicator]] = {}
    libraries = {state.pid: state.library for state in states}
    for state in states:
        for comm in state.communicators:
            which = (comm.comm_hash, comm.n_ranks)
            seen.setdefault(which, set()).add(comm.rank)
            first.setdefault(which, (state.pid, comm))
    wanted: dict[int, list[tuple[int, list[int]]]] = {}
    for which, (pid, comm) in first.items():
        if not comm.setting_up and len(seen[which]) < comm.n_ranks:
            lacking = (rank for rank in range(comm.n_ranks) if rank not in seen[which])
            ranks = [comm.rank, *itertools.islice(lacking, _MOST_MEMBERS)]
            wanted.setdefault(pid, []).append((comm.address, ranks))
    if not wanted:
        return states
    of_library = {pid: (libraries[pid], members) for pid, members in wanted.items()}
    argument = (max(0.0, deadline_s - _SLACK_S), of_library)
    answers = reader.run(MEMBERS_TASK, sorted(wanted), argument, deadline_s=deadline_s).values
    others = {
        (pid, address): tuple(
            NcclMember(rank=rank, cuda_device=device, bus_id=bus, host_hash=host, pid_hash=process)
            for rank, device, bus, host, process in known
        )
        for pid, found in answers.items()
        for (address, _), known in zip(wanted[pid], found or (), strict=False)
    }
    return tuple(
        replace(
            state,
            communicators=tuple(
                replace(comm, others=others.get((state.pid, comm.address), ()))
                for comm in state.communicators
            ),
        )
        for state in states
    )


def _provenance(states: Sequence[NcclState]) -> str:
    if not any(state.communicators for state in states):
        return "NCCL is loaded, and has no communicator"
    layouts = sorted({state.layout_from for state in states})
    lacks = "; of a build without debug information only ranks, sizes and hashes are known, no operations"
    return f"layout from {', '.join(layouts)}{lacks if _lacks_counters(states) else ''}"


def _lacks_counters(states: Iterable[NcclState]) -> bool:
    return any(state.communicators and state.layout_from in _BARE_LAYOUTS for state in states)


def users(threads: Iterable[ThreadSample]) -> set[int]:
    """Processes that have threads in NCCL, whatever file it is in."""
    return {thread.pid for thread in threads if _is_inside(thread)}


def _is_inside(thread: ThreadSample) -> bool:
    return any(True for _ in _nccl_frames(thread))


def _nccl_frames(thread: ThreadSample) -> Iterator[Frame]:
    return filter(is_in_nccl, (*thread.frames, *thread.unmerged_native))


def _sets_up(thread: ThreadSample) -> bool:
    return any(frame.function.startswith(_SETTING_UP) for frame in (*thread.frames, *thread.unmerged_native))


def _state(pid: int, found: NcclFound) -> NcclState:
    return NcclState(
        pid=pid,
        library=printable(found["library"]),
        build_id=found["build_id"],
        layout_from=found["layout_from"],
        communicators=tuple(_communicator(each) for each in found["communicators"]),
        calls=tuple(NcclCall(**each) for each in found["calls"]),
        peers=tuple(
            NcclPeer(address=address, pid=peer, cuda_devices=devices, host_hash=host, pid_hash=process)
            for address, peer, devices, host, process in found["peers"]
        ),
        searched=found["searched"],
        problem=found["problem"],
    )


def _communicator(found: Mapping[str, Any]) -> NcclCommunicator:
    plain = {
        name: value
        for name, value in found.items()
        if name not in ("name", "launched", "plans", "last_task", "transfers")
    }
    return NcclCommunicator(
        **plain,
        name=printable(found["name"]) if found["name"] else None,
        launched=tuple(found["launched"]) if found["launched"] is not None else None,
        plans=tuple(
            NcclPlan(kernel=kernel, collectives=count, tasks=tuple(map(_task, tasks)))
            for kernel, count, tasks in found["plans"]
        ),
        last_task=_task(found["last_task"]) if found["last_task"] is not None else None,
        transfers=tuple(NcclTransfer(**each) for each in found["transfers"]),
    )


def _task(found: NcclTaskCapture) -> NcclTask:
    return NcclTask(**found)
