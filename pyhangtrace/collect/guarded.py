"""Reads that may block for ever, or crash, run in a forked helper that can be given up.

`cmdline`, `environ`, `maps`, `mem` and process_vm_readv wait for the target's mmap lock, a path may lead to a dead
file server, and native code decodes bytes nobody vouches for. The helper says which process each of its threads is at,
so when one does not come back only that process is given up: the helper is killed (one that is stuck in
process_vm_readv cannot die; it is left behind and named), a new one is forked, and the rest goes on. A helper that ends
with several processes in hand does not say at which: the next one takes one process at a time.

Fork early: before threads, and before anything big is loaded.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import select
import signal
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyhangtrace.collect.procfs import PROC, numbers, read_text, wait_channel

MMAP_LOCK_HELD = "mmap_lock_held"
TIMED_OUT = "timed_out"
CRASHED = "reader_crashed"
FAILED = "reader_failed"

_HEADER = struct.Struct("=Q")
_LARGEST_MESSAGE = 1 << 30
_PR_SET_PDEATHSIG = 1
_CPUCLOCK_SCHED = 2
_REAP_S = 0.05
_REAP_BUSY_S = 2.0  # it is killed and only lacks a moment on a CPU
# So long without a sign of progress while it waits for a lock in the kernel means stuck. Someone who holds an mmap lock
# for longer (a huge munmap) exists, but then the process cannot be read now either.
STUCK_AFTER_S = 0.3
_IO_PATIENCE = 4  # other uninterruptible waits (a cold disk) get that many times as long
_POLL_S = 0.05
# Kernel functions in which a task waits for somebody's mmap lock, or whose caller does: wchan leaves out the locking
# functions themselves, so for most files of /proc it names the reader.
_LOCK_WAIT = re.compile(
    r"rwsem|mmap|vma|access_remote_vm|process_vm|^(m_start|mem_rw|pagemap|smaps|show_smap|proc_pid_cmdline|environ_read)"
)


class Progress(Protocol):
    """Called by a task before it touches a process, by the very thread that is about to."""

    def __call__(self, pid: int) -> None: ...


# A task runs in the helper: (state kept between requests, pids, argument, progress) -> (pid, plain value) pairs.
Task = Callable[["HelperState", Sequence[int], Any, Progress], Iterator[tuple[int, Any]]]


@dataclass(slots=True)
class HelperState:
    """What tasks keep between requests, inside the helper."""

    proc_root: str
    one_at_a_time: bool = False  # processes, since an earlier helper ended with several in hand
    kept: dict[str, Any] = field(default_factory=dict)

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """What is kept under this name; made at first use, so that a helper that never needs it does not load it."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back: values by pid, and for every pid without a value why not."""

    values: dict[int, Any]
    problems: dict[int, str]

    def of_all(self) -> tuple[Any, str]:
        """Of a task that answers once, with its first pid, for all of them: that answer; else None, and why."""
        found = next((value for value in self.values.values() if value is not None), None)
        return found, "" if found is not None else next(iter(self.problems.values()), "no answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperUsage:
    """CPU seconds used by helpers that have ended or still run, and helpers that could not be ended."""

    cpu_s: float
    unkillable: tuple[int, ...]


class GuardedReader:
    """Runs tasks in a helper process, each with a deadline. Use as a context manager, from one thread."""

    def __init__(
        self, tasks: Mapping[str, Task], *, proc_root: str = PROC, stuck_after_s: float = STUCK_AFTER_S
    ) -> None:
        self._tasks = tasks
        self._proc_root = proc_root
        self._stuck_after_s = stuck_after_s
        self._skip: dict[int, str] = {}
        self._cpu_s = 0.0
        self._unkillable: list[int] = []
        self._sent: tuple[str, list[int], Any] | None = None
        self._one_at_a_time = False
        self._helper: _Helper | None = _Helper(tasks, proc_root)

    def __enter__(self) -> GuardedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def helper_pid(self) -> int | None:
        """The process that reads for us now; `None` between two of them."""
        return self._helper.pid if self._helper is not None else None

    def run(self, task: str, pids: Sequence[int], argument: Any = None, *, deadline_s: float) -> Answers:
        """Runs a task over processes; returns within `deadline_s` (and the tenth of a second a kill may take).

        A process the helper gets stuck at or crashes on is given up for good. Answers that came before it are kept.
        """
        until = time.monotonic() + deadline_s
        values: dict[int, Any] = {}
        problems: dict[int, str] = {}
        left = []
        for pid in dict.fromkeys(pids):
            if pid in self._skip:
                problems[pid] = self._skip[pid]
            else:
                left.append(pid)
        while left:
            if self._helper is None:
                self._helper = _Helper(self._tasks, self._proc_root, one_at_a_time=self._one_at_a_time)
            attempt = self._attempt(self._helper, task, left, argument, until)
            values.update(attempt.values)
            left = [pid for pid in left if pid not in attempt.values]
            if attempt.end is None:
                break
            self._drop_helper()
            if attempt.ended_at_many() and not self._one_at_a_time:
                self._one_at_a_time = True
                continue
            culprit = attempt.culprit()
            if culprit not in left or (attempt.end == TIMED_OUT and attempt.stuck is None):
                # Out of time at work: nobody's fault, it may be read another time.
                problems.update(dict.fromkeys(left, attempt.end))
                return Answers(values, problems)
            self._give_up(culprit, attempt.end, problems)
            left.remove(culprit)
            if time.monotonic() >= until:
                problems.update(dict.fromkeys(left, TIMED_OUT))
                break
        return Answers(values, problems)

    def prefetch(self, task: str, pids: Sequence[int], argument: Any = None) -> None:
        """Starts a request whose answers the next `run`, of the very same request, takes."""
        if self._helper is not None:
            self._helper.send((task, list(dict.fromkeys(pids)), argument))
            self._sent = (task, list(dict.fromkeys(pids)), argument)

    def usage(self) -> HelperUsage:
        """CPU time so far, running helper included."""
        running = self._helper.cpu_s() if self._helper is not None else 0.0
        return HelperUsage(cpu_s=self._cpu_s + running, unkillable=tuple(self._unkillable))

    def close(self) -> None:
        """Ends the helper."""
        self._drop_helper()

    def _give_up(self, pid: int, reason: str, problems: dict[int, str]) -> None:
        self._skip[pid] = reason
        problems[pid] = reason

    def _drop_helper(self) -> None:
        helper, self._helper = self._helper, None
        self._sent = None
        if helper is None:
            return
        self._cpu_s += helper.cpu_s()
        if not helper.end():
            self._unkillable.append(helper.pid)

    def _attempt(self, helper: _Helper, task: str, pids: list[int], argument: Any, until: float) -> _Attempt:
        """One request. `end` says why the helper has to be given up, `None` if it answered."""
        attempt = _Attempt()
        request, already = (task, pids, argument), self._sent
        self._sent = None
        if already is not None and request != already:
            attempt.end = FAILED  # its answers would be taken for ours
            return attempt
        try:
            if already is None:
                helper.send(request)
        except OSError:
            attempt.end = CRASHED
            return attempt
        began = time.monotonic()
        signs: dict[int, float] = {}  # by thread: when it last began with a process, or answered
        while True:
            now = time.monotonic()
            if now >= until:
                blocked = _by_silence(helper.blocked(), signs, began)
                attempt.end = reason_of(blocked[0][1]) if blocked else TIMED_OUT
                attempt.stuck = blocked[0][0] if blocked else None
                return attempt
            try:
                message = helper.receive(min(_POLL_S, until - now))
            except (EOFError, OSError, pickle.UnpicklingError):
                attempt.end = CRASHED
                return attempt
            if message is None:
                blocked_now = helper.blocked()
                # Whoever is seen at work, if only in a walk that takes long, is not stuck.
                signs.update(dict.fromkeys(signs.keys() - blocked_now.keys(), time.monotonic()))
                for tid, wait in _by_silence(blocked_now, signs, began):
                    silent_s = time.monotonic() - signs.get(tid, began)
                    patience = 1 if reason_of(wait) == MMAP_LOCK_HELD else _IO_PATIENCE
                    if silent_s >= patience * self._stuck_after_s:
                        attempt.end, attempt.stuck = reason_of(wait), tid
                        return attempt
                continue
            kind, pid, value = message
            if kind == "at":
                attempt.at[value] = pid
                signs[value] = time.monotonic()
            elif kind == "value":
                attempt.values[pid] = value
                signs[helper.pid] = time.monotonic()
            elif kind == "failed":
                attempt.end = f"{FAILED}: {value}"
                return attempt
            else:
                return attempt


def reason_of(wait: str) -> str:
    """Why a reader that sleeps in this kernel function does not come back."""
    return MMAP_LOCK_HELD if _LOCK_WAIT.search(wait) else TIMED_OUT


def _by_silence(
    blocked: Mapping[int, str], signs: Mapping[int, float], began: float
) -> list[tuple[int, str]]:
    """Blocked threads and what they wait in, first the one that has given no sign for longest."""
    return sorted(blocked.items(), key=lambda item: signs.get(item[0], began))


@dataclass(slots=True)
class _Attempt:
    values: dict[int, Any] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)  # thread of the helper -> the process it began with last
    end: str | None = None
    stuck: int | None = None  # this thread sleeps in the kernel, in a way that nothing but its end can end

    def culprit(self) -> int | None:
        """The process that the helper did not get past, if that can be told."""
        if self.stuck is not None:
            return self.at.get(self.stuck)
        return next(iter(self.at.values())) if len(self.at) == 1 else None

    def ended_at_many(self) -> bool:
        """Whether it ended by itself and several processes may have been the reason."""
        return self.stuck is None and self.end not in (None, TIMED_OUT) and len(self.at) > 1


