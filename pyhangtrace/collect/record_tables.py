"""What the probes of a recording answer, decoded: tables of the kernel as sums and a time line."""

from __future__ import annotations

import base64
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyhangtrace.collect import called_functions
from pyhangtrace.collect.called_functions import FUNCTIONS
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.probes import WakerCount
from pyhangtrace.model.recording import (
    CallSums,
    EventKind,
    OffCpu,
    OffState,
    TimedEvent,
    WordWaits,
)
from pyhangtrace.probes import activity_events, calls_events, events
from pyhangtrace.probes import result as results
from pyhangtrace.probes.result import ThreadProbe

FUTEX_SOURCE = "futex and page-fault probes"
ACTIVITY_SOURCE = "activity probes"
CALLS_SOURCE = "uprobes"
_OPERATIONS = {0: "wait", 6: "lock_pi", 9: "wait_bitset", 11: "wait_requeue_pi", 13: "lock_pi2", 64: "waitv"}
_LOST = {
    "thread": "futex calls and faults of threads beyond the room for them",
    "pair": "wake-ups without their pair",
    "wake": "wake-ups without their waker",
    "sum": "waits that are in no sum by futex word",
    "event": "waits and faults that are not on the time line",
    "place": "page faults that are in no sum by place",
    "switch": "times off the CPU that are in no sum",
    "stack": "times off the CPU without a kernel stack",
    "io": "block I/O requests that are in no sum",
    "activity": "signals, exits and blocks that are not on the time line",
    "call": "calls that found no room or lie too deep in others",
    "call_sum": "calls that are in no sum",
    "call_event": "calls that are not on the time line",
}


