"""One window: the probes of `window.bpf.c` attached, opened, read and detached, in the process that called.

Only futex and page-fault probes are attached. While they are, every system call of every process on the host takes
60 to 100 ns longer (measured; the kernel's tracing of system calls has one switch for all), a futex call of a target
about 0.6 µs and a page fault of any process about 0.2 µs. Everything is owned by file descriptors, so the end of the
process, however it comes, detaches.

Not seen: waits that began before the window (what the thread does then is in its state); waits that a signal
interrupted and the kernel resumed by restart_syscall; futex calls of 32-bit processes, which have no tracepoints; page
faults that the kernel resolves on behalf of a process without an exception (get_user_pages).
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pyhangtrace.probes import bpf
from pyhangtrace.probes.bcc_loader import compile_program
from pyhangtrace.probes.events import COUNT, THREAD_SUMS, TID, WAKE_PAIR, Lost
from pyhangtrace.probes.perf_events import (
    SOFTWARE_MAJOR_FAULTS,
    SOFTWARE_MINOR_FAULTS,
    attach_software,
    attach_tracepoint,
)
from pyhangtrace.probes.tracefs import Tracefs, Tracepoint

SOURCE = Path(__file__).with_name("window.bpf.c")
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO
# System call: programs for its entry and its exit. Only `futex` is watched unless more is asked for: detaching costs
# the host's kernel 70 ms a tracepoint, and C libraries use nothing else.
_PROGRAMS = {
    "futex": ("futex_enter", "futex_exit"),
    "futex_waitv": ("futex_waitv_enter", "futex_exit"),  # since 5.16
    "futex_wait": ("futex_wait_enter", "futex_exit"),  # this and the next since 6.7
    "futex_wake": ("futex_wake_enter", "futex_exit"),
}
ALL_CALLS = tuple(_PROGRAMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the kernel counted: raw structures of `window_events.h`, keys before values."""

    threads: bytes
    pairs: bytes
    lost: Lost
    opened_ns: int  # CLOCK_MONOTONIC
    closed_ns: int


class Window:
    """Probes for `pids`, attached but not counting before `open`.

    `max_threads` bounds the threads of all targets together; what comes beyond is counted as lost. `calls` are the
    system calls to watch, those that this kernel lacks left out.

    Raises: OSError if tracefs or perf events refuse; whatever bcc raises (a plain Exception) if the program is not
    taken. Nothing stays attached then.
    """

    def __init__(
        self, bcc: ModuleType, pids: Sequence[int], *, max_threads: int, calls: Sequence[str]
    ) -> None:
        self._software: list[int] = []
        self._tracepoints: list[int] = []
        self._opened_ns = 0
        self._attached_ns = 0
        with Tracefs() as tracefs:
            watched = [
                (enter, leave, *_PROGRAMS[call])
                for call in calls
                if (enter := tracefs.tracepoint("syscalls", f"sys_enter_{call}"))
                and (leave := tracefs.tracepoint("syscalls", f"sys_exit_{call}"))
            ]
        if not watched:
            raise OSError(errno.ENOENT, "this kernel has no futex tracepoints (CONFIG_FTRACE_SYSCALLS)")
        macros = _macros(watched[0][0], watched[0][1], targets=len(pids), threads=max_threads)
        if any(call != "futex" for call in calls):
            macros["WATCH_NEWER_CALLS"] = (
                1  # left out otherwise: compiling them takes a tenth of the loading time
            )
        self._program = compile_program(bcc, SOURCE, macros)
        self._fill_targets(pids)
        self._attach(bcc, watched)

    def _fill_targets(self, pids: Sequence[int]) -> None:
        table = self._map("targets")
        for pid in pids:
            bpf.update(table, struct.pack("=I", pid), struct.pack("=I", 1))

    def _attach(self, bcc: ModuleType, watched: list[tuple[Tracepoint, Tracepoint, str, str]]) -> None:
        kinds = bcc.BPF
        self._attached_ns = time.monotonic_ns()
        try:
            for event, function in (
                (SOFTWARE_MINOR_FAULTS, "minor_fault"),
                (SOFTWARE_MAJOR_FAULTS, "major_fault"),
            ):
                program = self._program.load_func(function, kinds.PERF_EVENT).fd
                self._software += attach_software(event, program)
            # Exits first: a call whose entry was seen must not end unseen.
            probes = [(leave, program) for _, leave, _, program in watched]
            probes += [(enter, program) for enter, _, program, _ in watched]
            for tracepoint, function in probes:
                program = self._program.load_func(function, kinds.TRACEPOINT).fd
                self._tracepoints.append(attach_tracepoint(tracepoint.id, program))
        except BaseException:
            self.close()
            raise

    def open(self) -> None:
        """Begins to count, all probes at once."""
        self._opened_ns = time.monotonic_ns()
        self._set_gate(1)

    def read(self) -> Counts:
        """Ends the counting and returns what was counted."""
        self._set_gate(0)
        closed_ns = time.monotonic_ns()
        threads = b"".join(
            key + value for key, value in bpf.items(self._map("threads"), TID.size, THREAD_SUMS.size)
        )
        pairs = b"".join(
            key + value for key, value in bpf.items(self._map("pairs"), WAKE_PAIR.size, COUNT.size)
        )
        lost = Lost(
            *(COUNT.unpack(value)[0] for _, value in bpf.items(self._map("lost"), TID.size, COUNT.size))
        )
        return Counts(threads=threads, pairs=pairs, lost=lost, opened_ns=self._opened_ns, closed_ns=closed_ns)

    def close(self) -> float:
        """Detaches everything; seconds it was attached.

        Each tracepoint waits for all of the kernel's readers (70 ms), so they wait side by side.
        """
        closers = [threading.Thread(target=os.close, args=(fd,)) for fd in self._tracepoints]
        self._tracepoints = []
        for closer in closers:
            closer.start()
        for fd in self._software:
            os.close(fd)
        self._software = []
        for closer in closers:
            closer.join()
        return (time.monotonic_ns() - self._attached_ns) / 1e9

    def attached_s(self) -> float:
        """Seconds since the first probe was attached."""
        return (time.monotonic_ns() - self._attached_ns) / 1e9

    def _set_gate(self, value: int) -> None:
        bpf.update(self._map("gate"), struct.pack("=I", 0), struct.pack("=I", value))

    def _map(self, name: str) -> int:
        return int(self._program[name.encode()].map_fd)


def _macros(enter: Tracepoint, leave: Tracepoint, *, targets: int, threads: int) -> dict[str, int]:
    macros = {
        "MAX_TARGETS": targets,
        "MAX_THREADS": threads,
        "MAX_WAKES": 8192,
        # Arguments follow the system call's number, each eight bytes wide whatever its type.
        "ARG_OFFSET": enter.offsets["__syscall_nr"] + 8,
        "RET_OFFSET": leave.offsets["ret"],
    }
    namespace = os.stat("/proc/self/ns/pid")
    if namespace.st_ino != _INITIAL_PID_NAMESPACE:
        # The kernel compares with its own dev_t: twelve bits of major above twenty of minor.
        macros["PIDNS_DEV"] = os.major(namespace.st_dev) << 20 | os.minor(namespace.st_dev)
        macros["PIDNS_INO"] = namespace.st_ino
    return macros