class _Helper:
    """One forked process and the two pipes to it."""

    def __init__(self, tasks: Mapping[str, Task], proc_root: str, *, one_at_a_time: bool = False) -> None:
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Threads of the program (a user interface) do not exist in the child, which takes no lock of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            state = HelperState(proc_root, one_at_a_time)
            _run_helper(tasks, state, request_read, reply_write, parent)
        os.close(request_read)
        os.close(reply_write)
        self._request = request_write
        self._reply = reply_read
        self._buffer = bytearray()

    def send(self, message: object) -> None:
        payload = pickle.dumps(message)
        view = memoryview(_HEADER.pack(len(payload)) + payload)
        while view:
            view = view[os.write(self._request, view) :]

    def receive(self, timeout_s: float) -> Any:
        """The next message, `None` if it is not complete within the time."""
        until = time.monotonic() + timeout_s
        while (message := self._take()) is _NOTHING:
            left = until - time.monotonic()
            ready = select.select([self._reply], [], [], max(0.0, left))[0]
            if not ready:
                return None
            part = os.read(self._reply, 1 << 20)
            if not part:
                raise EOFError
            self._buffer += part
        return message

    def _take(self) -> Any:
        if len(self._buffer) < _HEADER.size:
            return _NOTHING
        (size,) = _HEADER.unpack_from(self._buffer)
        if size > _LARGEST_MESSAGE:
            raise EOFError
        end = _HEADER.size + size
        if len(self._buffer) < end:
            return _NOTHING
        message = pickle.loads(bytes(self._buffer[_HEADER.size : end]))
        del self._buffer[:end]
        return message

    def blocked(self) -> dict[int, str]:
        """Threads of the helper that are blocked, and the kernel functions they sleep in; none work or are idle."""
        found = {}
        for tid in numbers(f"/proc/{self.pid}/task"):
            stat = read_text(f"/proc/{self.pid}/task/{tid}/stat")
            if stat is not None and stat[stat.rfind(")") + 2 :].startswith("D"):
                found[tid] = wait_channel(f"/proc/{self.pid}/task/{tid}") or "?"
        return found

    def cpu_s(self) -> float:
        # The process's clock (clock_getcpuclockid(3)): its schedstat in /proc is that of the main thread.
        try:
            return time.clock_gettime(~self.pid << 3 | _CPUCLOCK_SCHED)
        except OSError:
            return 0.0

    def end(self) -> bool:
        """Kills it; whether it is gone. Never waits long: a reader inside process_vm_readv cannot die."""
        os.close(self._request)
        os.close(self._reply)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        began = time.monotonic()
        while True:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:  # somebody set SIGCHLD to be ignored
                return True
            waited = time.monotonic() - began
            if waited >= _REAP_BUSY_S or (waited >= _REAP_S and self.blocked()):
                return False
            _wait_for_end(self.pid, _REAP_S)


