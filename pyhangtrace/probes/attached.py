"""BPF programs that are compiled, attached, opened, read and detached together, in the process that called.

Everything is owned by file descriptors, so the end of the process, however it comes, detaches.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from pyhangtrace.probes import bpf
from pyhangtrace.probes.bcc_loader import compile_program
from pyhangtrace.probes.events import COUNT, TID
from pyhangtrace.probes.perf_events import attach_software, attach_tracepoint
from pyhangtrace.probes.ring import Ring

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO
MAX_TIMELINE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the kernel counted: the raw structures of each table, keys before values."""

    tables: dict[str, bytes]
    lost: tuple[int, ...]
    opened_ns: int  # CLOCK_MONOTONIC
    closed_ns: int
    texts: dict[str, list[str]] = field(default_factory=dict)  # what only the child can name
    untold: int = 0  # bytes of the time line that are left out


class Attached:
    """One compiled BPF source and what of it is attached. Nothing counts before `open`.

    The source has the tables `gate`, `targets` and `lost`, the tables in `RECORDS` with the sizes of key and value, and
    `timeline` if there is one.
    """

    RECORDS: ClassVar[dict[str, tuple[int, int]]] = {}

    def __init__(
        self,
        bcc: ModuleType,
        source: Path,
        pids: Sequence[int],
        macros: dict[str, int],
        *,
        timeline_pages: int,
    ) -> None:
        self._kinds = bcc.BPF
        self._software: list[int] = []
        self._tracepoints: list[int] = []
        self._opened_ns = 0
        self._attached_ns = time.monotonic_ns()
        self._timeline = bytearray()
        self._untold = 0
        self._program = compile_program(
            bcc, source, {"MAX_TARGETS": len(pids), **macros, **pid_namespace_macros()}
        )
        self._ring = Ring(self._map("timeline"), timeline_pages) if timeline_pages else None
        table = self._map("targets")
        for pid in pids:
            bpf.update(table, struct.pack("=I", pid), struct.pack("=I", 1))

    # -- attaching -------------------------------------------------------------------------------------------

    def attach(self, software: Iterable[tuple[int, str]], tracepoints: Iterable[tuple[int, str]]) -> None:
        """Attaches functions to software events and to tracepoints, in that order.

        Raises: OSError, or what bcc raises (a plain Exception); nothing stays attached then.
        """
        self._attached_ns = time.monotonic_ns()
        try:
            for event, function in software:
                self._software += attach_software(event, self._loaded(function, self._kinds.PERF_EVENT))
            for number, function in tracepoints:
                self._tracepoints.append(
                    attach_tracepoint(number, self._loaded(function, self._kinds.TRACEPOINT))
                )
        except BaseException:
            self.close()
            raise

    def _loaded(self, function: str, kind: int) -> int:
        return int(self._program.load_func(function, kind).fd)

    def open(self) -> None:
        """Begins to count, all probes at once."""
        self._opened_ns = time.monotonic_ns()
        self._set_gate(1)

    # -- reading ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Takes what is on the time line, so that its buffer has room again."""
        if self._ring is None:
            return
        more = self._ring.take()
        if len(self._timeline) + len(more) > MAX_TIMELINE_BYTES:
            self._untold += len(more)
        else:
            self._timeline += more

    def read(self) -> Counts:
        """Ends the counting and returns what was counted."""
        self._set_gate(0)
        closed_ns = time.monotonic_ns()
        self.drain()
        tables = {
            name: b"".join(key + value for key, value in bpf.items(self._map(name), *sizes))
            for name, sizes in self.RECORDS.items()
            if self._has(name)
        }
        tables["timeline"] = bytes(self._timeline)
        lost = tuple(
            COUNT.unpack(value)[0] for _, value in bpf.items(self._map("lost"), TID.size, COUNT.size)
        )
        return Counts(
            tables=tables, lost=lost, opened_ns=self._opened_ns, closed_ns=closed_ns, untold=self._untold
        )

    # -- detaching -------------------------------------------------------------------------------------------

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
        return self.attached_s()

    def attached_s(self) -> float:
        """Seconds since the first probe was attached."""
        return (time.monotonic_ns() - self._attached_ns) / 1e9

    def _set_gate(self, value: int) -> None:
        bpf.update(self._map("gate"), struct.pack("=I", 0), struct.pack("=I", value))

    def _has(self, name: str) -> bool:
        """Whether this configuration of the source has the table."""
        try:
            self._map(name)
        except KeyError:
            return False
        return True

    def _map(self, name: str) -> int:
        return int(self._program[name.encode()].map_fd)


def pid_namespace_macros() -> dict[str, int]:
    """In which PID namespace ids are wanted: nothing for the initial one."""
    namespace = os.stat("/proc/self/ns/pid")
    if namespace.st_ino == _INITIAL_PID_NAMESPACE:
        return {}
    # The kernel compares with its own dev_t: twelve bits of major above twenty of minor.
    return {
        "PIDNS_DEV": os.major(namespace.st_dev) << 20 | os.minor(namespace.st_dev),
        "PIDNS_INO": namespace.st_ino,
    }
