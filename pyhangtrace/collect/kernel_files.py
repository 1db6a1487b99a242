"""What only the kernel knows of the sockets and pipes that threads are blocked on: timeouts, and how full they are.

Read by a BPF iterator over open files. A duplicate of the descriptor would tell as well, but it keeps a connection open
that its owner closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect import rungs
from pyhangtrace.collect.descriptors import Descriptor
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model import syscalls
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import FdKind, SourceState
from pyhangtrace.model.open_files import FdFacts, SocketTimeouts
from pyhangtrace.model.threads import ThreadSample

if TYPE_CHECKING:
    from pyhangtrace._native import OpenFileReader, OpenFileStates

KERNEL_FILES_TASK = "kernel files"

# Calls that SO_RCVTIMEO and SO_SNDTIMEO limit, see socket(7); poll and its kind have a timeout of their own.
_RECEIVE = frozenset({"read", "readv", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4"})
_SEND = frozenset({"write", "writev", "sendto", "sendmsg", "sendmmsg", "connect"})

Key = tuple[int, int]  # process, descriptor


@dataclass(frozen=True, slots=True)
class PipeFill:
    """Bytes in a pipe, and how many it takes."""

    queued: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFiles:
    """What was found, and why something is missing; `None`: nobody had to be asked."""

    timeouts: Mapping[Key, SocketTimeouts] = field(default_factory=dict)
    pipes: Mapping[Key, PipeFill] = field(default_factory=dict)
    status: SourceStatus | None = None


def kernel_files_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for the first pid, `OpenFileStates` of the descriptors that `argument` names for each pid."""
    progress(pids[0])
    yield pids[0], state.keep(KERNEL_FILES_TASK, _reader).read({pid: argument[pid] for pid in pids})
    yield from ((pid, None) for pid in pids[1:])


def _reader() -> OpenFileReader:
    from pyhangtrace import _native

    return _native.OpenFileReader()


def collect(
    reader: GuardedReader,
    samples: Iterable[ThreadSample],
    described: Mapping[Key, Descriptor],
    *,
    machine: str,
    deadline_s: float,
) -> KernelFiles:
    """Asks about the sockets and pipes on which calls of these threads are blocked."""
    blocked = list(_blocked_on(samples, described, machine))
    sockets = any(found.kind is FdKind.SOCKET for found in blocked)
    if not blocked:
        return KernelFiles()
    wanted: dict[int, list[int]] = {}
    for found in blocked:
        wanted.setdefault(found.pid, []).append(found.fd)
    answers = reader.run(KERNEL_FILES_TASK, sorted(wanted), wanted, deadline_s=deadline_s)
    states, reason = answers.of_all()
    if states is None:
        status = SourceStatus(source=rungs.SOCKETS, state=SourceState.FAILED, reason=reason)
        return KernelFiles(status=status if sockets else None)
    return _found(states, described, sockets=sockets)


def not_asked(
    samples: Iterable[ThreadSample],
    described: Mapping[Key, Descriptor],
    *,
    machine: str,
    reason: str,
    fix: str,
) -> KernelFiles:
    """What is missing where nobody may ask the kernel, if these threads are blocked on sockets."""
    if not any(found.kind is FdKind.SOCKET for found in _blocked_on(samples, described, machine)):
        return KernelFiles()
    return KernelFiles(
        status=SourceStatus(source=rungs.SOCKETS, state=SourceState.ABSENT, reason=reason, fix=fix)
    )


def _blocked_on(
    samples: Iterable[ThreadSample], described: Mapping[Key, Descriptor], machine: str
) -> Iterator[Descriptor]:
    """The sockets and pipes on which calls of these threads are blocked."""
    for sample in samples:
        found = described.get((sample.pid, sample.io_fds[0])) if len(sample.io_fds) == 1 else None
        blocks = _limited_by(sample, machine) is not None and not sample.running
        if blocks and found is not None and found.kind in (FdKind.SOCKET, FdKind.PIPE):
            yield found


def _found(states: OpenFileStates, described: Mapping[Key, Descriptor], *, sockets: bool) -> KernelFiles:
    def is_same(key: Key, inode: int) -> bool:
        """Not one that was opened under that number since."""
        return key in described and described[key].inode == inode

    return KernelFiles(
        timeouts={
            (pid, fd): SocketTimeouts(receive_s=receive_s, send_s=send_s, user_s=user_s)
            for pid, fd, inode, receive_s, send_s, user_s in states["sockets"]
            if is_same((pid, fd), inode)
        },
        pipes={
            (pid, fd): PipeFill(queued, capacity)
            for pid, fd, inode, queued, capacity in states["pipes"]
            if is_same((pid, fd), inode)
        },
        status=rungs.status(rungs.SOCKETS, *states["status"]) if sockets else None,
    )


def complete(fds: Iterable[FdFacts], found: KernelFiles) -> Iterator[FdFacts]:
    """The descriptors with what was found of them."""
    for facts in fds:
        key = (facts.pid, facts.fd)
        fill = found.pipes.get(key)
        if fill is not None:
            yield replace(facts, queued=fill.queued, capacity=fill.capacity)
        elif key in found.timeouts:
            yield replace(facts, timeouts=found.timeouts[key])
        else:
            yield facts


def with_timeouts(
    samples: Iterable[ThreadSample], fds: Iterable[FdFacts], *, machine: str
) -> list[ThreadSample]:
    """The samples, those in calls that a timeout of their socket limits with `timeout_s` and `remaining_s`."""
    known = {(facts.pid, facts.fd): facts for facts in fds if facts.timeouts is not None}
    return [_with_timeout(sample, known, machine) for sample in samples]


def _with_timeout(sample: ThreadSample, known: Mapping[Key, FdFacts], machine: str) -> ThreadSample:
    facts = known.get((sample.pid, sample.io_fds[0])) if len(sample.io_fds) == 1 else None
    which = _limited_by(sample, machine) if facts is not None else None
    if facts is None or facts.timeouts is None or which is None:
        return sample
    timeouts = facts.timeouts
    limits = [timeouts.receive_s if which is _RECEIVE else timeouts.send_s]
    # What has been sent and not been taken lets TCP give up the connection, whoever waits.
    unsent = which is _SEND or (facts.socket is not None and bool(facts.socket.tx_queue))
    limits += [timeouts.user_s] if unsent else []
    limit_s = min((limit for limit in limits if limit is not None), default=None)
    if limit_s is None:
        return sample
    left_s = round(max(0.0, limit_s - sample.asleep_for_s), 3) if sample.asleep_for_s is not None else None
    return replace(sample, timeout_s=round(limit_s, 3), remaining_s=left_s)


def _limited_by(sample: ThreadSample, machine: str) -> frozenset[str] | None:
    call = syscalls.name(sample.syscall, machine)
    return next((calls for calls in (_RECEIVE, _SEND) if call in calls), None)