def _wait_for_end(pid: int, timeout_s: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # before Linux 5.3
        select.select([], [], [], min(timeout_s, 0.002))
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


_NOTHING = object()


def _run_helper(tasks: Mapping[str, Task], state: HelperState, request: int, reply: int, parent: int) -> None:
    """The helper's life. Never returns into the program it was forked from."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's to handle; it ends us
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent)
        _close_all_but({request, reply})
        _serve(tasks, state, request, reply)
        code = 0
    finally:
        os._exit(code)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                continue
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        if standard not in keep:
            os.dup2(null, standard)


def _serve(tasks: Mapping[str, Task], state: HelperState, request: int, reply: int) -> None:
    def write(message: object) -> None:
        payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        view = memoryview(_HEADER.pack(len(payload)) + payload)
        while view:
            view = view[os.write(reply, view) :]

    def begin(pid: int) -> None:
        # From any thread: so few bytes go into a pipe at once (PIPE_BUF), and the main thread writes none meanwhile.
        write(("at", pid, threading.get_native_id()))

    while (header := _read_exactly(request, _HEADER.size)) is not None:
        payload = _read_exactly(request, _HEADER.unpack(header)[0])
        if payload is None:
            return
        task, pids, argument = pickle.loads(payload)
        try:
            for pid, value in tasks[task](state, pids, argument, begin):
                write(("value", pid, value))
        except Exception as error:  # noqa: BLE001 (told to the parent, who gives us up)
            write(("failed", 0, f"{type(error).__name__}: {error}"))
            continue
        write(("end", 0, None))


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    content = b""
    while len(content) < size:
        part = os.read(descriptor, size - len(content))
        if not part:
            return None
        content += part
    return content
