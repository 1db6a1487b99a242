"""A window of eBPF sums and snapshots, as a recording: starts the probes, watches meanwhile, puts both together."""

from __future__ import annotations

import base64
import binascii
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyhangtrace.collect import called_functions
from pyhangtrace.collect.called_functions import FUNCTIONS, Found
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.probe_child import ProbeChild, room_for_threads
from pyhangtrace.collect.procfs import printable
from pyhangtrace.collect.snapshots import Snapshots
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.probes import WakerCount
from pyhangtrace.model.recording import (
    CallSums,
    EventKind,
    Metric,
    OffCpu,
    OffState,
    PlaceFaults,
    RecordedThread,
    TimedEvent,
    WordWaits,
)
from pyhangtrace.probes import activity_events, calls_events, events, launch
from pyhangtrace.probes import result as results
from pyhangtrace.probes.result import ThreadProbe

MAPPING_NAMES_TASK = "mapping names"
FUTEX_SOURCE = "futex and page-fault probes"
ACTIVITY_SOURCE = "activity probes"
CALLS_SOURCE = "uprobes"
LONG_WAIT_S = 0.001  # what is on the time line one by one
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
    places: tuple[tuple[int, int, int, int, int], ...] = ()  # process, thread, address, minor, major
    off_cpu: tuple[OffCpu, ...] = ()
    calls: tuple[CallSums, ...] = ()
    io: dict[int, tuple[int, int]] = field(default_factory=dict)  # process -> requests, bytes
    events: tuple[TimedEvent, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    coverage: tuple[SourceStatus, ...] = ()


class RecordProbes:
    """The children that hold the probes of a recording. Close it; as a context manager it closes itself."""

    def __init__(self, pids: Sequence[int], *, window_s: float, metric: Metric) -> None:
        self._pids = tuple(dict.fromkeys(pids))
        self._window_s = window_s
        self._calls: ProbeChild | None = None
        self._no_calls: SourceStatus | None = None
        wants = ["words", "timeline"]
        if metric is Metric.FAULTS:
            wants.append("places")
        more = ["timeline", "off cpu"] if metric is Metric.OFFCPU else ["timeline"]

        self.futex = self._child("window", wants, FUTEX_SOURCE)
        self.activity = self._child("activity", more, ACTIVITY_SOURCE)

    def _child(self, program: str, wants: Sequence[str], source: str, **more: Any) -> ProbeChild:
        request = launch.request(
            self._pids,
            window_s=self._window_s + 5,  # we end it; this is for when we cannot
            max_threads=room_for_threads(self._pids),
            program=program,
            wants=wants,
            long_wait_ns=int(LONG_WAIT_S * 1e9),
            waits=True,
            **more,
        )
        return ProbeChild(request, source=source)

    def watch_calls(self, found: Mapping[int, Sequence[Found]], families: Sequence[str]) -> None:
        """Loads uprobes for these functions of the targets too."""
        if found:
            self._calls = self._child(
                "calls",
                ["timeline"],
                CALLS_SOURCE,
                places=called_functions.places(found),
                sites=called_functions.sites(found, calls_events.NO_OBJECT),
            )
        else:
            reason = f"no process has a function of: {', '.join(families)}"
            self._no_calls = SourceStatus(source=CALLS_SOURCE, state=SourceState.ABSENT, reason=reason)

    def open(self, *, deadline_s: float) -> float | None:
        """Lets all of them count at the same moment, and returns that (time.monotonic()). Those that cannot are left
        out; None if the futex probes are among them.
        """
        if not self.futex.wait_until_attached(deadline_s=deadline_s):
            return None
        others = [child for child in (self.activity, self._calls) if child is not None]
        ready = [self.futex, *(child for child in others if child.wait_until_attached(deadline_s=deadline_s))]
        for child in ready:
            child.open()
        for child in ready:
            child.wait_until_open(deadline_s=deadline_s)
        opened = [at for child in ready if (at := child.opened_at) is not None]
        return max(opened) if self.futex.opened_at is not None else None

    def missing(self, metric: Metric) -> SourceStatus | None:
        """Why the probes that the metric needs do not count, None if they do."""
        child = self.activity if metric is Metric.OFFCPU else self.futex
        if child.opened_at is not None:
            return None
        answer = child.result(deadline_s=0)
        return answer if isinstance(answer, SourceStatus) else None

    def finish(
        self, *, deadline_s: float, communicators: Mapping[int, Mapping[int, str]]
    ) -> Counted | SourceStatus:
        """Ends the windows and returns what was counted, or why the futex probes have nothing. `communicators`: for
        each process what is known of those, by handle.
        """
        counted = self.futex.result(deadline_s=deadline_s, minimum_s=0)
        more = self.activity.result(deadline_s=deadline_s, minimum_s=0)
        calls = self._calls.result(deadline_s=deadline_s, minimum_s=0) if self._calls else self._no_calls
        if isinstance(counted, SourceStatus):
            return counted
        try:
            return _with_calls(_decoded(self._pids, counted, more), calls, counted, communicators)
        except (binascii.Error, KeyError, TypeError, ValueError) as error:
            return self.futex.status(SourceState.FAILED, f"the probes' counts cannot be decoded: {error}")

    def close(self) -> None:
        """Ends the children, and with them whatever they had attached."""
        for child in (self.futex, self.activity, self._calls):
            if child is not None:
                child.close()

    def __enter__(self) -> RecordProbes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _table(counted: Mapping[str, Any], name: str) -> bytes:
    return base64.b64decode(counted["tables"].get(name, ""), validate=True)


def _decoded(
    pids: tuple[int, ...], counted: Mapping[str, Any], more: Mapping[str, Any] | SourceStatus
) -> Counted:
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
        places=tuple(
            (place.tgid, place.tid, place.place, place.minor, place.major)
            for place in sorted(events.place_records(_table(counted, "fault_places")))
        ),
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


def _with_calls(
    found: Counted,
    calls: Mapping[str, Any] | SourceStatus | None,
    counted: Mapping[str, Any],
    communicators: Mapping[int, Mapping[int, str]],
) -> Counted:
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


# -- threads -------------------------------------------------------------------------------------------------


def threads(
    counted: Counted, seen: Snapshots, services: Mapping[tuple[int, int], str | None]
) -> tuple[RecordedThread, ...]:
    """Every thread that was counted or seen."""
    keys = sorted({*counted.threads, *seen.last})
    standing = _standing(seen)
    found = []
    for key in keys:
        probe = counted.threads.get(key)
        first, last = seen.first.get(key), seen.last.get(key)
        name = str(key[1])
        cpu_s, seen_s = None, 0.0
        if first is not None and last is not None:
            name = last[1].name or last[1].comm
            seen_s = last[0] - first[0]
            if first[1].run_ns is not None and last[1].run_ns is not None and seen_s > 0:
                cpu_s = (last[1].run_ns - first[1].run_ns) / 1e9
        stood_s, address = standing.get(key, (0.0, None))
        if (
            probe is not None
            and address is not None
            and probe.open_wait_s is not None
            and stood_s >= seen_s > 0
        ):
            stood_s = 0.0  # the probes saw it begin, just before the first snapshot
        found.append(
            RecordedThread(
                pid=key[0],
                tid=key[1],
                name=name,
                service=services.get(key),
                waits=probe.waits if probe else 0,
                wait_s=probe.wait_s if probe else 0.0,
                longest_wait_s=probe.longest_wait_s if probe else 0.0,
                timed_out=probe.timed_out if probe else 0,
                wake_calls=probe.wake_calls if probe else 0,
                woken=probe.woken if probe else 0,
                open_wait_s=probe.open_wait_s if probe else None,
                open_address=probe.open_uaddr if probe else None,
                minor_faults=probe.minor_faults if probe else 0,
                major_faults=probe.major_faults if probe else 0,
                cpu_s=cpu_s,
                seen_s=seen_s,
                stood_s=stood_s,
                stood_address=address if stood_s > 0 else None,
            )
        )
    return tuple(found)


def _standing(seen: Snapshots) -> dict[tuple[int, int], tuple[float, int | None]]:
    """For how long each thread did not run from the first snapshot on, and the futex word it slept on."""
    found: dict[tuple[int, int], tuple[float, int | None]] = {}
    moved: set[tuple[int, int]] = set()
    for sample in seen.samples:
        key = (sample.pid, sample.tid)
        at_s, first = seen.first[key]
        if key in moved:
            continue
        if first.slices is None or sample.slices != first.slices or first.running or first.state == "R":
            moved.add(key)
            continue
        address = first.lock.uaddr if first.lock is not None else None
        # The window was open a moment before the first snapshot.
        found[key] = (sample.at_s - at_s + max(at_s, 0.0) * (sample.at_s > at_s), address)
    return found


# -- mapped files --------------------------------------------------------------------------------------------


def mapping_names_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for each process the name of what is mapped at the addresses (pieces of `size`) in `argument`."""
    from pyhangtrace import _native

    wanted, size = argument
    for pid in pids:
        progress(pid)
        mappings = [(entry[0], entry[1], entry[7]) for entry in _native.maps(pid, state.proc_root)]
        yield pid, {address: _most_of(mappings, address, address + size) for address in wanted[pid]}


def _most_of(mappings: Sequence[tuple[int, int, str]], start: int, end: int) -> str | None:
    overlaps = [(min(end, last) - max(start, first), name) for first, last, name in mappings]
    most, name = max(overlaps, default=(0, ""))
    return printable(name) if most > 0 else None


def places(counted: Counted, reader: GuardedReader, *, deadline_s: float) -> tuple[PlaceFaults, ...]:
    """Page faults by place, with what is mapped there now."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for pid, _, address, _, _ in counted.places:
        wanted[pid].append(address)
    if not wanted:
        return ()
    size = 1 << events.PLACE_SHIFT
    answers = reader.run(MAPPING_NAMES_TASK, sorted(wanted), (dict(wanted), size), deadline_s=deadline_s)
    return tuple(
        PlaceFaults(
            pid=pid,
            tid=tid,
            address=address,
            mapping=answers.values.get(pid, {}).get(address),
            minor=minor,
            major=major,
        )
        for pid, tid, address, minor, major in counted.places
    )
