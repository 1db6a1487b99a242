"""One window: the probes of `window.bpf.c` attached, opened, read and detached, in the process that called.

Only futex and page-fault probes are attached. While they are, every system call of every process on the host takes
60 to 100 ns longer (measured; the kernel's tracing of system calls has one switch for all), a futex call of a target
about 0.4 µs and a page fault of any process about 0.2 µs.

Not seen: waits that began before the window (what the thread does then is in its state); waits that a signal
interrupted and the kernel resumed by restart_syscall; futex calls of 32-bit processes, which have no tracepoints; page
faults that the kernel resolves on behalf of a process without an exception (get_user_pages).
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from pyhangtrace.probes import bpf
from pyhangtrace.probes.attached import Attached, Counts
from pyhangtrace.probes.events import (
    CLAIM,
    CLAIM_KEY,
    COUNT,
    FAULT_PLACE,
    NEAR_TID,
    OF_THREADS,
    PLACE_FAULTS,
    TID,
    WAKE_PAIR,
    WORD_WAITS,
    WORD_WAITS_KEY,
    split_record,
    thread_record_size,
)
from pyhangtrace.probes.perf_events import SOFTWARE_MAJOR_FAULTS, SOFTWARE_MINOR_FAULTS
from pyhangtrace.probes.tracefs import Tracefs, Tracepoint

SOURCE = Path(__file__).with_name("window.bpf.c")
# System call: programs for its entry and its exit. Only `futex` is watched unless more is asked for: detaching costs
# the host's kernel 70 ms a tracepoint, and C libraries use nothing else.
_PROGRAMS = {
    "futex": ("futex_enter", "futex_exit"),
    "futex_waitv": ("futex_waitv_enter", "futex_exit"),  # since 5.16
    "futex_wait": ("futex_wait_enter", "futex_exit"),  # this and the next since 6.7
    "futex_wake": ("futex_wake_enter", "futex_exit"),
}
ALL_CALLS = tuple(_PROGRAMS)
WORDS, TIMELINE, PLACES = "words", "timeline", "places"  # what can be wanted beside the sums of each thread
_MAX_WORD_WAITS, _MAX_PLACES = 65536, 32768
_TIMELINE_PAGES = 1024
_MOST_NEAR_SLOTS = 16384


class Window(Attached):
    """Probes for `pids`, attached but not counting before `open`.

    `max_threads` bounds the threads of all targets together; what comes beyond is counted as lost. `calls` are the
    system calls to watch, those that this kernel lacks left out. `wants`: `WORDS` for sums by futex word, `TIMELINE`
    for waits of at least `long_wait_ns` and major faults one by one, `PLACES` for page faults by address.

    Raises: OSError if tracefs or perf events refuse; whatever bcc raises (a plain Exception) if the program is not
    taken. Nothing stays attached then.
    """

    RECORDS = {  # noqa: RUF012
        "pairs": (WAKE_PAIR.size, COUNT.size),
        "word_waits": (WORD_WAITS_KEY.size, WORD_WAITS.size),
        "fault_places": (FAULT_PLACE.size, PLACE_FAULTS.size),
    }

    def __init__(
        self,
        bcc: ModuleType,
        pids: Sequence[int],
        *,
        max_threads: int,
        calls: Sequence[str],
        wants: Collection[str] = (),
        long_wait_ns: int = 0,
    ) -> None:
        with Tracefs() as tracefs:
            watched = [
                (enter, leave, *_PROGRAMS[call])
                for call in calls
                if (enter := tracefs.tracepoint("syscalls", f"sys_enter_{call}"))
                and (leave := tracefs.tracepoint("syscalls", f"sys_exit_{call}"))
            ]
        if not watched:
            raise OSError(errno.ENOENT, "this kernel has no futex tracepoints (CONFIG_FTRACE_SYSCALLS)")
        macros = _macros(watched[0][0], watched[0][1], threads=max_threads)
        if any(call != "futex" for call in calls):
            macros["WATCH_NEWER_CALLS"] = (
                1  # left out otherwise: compiling them takes a tenth of the loading time
            )
        if WORDS in wants:
            macros["MAX_WORD_WAITS"] = _MAX_WORD_WAITS
        if PLACES in wants:
            macros["MAX_FAULT_PLACES"] = _MAX_PLACES
        self._record_size = thread_record_size(words=WORDS in wants)
        pages = _TIMELINE_PAGES if TIMELINE in wants else 0
        if pages:
            macros |= {"TIMELINE_PAGES": pages, "LONG_WAIT_NS": long_wait_ns}
        super().__init__(bcc, SOURCE, pids, macros, timeline_pages=pages)
        # Exits first: a call whose entry was seen must not end unseen.
        probes = [(leave.id, program) for _, leave, _, program in watched]
        probes += [(enter.id, program) for enter, _, program, _ in watched]
        self.attach(((SOFTWARE_MINOR_FAULTS, "minor_fault"), (SOFTWARE_MAJOR_FAULTS, "major_fault")), probes)

    def read(self) -> Counts:
        """Ends the counting; what a thread's own record holds is put with the tables that take the rest."""
        counts = super().read()
        threads, pairs, words = bytearray(), bytearray(), bytearray()
        for tid, record in self._threads():
            sums, pair, waits = split_record(record)
            threads += tid + sums
            pairs += pair
            words += waits
        more = {"threads": threads, "pairs": pairs, "word_waits": words}
        tables = {name: counts.tables.get(name, b"") + bytes(own) for name, own in more.items()}
        return replace(counts, tables={**counts.tables, **tables})

    def _threads(self) -> Iterator[tuple[bytes, bytes]]:
        yield from bpf.items(self._map("threads"), TID.size, self._record_size)
        near = self._map("near_threads")
        for key, _ in bpf.items(self._map("claims"), CLAIM_KEY.size, CLAIM.size):
            table, slot = CLAIM_KEY.unpack(key)
            if table == OF_THREADS:
                value = bpf.lookup(near, TID.pack(slot), NEAR_TID.size + self._record_size)
                if value is not None:
                    tid, _ = NEAR_TID.unpack_from(value)
                    yield TID.pack(tid), value[NEAR_TID.size :]


def _macros(enter: Tracepoint, leave: Tracepoint, *, threads: int) -> dict[str, int]:
    return {
        "MAX_THREADS": threads,
        "NEAR_SLOTS": min(1 << (threads - 1).bit_length(), _MOST_NEAR_SLOTS),
        "MAX_WAKES": 8192,
        # Arguments follow the system call's number, each eight bytes wide whatever its type.
        "ARG_OFFSET": enter.offsets["__syscall_nr"] + 8,
        "RET_OFFSET": leave.offsets["ret"],
    }
