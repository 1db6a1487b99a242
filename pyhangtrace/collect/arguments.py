"""What a blocked thread's system call waits on: descriptors, paths, semaphores, and when it gives up by itself.

Numbers come from the arguments, sets and times from the target's memory by way of `/proc/PID/mem`, which can be killed
where process_vm_readv cannot. Layouts: poll(2), select(2), futex(2), the kernel's uapi headers (64-bit targets).
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyhangtrace.collect import named_places
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import PROC, fields, read_link, read_text
from pyhangtrace.collect.threads import parse_syscall
from pyhangtrace.model import syscalls
from pyhangtrace.model.threads import ThreadSample

MEMORY_TASK = "memory"
MAX_FDS = 1024  # of one call; the rest of a bigger set is left out
_TIMESPEC = struct.Struct("=qq")
_POLLFD = struct.Struct("=ihh")
_LONGEST_S = 10 * 365 * 86400.0  # a longer timeout is "never", or no timeout at all but noise

_FIRST_ARGUMENT_FD = frozenset(
    {"read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2"}
    | {"recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "accept", "accept4", "connect"}
    | {"flock", "fcntl", "ioctl", "fsync", "fdatasync", "syncfs", "getdents64", "fallocate", "close"}
    | {"epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter", "mq_timedsend", "mq_timedreceive"}
)
_TWO_FDS = {"sendfile": (0, 1), "splice": (0, 2), "tee": (0, 1), "copy_file_range": (0, 2)}
_FUTEX_COMMAND = 0x7F
_FUTEX_REALTIME = 0x100
_FUTEX_WAIT = 0
_FUTEX_ABSOLUTE = frozenset({6, 9, 11, 13})  # LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
_FUTEX_LOCK_PI = 6
_TIMER_ABSTIME = 1
_P_PIDFD = 3

Piece = tuple[int, int]  # address, bytes


def memory_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: {(address, size): bytes} of the pieces asked for per pid; unreadable pieces are left out."""
    for pid in pids:
        progress(pid)
        found: dict[Piece, bytes] = {}
        try:
            descriptor = os.open(f"{state.proc_root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield pid, found
            continue
        try:
            for address, size in argument[pid]:
                try:
                    content = os.pread(descriptor, size, address)
                except (OSError, OverflowError):
                    continue
                if len(content) == size:
                    found[(address, size)] = content
        finally:
            os.close(descriptor)
        yield pid, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """This host's clocks at one moment, in seconds."""

    monotonic: float
    realtime: float

    @classmethod
    def now(cls) -> Clocks:
        """Reads both."""
        return cls(
            monotonic=time.clock_gettime(time.CLOCK_MONOTONIC),
            realtime=time.clock_gettime(time.CLOCK_REALTIME),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timeout:
    """Where the time of a call stands: in an argument (`seconds`), or in memory (`piece`)."""

    seconds: float | None = None
    piece: Piece | None = None
    microseconds: bool = False
    absolute: bool = False
    realtime: bool = False


def collect(
    reader: GuardedReader,
    samples: Sequence[ThreadSample],
    *,
    machine: str,
    deadline_s: float,
    clocks: Clocks | None = None,
    proc_root: str = PROC,
) -> list[ThreadSample]:
    """The samples with what their calls name, `timeout_s` and `remaining_s` filled in, in the same order."""
    needs: dict[int, list[Piece]] = {}
    for sample in samples:
        pieces = _pieces(sample, syscalls.name(sample.syscall, machine))
        if pieces:
            needs.setdefault(sample.pid, []).extend(pieces)
    memory = reader.run(MEMORY_TASK, list(needs), needs, deadline_s=deadline_s).values if needs else {}
    clocks = clocks or Clocks.now()
    samples = [_stopped_by(sample, proc_root) if sample.state == "t" else sample for sample in samples]
    shifted = {pid for pid in needs if not _same_clocks(pid, proc_root)}
    return [
        _fill(
            sample,
            syscalls.name(sample.syscall, machine),
            {} if _went_on(sample, needs, proc_root) else memory.get(sample.pid, {}),
            clocks,
            foreign_clocks=sample.pid in shifted,
            proc_root=proc_root,
        )
        for sample in samples
    ]


def _stopped_by(sample: ThreadSample, proc_root: str) -> ThreadSample:
    """With the tracer of this very thread; that of the process is its main thread's."""
    status = dict(fields(read_text(f"{proc_root}/{sample.pid}/task/{sample.tid}/status") or ""))
    tracer = status.get("TracerPid", "")
    return replace(sample, tracer_pid=int(tracer) or None) if tracer.isdecimal() else sample


def _went_on(sample: ThreadSample, needs: Mapping[int, object], proc_root: str) -> bool:
    """Whether the thread has left its call since: what then lies at the call's addresses is something else."""
    if sample.pid not in needs:
        return False
    text = read_text(f"{proc_root}/{sample.pid}/task/{sample.tid}/syscall")
    if text is None:
        return False
    number, args, _ = parse_syscall(text)
    return (number, args) != (sample.syscall, sample.args)


def _same_clocks(pid: int, proc_root: str) -> bool:
    """Whether the target lives in our time namespace, so that its monotonic clock is ours."""
    theirs = read_link(f"{proc_root}/{pid}/ns/time")
    return theirs is None or theirs == read_link(f"{proc_root}/self/ns/time")


def _pieces(sample: ThreadSample, call: str | None) -> list[Piece]:
    """What of the target's memory has to be read for this call."""
    if call is None or len(sample.args) < 6:
        return []
    pieces = []
    timeout = _timeout(sample, call)
    if timeout is not None and timeout.piece is not None:
        pieces.append(timeout.piece)
    pieces.extend(_set_pieces(sample, call))
    pieces.extend(named_places.pieces(sample.args, call))
    return pieces


def _set_pieces(sample: ThreadSample, call: str) -> list[Piece]:
    arguments = sample.args
    if call in ("poll", "ppoll"):
        count = min(arguments[1], MAX_FDS)
        return [(arguments[0], count * _POLLFD.size)] if arguments[0] and count else []
    if call in ("select", "pselect6"):
        size = (min(arguments[0], MAX_FDS) + 63) // 64 * 8
        return [(address, size) for address in arguments[1:4] if address and size]
    return []


def _timeout(sample: ThreadSample, call: str) -> _Timeout | None:
    """`None` if the call has no time limit of its own."""
    arguments = sample.args

    def in_memory(address: int, **how: bool) -> _Timeout | None:
        return _Timeout(piece=(address, _TIMESPEC.size), **how) if address else None

    if call == "nanosleep":
        return in_memory(arguments[0])
    if call == "clock_nanosleep":
        return in_memory(
            arguments[2],
            absolute=bool(arguments[1] & _TIMER_ABSTIME),
            realtime=arguments[0] == time.CLOCK_REALTIME,
        )
    if call in ("poll", "epoll_wait", "epoll_pwait"):
        milliseconds = _signed_int(arguments[2] if call == "poll" else arguments[3])
        return _Timeout(seconds=milliseconds / 1e3) if milliseconds >= 0 else None
    if call == "select":
        return in_memory(arguments[4], microseconds=True)
    if call == "pselect6":
        return in_memory(arguments[4])
    if call in ("ppoll", "rt_sigtimedwait"):
        return in_memory(arguments[2])
    if call in ("epoll_pwait2", "semtimedop"):
        return in_memory(arguments[3])
    if call in ("mq_timedsend", "mq_timedreceive"):
        return in_memory(arguments[4], absolute=True, realtime=True)
    if named_places.breaks_lease(sample, call):
        limit_s = named_places.lease_timeout_s()
        return _Timeout(seconds=limit_s) if limit_s else None
    if call == "futex":
        return _futex_timeout(arguments, in_memory)
    if call == "futex_waitv":
        return in_memory(arguments[3], absolute=True, realtime=arguments[4] == time.CLOCK_REALTIME)
    if call == "futex_wait":
        return in_memory(arguments[4], absolute=True, realtime=arguments[5] == time.CLOCK_REALTIME)
    return None


def _futex_timeout(arguments: tuple[int, ...], in_memory: Any) -> _Timeout | None:
    command = arguments[1] & _FUTEX_COMMAND
    realtime = bool(arguments[1] & _FUTEX_REALTIME) or command == _FUTEX_LOCK_PI
    found: _Timeout | None = None
    if command == _FUTEX_WAIT:
        found = in_memory(arguments[3])
    elif command in _FUTEX_ABSOLUTE:
        found = in_memory(arguments[3], absolute=True, realtime=realtime)
    return found


def _fill(
    sample: ThreadSample,
    call: str | None,
    memory: Mapping[Piece, bytes],
    clocks: Clocks,
    *,
    foreign_clocks: bool,
    proc_root: str,
) -> ThreadSample:
    if call is None or len(sample.args) < 6:
        return sample
    fds, room = _descriptors(sample, call, memory)
    requested, remaining = None, None
    timeout = _timeout(sample, call)
    if timeout is not None:
        requested, remaining = _times(
            timeout, sample.asleep_for_s, memory, clocks, foreign_clocks=foreign_clocks
        )
    path = named_places.path(sample, call, memory, proc_root)
    mount, connection = named_places.mount_words(sample, path, proc_root)
    return replace(
        sample,
        io_fds=fds,
        room_fds=room,
        timeout_s=requested,
        remaining_s=remaining,
        path=path,
        path_mount=mount,
        fuse_connection=connection,
        semaphores=named_places.semaphores(sample.args, call, memory),
        lock_request=named_places.lock_request(sample, call, memory, proc_root),
    )


def _descriptors(
    sample: ThreadSample, call: str, memory: Mapping[Piece, bytes]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All of them, and those that are watched for room to write alone."""
    arguments = sample.args
    found: list[int] = []
    room: set[int] = set()
    if call in _FIRST_ARGUMENT_FD:
        found = [_signed_int(arguments[0])]
    elif call in _TWO_FDS:
        found = [_signed_int(arguments[index]) for index in _TWO_FDS[call]]
    elif call == "waitid" and arguments[0] == _P_PIDFD:
        found = [_signed_int(arguments[1])]
    elif call in ("poll", "ppoll"):
        for piece in _set_pieces(sample, call):
            for fd, events, _ in _POLLFD.iter_unpack(memory.get(piece, b"")):
                found.append(fd)
                if events & select.POLLOUT and not events & select.POLLIN:
                    room.add(fd)
    elif call in ("select", "pselect6"):
        size = min(arguments[0], MAX_FDS)
        sets = {
            address: int.from_bytes(memory.get((address, length), b""), "little")
            for address, length in _set_pieces(sample, call)
        }
        reads, writes, _ = (sets.get(address, 0) for address in arguments[1:4])
        found = [fd for fd in range(size) for bits in sets.values() if bits >> fd & 1]
        room = {fd for fd in range(size) if writes >> fd & 1 and not reads >> fd & 1}
    return tuple(sorted({fd for fd in found if fd >= 0})), tuple(sorted(fd for fd in room if fd >= 0))


def _times(
    timeout: _Timeout,
    asleep_for_s: float | None,
    memory: Mapping[Piece, bytes],
    clocks: Clocks,
    *,
    foreign_clocks: bool,
) -> tuple[float | None, float | None]:
    """(seconds asked for, seconds left); what is not known for sure is `None`."""
    seconds = timeout.seconds
    if timeout.piece is not None:
        content = memory.get(timeout.piece)
        if content is None:
            return None, None
        whole, part = _TIMESPEC.unpack(content)
        if whole < 0 or not 0 <= part < 1_000_000_000:
            return None, None
        seconds = whole + part / (1e6 if timeout.microseconds else 1e9)
    if seconds is None:
        return None, None
    if timeout.absolute:
        if foreign_clocks and not timeout.realtime:
            return None, None
        remaining: float | None = seconds - (clocks.realtime if timeout.realtime else clocks.monotonic)
        requested = remaining + asleep_for_s if asleep_for_s is not None and remaining is not None else None
    else:
        requested = seconds
        remaining = seconds - asleep_for_s if asleep_for_s is not None else None
    if max(requested or 0.0, remaining or 0.0) > _LONGEST_S:
        return None, None
    return (
        round(max(requested, 0.0), 3) if requested is not None else None,
        round(max(remaining, 0.0), 3) if remaining is not None else None,
    )


def _signed_int(value: int) -> int:
    """An `int` argument as the kernel takes it from the 64-bit register."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
