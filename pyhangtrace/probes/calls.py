"""Calls of functions of the targets, by uprobes (`calls.bpf.c`). Only where they are asked for.

A uprobe is a breakpoint that the kernel writes into the code of a process. Each call costs its caller 2 µs (entry and
return) where the kernel can do itself what the instruction under it does, up to 10 µs in a virtual machine where it has
to step over it. It is owned by a file descriptor like everything else here, never a named event of tracefs, which would
stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pyhangtrace.probes import bpf
from pyhangtrace.probes.attached import Attached
from pyhangtrace.probes.calls_events import CALL_KEY, CALL_SUMS, SITE, SITE_KEY
from pyhangtrace.probes.perf_events import attach_uprobe
from pyhangtrace.probes.window import TIMELINE

SOURCE = Path(__file__).with_name("calls.bpf.c")
_MAX_CALL_SUMS = 32768
_TIMELINE_PAGES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a breakpoint goes: `offset` bytes into a file; only into process `pid`, 0: wherever the file is mapped."""

    path: str
    offset: int
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A function in a process. `number` is the caller's own, `object` the argument that its sums are kept by, `told`
    whether each call is on the time line.
    """

    pid: int
    address: int
    number: int
    object: int
    told: bool


class Calls(Attached):
    """Uprobes at `places` that count calls of `sites`. Raises: as `window.Window`."""

    RECORDS = {"call_sums": (CALL_KEY.size, CALL_SUMS.size)}  # noqa: RUF012

    def __init__(
        self,
        bcc: ModuleType,
        pids: Sequence[int],
        *,
        max_threads: int,
        wants: Collection[str],
        long_wait_ns: int,
        places: Sequence[Place],
        sites: Sequence[Site],
    ) -> None:
        macros = {
            "MAX_THREADS": max_threads,
            "MAX_SITES": max(len(sites), 1),
            "MAX_CALL_SUMS": _MAX_CALL_SUMS,
            "LONG_WAIT_NS": long_wait_ns,
        }
        pages = _TIMELINE_PAGES if TIMELINE in wants else 0
        if pages:
            macros["TIMELINE_PAGES"] = pages
        super().__init__(bcc, SOURCE, pids, macros, timeline_pages=pages)
        for site in sites:
            bpf.update(
                self._map("sites"),
                SITE_KEY.pack(site.address, site.pid, 0),
                SITE.pack(site.number, site.object, site.told, 0),
            )
        self._uprobes(places)

    def _uprobes(self, places: Sequence[Place]) -> None:
        entry = self._loaded("call_enter", self._kinds.KPROBE)  # the type of program that uprobes run
        back = self._loaded("call_return", self._kinds.KPROBE)
        try:
            # Returns first: a call whose entry was seen must not end unseen.
            for program, is_return in ((back, True), (entry, False)):
                for place in places:
                    self._tracepoints.append(
                        attach_uprobe(place.path, place.offset, program, pid=place.pid, is_return=is_return)
                    )
        except BaseException:
            self.close()
            raise