@dataclass(slots=True, kw_only=True)
class Counted:
    """What the probes counted, decoded. `threads` and `words` by (process, thread)."""

    window_s: float
    attached_s: float
    cpu_s: float
    threads: dict[tuple[int, int], ThreadProbe]
    wakers: dict[int, tuple[WakerCount, ...]]
    words: tuple[WordWaits, ...] = ()
    places: tuple[events.PlaceFaults, ...] = ()
    off_cpu: tuple[OffCpu, ...] = ()
    calls: tuple[CallSums, ...] = ()
    io: dict[int, tuple[int, int]] = field(default_factory=dict)  # process -> requests, bytes
    events: tuple[TimedEvent, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    coverage: tuple[SourceStatus, ...] = ()


def _table(counted: Mapping[str, Any], name: str) -> bytes:
    return base64.b64decode(counted["tables"].get(name, ""), validate=True)


def decoded(
    pids: tuple[int, ...], counted: Mapping[str, Any], more: Mapping[str, Any] | SourceStatus
) -> Counted:
    """The answers of the futex and of the activity probes, or why those have none.

    Raises: binascii.Error, KeyError, TypeError or ValueError if they are not what they should be.
    """
    processes = results.decode(
        pids,
        threads=_table(counted, "threads"),
        pairs=_table(counted, "pairs"),
        lost=events.Lost(*counted["lost"]),
        window_s=counted["window_s"],
        closed_ns=counted["closed_ns"],
    )
    opened_ns = counted["opened_ns"]
    lost = dict(zip(events.Lost._fields, counted["lost"], strict=True))
    lost["event"] += counted["untold"] // events.TIMED_EVENT.size
    found = Counted(
        window_s=counted["window_s"],
        attached_s=counted["attached_s"],
        cpu_s=counted["cpu_s"],
        threads={(process.pid, thread.tid): thread for process in processes for thread in process.threads},
        wakers={process.pid: process.evidence.wakers for process in processes},
        words=tuple(_words(counted)),
        places=tuple(sorted(events.place_records(_table(counted, "fault_places")))),
    )
    line = list(_timed(counted, opened_ns))
    reason = f"counted for {found.window_s:.2f} s"
    coverage = [SourceStatus(source=FUTEX_SOURCE, state=SourceState.USED, reason=reason)]
    if not counted["told"]:
        coverage.append(
            SourceStatus(
                source="time line",
                state=SourceState.ABSENT,
                reason="this kernel has no BPF ring buffers: sums only, no single waits, faults, signals and exits",
                fix="Linux 5.8",
            )
        )
    if isinstance(more, SourceStatus):
        coverage.append(more)
    else:
        lost |= dict(zip(activity_events.LostActivity._fields, more["lost"], strict=True))
        lost["activity"] += more["untold"] // activity_events.ACTIVITY.size
        found.off_cpu = tuple(_off_cpu(more))
        found.io = _io(more)
        found.cpu_s += more["cpu_s"]
        line += _activities(pids, more, opened_ns)
        coverage.append(_activity_coverage(more))
    found.events = tuple(sorted(line, key=lambda event: (event.at_s, event.pid, event.tid)))
    found.lost = tuple((_LOST[name], count) for name, count in lost.items() if count)
    found.coverage = tuple(coverage)
    return found


def _activity_coverage(more: Mapping[str, Any]) -> SourceStatus:
    absent = more["texts"].get("absent", [])
    if absent:
        reason = f"this kernel has no {', '.join(absent)}"
        return SourceStatus(source=ACTIVITY_SOURCE, state=SourceState.ABSENT, reason=reason)
    reason = f"counted for {more['window_s']:.2f} s"
    return SourceStatus(source=ACTIVITY_SOURCE, state=SourceState.USED, reason=reason)


def _words(counted: Mapping[str, Any]) -> Iterator[WordWaits]:
    for word in sorted(events.word_records(_table(counted, "word_waits"))):
        yield WordWaits(
            pid=word.tgid,
            tid=word.tid,
            address=word.uaddr,
            operation=_OPERATIONS.get(word.operation & 0x7F, str(word.operation & 0x7F)),
            waits=word.waits,
            wait_s=word.wait_ns / 1e9,
            longest_s=word.longest_ns / 1e9,
            timed_out=word.timed_out,
            slots=word.slots,
        )


def _timed(counted: Mapping[str, Any], opened_ns: int) -> Iterator[TimedEvent]:
    kinds = {
        events.EVENT_FUTEX_WAIT: EventKind.FUTEX_WAIT,
        events.EVENT_MAJOR_FAULT: EventKind.MAJOR_FAULT,
    }
    for event in events.timed_records(_table(counted, "timeline")):
        yield TimedEvent(
            kind=kinds[event.kind],
            pid=event.tgid,
            tid=event.tid,
            at_s=(event.at_ns - opened_ns) / 1e9,
            took_s=event.took_ns / 1e9,
            number=event.object,
            waker=event.other or None,
        )


_ACTIVITIES = {
    activity_events.ACTIVITY_EXIT: EventKind.EXIT,
    activity_events.ACTIVITY_SIGNAL: EventKind.SIGNAL,
    activity_events.ACTIVITY_OOM: EventKind.OOM,
    activity_events.ACTIVITY_OFF: EventKind.UNINTERRUPTIBLE,
}


def _activities(pids: tuple[int, ...], more: Mapping[str, Any], opened_ns: int) -> Iterator[TimedEvent]:
    for event in activity_events.activity_records(_table(more, "timeline")):
        kind = _ACTIVITIES[event.kind]
        pid = event.tgid
        if kind is EventKind.OOM:
            if event.tid not in pids:
                continue  # somebody else's
            pid = event.tid
        yield TimedEvent(
            kind=kind,
            pid=pid,
            tid=event.tid,
            at_s=(event.at_ns - opened_ns) / 1e9,
            took_s=event.took_ns / 1e9,
            number=event.detail if kind is EventKind.SIGNAL else None,
            text=_signal_name(event.detail) if kind is EventKind.SIGNAL else "",
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_STATES = {
    activity_events.OFF_SLEEPING: OffState.SLEEPING,
    activity_events.OFF_UNINTERRUPTIBLE: OffState.UNINTERRUPTIBLE,
    activity_events.OFF_RUNNABLE: OffState.RUNNABLE,
}


def _off_cpu(more: Mapping[str, Any]) -> Iterator[OffCpu]:
    """Sums by functions: two stacks that differ in addresses only are one. What goes on counts up to the end."""
    times: Counter[tuple[int, int, OffState, tuple[str, ...]]] = Counter()
    total: dict[tuple[int, int, OffState, tuple[str, ...]], float] = defaultdict(float)
    longest: dict[tuple[int, int, OffState, tuple[str, ...]], float] = defaultdict(float)
    texts = more["texts"]
    for sums in activity_events.off_records(_table(more, "off_sums")):
        key = (sums.tgid, sums.tid, _STATES[sums.state], tuple(texts.get(str(sums.kernel_stack), ())))
        times[key] += sums.times
        total[key] += sums.off_ns / 1e9
        longest[key] = max(longest[key], sums.longest_ns / 1e9)
    for now in activity_events.now_records(_table(more, "off_now")):
        if not now.since_ns:
            continue
        key = (now.tgid, now.tid, _STATES[now.state], tuple(texts.get(str(now.kernel_stack), ())))
        passed = max(more["closed_ns"] - now.since_ns, 0) / 1e9
        total[key] += passed
        longest[key] = max(longest[key], passed)
    for (pid, tid, state, kernel), off_s in sorted(total.items()):
        key = (pid, tid, state, kernel)
        yield OffCpu(
            pid=pid,
            tid=tid,
            state=state,
            kernel=kernel,
            times=times[key],
            off_s=off_s,
            longest_s=longest[key],
        )


def _io(more: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for sums in activity_events.io_records(_table(more, "io")):
        requests, size = found.get(sums.tgid, (0, 0))
        found[sums.tgid] = (requests + sums.requests, size + 512 * sums.sectors)
    return found


def with_calls(
    found: Counted,
    calls: Mapping[str, Any] | SourceStatus | None,
    counted: Mapping[str, Any],
    communicators: Mapping[int, Mapping[int, str]],
) -> Counted:
    """`found` with the answer of the uprobes, or why they have none; None: nobody asked. Raises as `decoded`."""
    if calls is None:
        return found
    if isinstance(calls, SourceStatus):
        return replace(found, coverage=(*found.coverage, calls))
    lost = dict(zip(calls_events.LostCalls._fields, calls["lost"], strict=True))
    lost["call_event"] += calls["untold"] // calls_events.CALL_EVENT.size
    sums = tuple(
        CallSums(
            pid=each.tgid,
            tid=each.tid,
            function=FUNCTIONS[each.site].name,
            family=FUNCTIONS[each.site].family,
            object=each.object,
            calls=each.calls,
            call_s=each.call_ns / 1e9,
            longest_s=each.longest_ns / 1e9,
        )
        for each in sorted(calls_events.sum_records(_table(calls, "call_sums")))
    )
    told = [
        TimedEvent(
            kind=EventKind.CALL,
            pid=event.tgid,
            tid=event.tid,
            at_s=(event.at_ns - counted["opened_ns"]) / 1e9,
            took_s=event.took_ns / 1e9,
            number=event.result,
            text=called_functions.describe(event.site, event.arguments, communicators.get(event.tgid, {})),
        )
        for event in calls_events.event_records(_table(calls, "timeline"))
    ]
    reason = f"counted for {calls['window_s']:.2f} s"
    return replace(
        found,
        cpu_s=found.cpu_s + calls["cpu_s"],
        calls=sums,
        events=tuple(sorted((*found.events, *told), key=lambda event: (event.at_s, event.pid, event.tid))),
        lost=(*found.lost, *((_LOST[name], count) for name, count in lost.items() if count)),
        coverage=(
            *found.coverage,
            SourceStatus(source=CALLS_SOURCE, state=SourceState.USED, reason=reason),
        ),
    )
