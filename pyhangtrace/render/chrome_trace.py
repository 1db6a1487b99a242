"""Chrome's trace event format (JSON object form), which Perfetto opens: all ranks on one time axis.

A process is a process, a thread a thread; waits are complete events ("X"), which nest within their thread; collectives
stand on tracks of their own ("b" and "e"), since a snapshot does not know when exactly one began; faults per second are
a counter, and what takes no time an instant.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pyhangtrace.model.recording import EventKind, FaultCount, Recording, TimedEvent
from pyhangtrace.render.clean import clean

_INSTANT = {EventKind.MAJOR_FAULT, EventKind.EXIT, EventKind.SIGNAL, EventKind.OOM}
_NAMES = {
    EventKind.FUTEX_WAIT: "futex wait",
    EventKind.UNINTERRUPTIBLE: "uninterruptible",
    EventKind.MAJOR_FAULT: "major page fault",
    EventKind.EXIT: "exit",
    EventKind.OOM: "chosen by the OOM killer",
}


def render_chrome_trace(recording: Recording, spans: Sequence[TimedEvent]) -> bytes:
    """The whole file. Times are microseconds since the probes began to count."""
    events = [
        *_names(recording),
        *_timeline(recording),
        *_open_waits(recording),
        *_collectives(spans),
        *_fault_rates(recording.fault_counts),
    ]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "exporter": f"hangtrace {recording.tool_version}",
            "host": clean(recording.host),
            "taken_at": recording.taken_at,
            "lost": dict(recording.lost),
        },
        "traceEvents": events,
    }
    return msgspec.json.encode(document) + b"\n"


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _names(recording: Recording) -> Iterable[dict[str, Any]]:
    for order, process in enumerate(
        sorted(recording.processes, key=lambda each: (each.rank is None, each.rank or 0, each.pid))
    ):
        name = f"rank {process.rank}" if process.rank is not None else process.role.value
        yield _metadata("process_name", process.pid, process.pid, name=f"{name} {clean(process.title)[:60]}")
        yield _metadata("process_sort_index", process.pid, process.pid, sort_index=order)
    for thread in recording.threads:
        yield _metadata("thread_name", thread.pid, thread.tid, name=clean(thread.name))


def _metadata(what: str, pid: int, tid: int, **arguments: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _timeline(recording: Recording) -> Iterable[dict[str, Any]]:
    names = {(thread.pid, thread.tid): thread.name for thread in recording.threads}
    for event in recording.events:
        arguments: dict[str, Any] = {}
        if event.kind in (EventKind.FUTEX_WAIT, EventKind.MAJOR_FAULT) and event.number is not None:
            arguments["address"] = f"{event.number:#x}"
        if event.waker is not None:
            waker = names.get((event.pid, event.waker), "")
            arguments["woken by"] = f"{clean(waker)} ({event.waker})".strip()
        common = {
            "name": _NAMES.get(event.kind) or clean(event.text),
            "cat": event.kind.value,
            "pid": event.pid,
            "tid": event.tid,
            "ts": _microseconds(event.at_s),
            "args": arguments,
        }
        if event.kind in _INSTANT:
            yield {"ph": "i", "s": "t", **common}
        else:
            yield {"ph": "X", "dur": _microseconds(event.took_s), **common}


def _open_waits(recording: Recording) -> Iterable[dict[str, Any]]:
    """Waits that had not ended with the window, and those in which a thread stood when it began."""
    for thread in recording.threads:
        spans = []
        if thread.open_wait_s is not None:
            spans.append((recording.window_s - thread.open_wait_s, thread.open_wait_s, thread.open_address))
        if thread.stood_address is not None and thread.stood_s > 0:
            stood_s = min(thread.stood_s, recording.window_s)
            spans.append((0.0, stood_s, thread.stood_address))
        for at_s, took_s, address in spans:
            yield {
                "ph": "X",
                "name": _NAMES[EventKind.FUTEX_WAIT],
                "cat": EventKind.FUTEX_WAIT.value,
                "pid": thread.pid,
                "tid": thread.tid,
                "ts": _microseconds(max(at_s, 0.0)),
                "dur": _microseconds(took_s),
                "args": {
                    "address": f"{address or 0:#x}",
                    "goes on": at_s > 0 or took_s >= recording.window_s,
                },
            }


def _collectives(spans: Sequence[TimedEvent]) -> Iterable[dict[str, Any]]:
    for number, span in enumerate(spans, start=1):
        common = {
            "name": clean(span.text),
            "cat": "collective",
            "id2": {"local": hex(number)},
            "pid": span.pid,
            "tid": span.tid,
        }
        yield {"ph": "b", "ts": _microseconds(span.at_s), "args": {"thread": span.tid}, **common}
        yield {"ph": "e", "ts": _microseconds(span.at_s + span.took_s), **common}


def _fault_rates(counts: Sequence[FaultCount]) -> Iterable[dict[str, Any]]:
    by_process: dict[int, list[FaultCount]] = defaultdict(list)
    for count in counts:
        by_process[count.pid].append(count)
    for pid, series in by_process.items():
        for earlier, later in itertools.pairwise(series):
            passed = later.at_s - earlier.at_s
            if passed > 0:
                yield {
                    "ph": "C",
                    "name": "page faults/s",
                    "cat": "faults",
                    "pid": pid,
                    "tid": pid,
                    "ts": _microseconds(max(earlier.at_s, 0.0)),
                    "args": {
                        "minor": round(max(later.minor - earlier.minor, 0) / passed, 1),
                        "major": round(max(later.major - earlier.major, 0) / passed, 1),
                    },
                }
