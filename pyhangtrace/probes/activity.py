"""What threads do beside futex calls and page faults (`activity.bpf.c`): off the CPU, block I/O, signals, exits, OOM.

Exits, signals, OOM victims and block I/O are rare: nobody notices their probes. Time off the CPU is seen at each switch
of threads, of any process: 0.2 to 0.3 µs for everybody, about 1 µs more for a target. It is attached only when wanted.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from pyhangtrace.probes import bpf
from pyhangtrace.probes.activity_events import (
    IO_KEY,
    IO_SUMS,
    OFF_KEY,
    OFF_NOW,
    OFF_SUMS,
    now_records,
    off_records,
)
from pyhangtrace.probes.attached import Attached, Counts
from pyhangtrace.probes.events import TID
from pyhangtrace.probes.tracefs import Tracefs
from pyhangtrace.probes.window import TIMELINE

SOURCE = Path(__file__).with_name("activity.bpf.c")
OFF_CPU = "off cpu"
_MAX_STACKS, _MAX_OFF_SUMS = 16384, 32768
_TIMELINE_PAGES = 256
_DEPTH = 127  # PERF_MAX_STACK_DEPTH
# Function: its tracepoint, and the macro that each of its fields is known by.
_PROBES: dict[str, tuple[str, str, dict[str, str]]] = {
    "off_cpu": (
        "sched",
        "sched_switch",
        {
            "prev_state": "SWITCH_PREV_STATE",
            "prev_pid": "SWITCH_PREV_PID",
            "next_pid": "SWITCH_NEXT_PID",
        },
    ),
    "exits": ("sched", "sched_process_exit", {}),
    "signal_delivered": ("signal", "signal_deliver", {"sig": "SIGNAL_NUMBER"}),
    "oom_victim": ("oom", "mark_victim", {"pid": "VICTIM_PID"}),
    "bio_queued": ("block", "block_bio_queue", {"nr_sector": "BIO_SECTORS"}),
}


class Activity(Attached):
    """Probes for `pids`, attached but not counting before `open`. `wants`: `OFF_CPU`, `TIMELINE`.

    What this kernel has no tracepoint for is left out, and named in the counts' texts as "absent".

    Raises: as `window.Window`.
    """

    RECORDS = {  # noqa: RUF012
        "off_sums": (OFF_KEY.size, OFF_SUMS.size),
        "off_now": (TID.size, OFF_NOW.size),
        "io": (IO_KEY.size, IO_SUMS.size),
    }

    def __init__(
        self,
        bcc: ModuleType,
        pids: Sequence[int],
        *,
        max_threads: int,
        wants: Collection[str],
        long_wait_ns: int,
    ) -> None:
        macros = {"MAX_THREADS": max_threads, "LONG_WAIT_NS": long_wait_ns}
        probes: list[tuple[int, str]] = []
        self._absent: list[str] = []
        with Tracefs() as tracefs:
            for function, (category, name, fields) in _PROBES.items():
                if function == "off_cpu" and OFF_CPU not in wants:
                    continue
                found = tracefs.tracepoint(category, name)
                if found is None or not fields.keys() <= found.offsets.keys():
                    self._absent.append(f"{category}:{name}")
                    continue
                macros |= {macro: found.offsets[field] for field, macro in fields.items()}
                probes.append((found.id, function))
                if function == "off_cpu":
                    macros |= {"MAX_STACKS": _MAX_STACKS, "MAX_OFF_SUMS": _MAX_OFF_SUMS}
        pages = _TIMELINE_PAGES if TIMELINE in wants else 0
        if pages:
            macros["TIMELINE_PAGES"] = pages
        super().__init__(bcc, SOURCE, pids, macros, timeline_pages=pages)
        self.attach((), probes)

    def read(self) -> Counts:
        """Ends the counting; `texts` has the functions of each kernel stack by its number, innermost first."""
        counts = super().read()
        numbers = {sums.kernel_stack for sums in off_records(counts.tables.get("off_sums", b""))}
        numbers |= {
            now.kernel_stack for now in now_records(counts.tables.get("off_now", b"")) if now.since_ns
        }
        stacks = self._stacks(number for number in numbers if number >= 0)
        symbols = Symbols(address for stack in stacks.values() for address in stack)
        texts = {
            str(number): [symbols.name(address) for address in stack] for number, stack in stacks.items()
        }
        return replace(counts, texts={**texts, "absent": self._absent})

    def _stacks(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        found = {}
        for number in numbers:
            value = bpf.lookup(self._map("stacks"), TID.pack(number), 8 * _DEPTH)
            if value is not None:
                addresses = memoryview(value).cast("Q").tolist()
                found[number] = addresses[: addresses.index(0)] if 0 in addresses else addresses
        return found


class Symbols:
    """Names of kernel functions, for the given addresses; read at once, since the kernel writes the list anew."""

    def __init__(self, addresses: Iterable[int], path: str = "/proc/kallsyms") -> None:
        wanted = sorted(set(addresses))
        self._names: dict[int, str] = {}
        if not wanted:
            return
        starts: list[int] = []
        names: list[str] = []
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                start, kind, name = line.split(maxsplit=3)[:3]
                if kind in "tTwW":
                    starts.append(int(start, 16))
                    names.append(name)
        order = sorted(range(len(starts)), key=starts.__getitem__)
        ordered = [starts[index] for index in order]
        if not ordered or not ordered[-1]:
            return  # without the right to see addresses (kernel.kptr_restrict) all are zero
        for address in wanted:
            place = bisect.bisect_right(ordered, address) - 1
            if place >= 0:
                self._names[address] = names[order[place]]

    def name(self, address: int) -> str:
        """The function that the address lies in, or the address."""
        return self._names.get(address, f"{address:#x}")
