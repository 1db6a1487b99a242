"""What a recording says: a row for each process, and stacks weighed by what they waited. Pure, like all analysis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pyhangtrace.analyze.calls import Meaning, recognise
from pyhangtrace.model.kinds import FoundBy, FrameKind, Role
from pyhangtrace.model.quantities import times
from pyhangtrace.model.recording import (
    EventKind,
    Metric,
    OffCpu,
    OffState,
    PlaceFaults,
    RecordedProcess,
    RecordedThread,
    Recording,
    StackSample,
    TimedEvent,
)
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.weighted import (
    RecordingSummary,
    StackProfile,
    SummaryRow,
    Unit,
    WeightedStack,
)

Key = tuple[int, int]  # process, thread

_NOT_SEEN = "[in no snapshot]"
_IN_SYSTEM_CALL = "[by the kernel, in a system call]"
_IN_FAULT = -1  # what the kernel gives for a system call where a thread sleeps outside of one
_TITLES = {
    Metric.FUTEX: "time in futex waits",
    Metric.OFFCPU: "time off the CPU",
    Metric.FAULTS: "page faults",
}
_SMALLEST_REST_S = 0.001
_COLLECTIVES = "collectives"  # of the families of functions that uprobes watch
_MOST_CALLS = 3


# -- weighed stacks ------------------------------------------------------------------------------------------


def profile(recording: Recording, metric: Metric | None = None) -> StackProfile:
    """Stacks weighed by the metric (the recording's own by default), each thread's by its snapshots."""
    metric = metric or recording.metric
    weigh = {Metric.FUTEX: _futex, Metric.OFFCPU: _off_cpu, Metric.FAULTS: _faults}[metric]
    ranks = {process.pid: process.rank for process in recording.processes}
    names = {(thread.pid, thread.tid): thread.name for thread in recording.threads}
    services = {(thread.pid, thread.tid): thread.service for thread in recording.threads}
    summed: dict[tuple[int, int, tuple[Frame, ...]], float] = defaultdict(float)
    for (pid, tid), frames, weight in weigh(recording):
        if weight > 0:
            summed[pid, tid, frames] += weight
    stacks = tuple(
        WeightedStack(
            pid=pid,
            tid=tid,
            rank=ranks.get(pid),
            thread=names.get((pid, tid), str(tid)),
            frames=tuple(reversed(frames)),
            weight=weight,
            service=services.get((pid, tid)),
        )
        for (pid, tid, frames), weight in summed.items()
    )
    unit = Unit.FAULTS if metric is Metric.FAULTS else Unit.SECONDS
    title = f"{_TITLES[metric]} within {recording.window_s:.1f} s"
    return StackProfile(title=title, unit=unit, stacks=stacks)


def compared(now: StackProfile, before: StackProfile, *, scale: float = 1.0) -> StackProfile:
    """`now` with the weights that the same stacks of the same rank and thread name had `before`, times `scale`.

    Process and thread numbers differ between two runs; ranks (without one: nothing) and names of threads do not.
    """
    earlier: dict[tuple[object, ...], float] = defaultdict(float)
    spare: dict[tuple[object, ...], WeightedStack] = {}
    for stack in before.stacks:
        earlier[_likeness(stack)] += stack.weight * scale
        spare.setdefault(_likeness(stack), stack)
    shares: Counter[tuple[object, ...]] = Counter(_likeness(stack) for stack in now.stacks)
    stacks = [
        replace(stack, before=earlier[_likeness(stack)] / shares[_likeness(stack)])
        if _likeness(stack) in earlier
        else replace(stack, before=0.0)
        for stack in now.stacks
    ]
    stacks += [
        replace(stack, weight=0.0, before=earlier[key]) for key, stack in spare.items() if key not in shares
    ]
    return StackProfile(
        title=f"{now.title}, against an earlier recording",
        unit=now.unit,
        stacks=tuple(stacks),
        compared=True,
    )


def _likeness(stack: WeightedStack) -> tuple[object, ...]:
    frames = tuple((frame.kind, frame.function, frame.file, frame.module) for frame in stack.frames)
    return (stack.rank, stack.thread, frames)


Weighed = Iterable[tuple[Key, tuple[Frame, ...], float]]


def _futex(recording: Recording) -> Weighed:
    """Each word's waiting time over the stacks in which the thread was seen waiting for that word."""
    seen: dict[tuple[int, int, int], list[StackSample]] = defaultdict(list)
    for sample in recording.samples:
        if sample.address is not None:
            seen[sample.pid, sample.tid, sample.address].append(sample)
    waited: dict[tuple[int, int, int], float] = defaultdict(float)
    for word in recording.words:
        waited[word.pid, word.tid, word.address] += word.wait_s
    for thread in recording.threads:
        if thread.open_wait_s is not None:
            waited[thread.pid, thread.tid, thread.open_address or 0] += thread.open_wait_s
        if thread.stood_address is not None:
            waited[thread.pid, thread.tid, thread.stood_address] += thread.stood_s
    for (pid, tid, address), seconds in waited.items():
        yield from _spread((pid, tid), seconds, seen[pid, tid, address], recording.stacks)


def _off_cpu(recording: Recording) -> Weighed:
    """Each kernel stack's time over the snapshots that show the thread there; what the probes cannot have seen (it left
    the CPU before the window) over the first of them.
    """
    samples = _by_thread(recording.samples)
    counted: dict[Key, float] = defaultdict(float)
    known: dict[Key, list[OffCpu]] = defaultdict(list)
    for off in recording.off_cpu:
        key = (off.pid, off.tid)
        known[key].append(off)
        counted[key] += off.off_s
        fitting = [sample for sample in samples[key] if _fits(sample, off)]
        kernel = tuple(_kernel(function) for function in off.kernel)
        for _, frames, seconds in _spread(key, off.off_s, fitting, recording.stacks):
            yield key, (*kernel, *(frame for frame in frames if frame.kind is not FrameKind.KERNEL)), seconds
    for thread in recording.threads:
        key = (thread.pid, thread.tid)
        if thread.cpu_s is None or not samples[key] or not recording.off_cpu:
            continue
        rest = thread.seen_s - thread.cpu_s - counted[key]
        first = samples[key][0]
        if rest > max(_SMALLEST_REST_S, 0.01 * thread.seen_s) and first.state != "R":
            frames = recording.stacks[first.stack]
            # The probes tell of more functions than a snapshot: a later wait at the same place has its whole stack.
            same = {off.kernel for off in known[key] if first.wchan and _fits(first, off)}
            if len(same) == 1:
                kernel = tuple(_kernel(function) for function in same.pop())
                frames = (*kernel, *(frame for frame in frames if frame.kind is not FrameKind.KERNEL))
            elif first.wchan and not any(frame.kind is FrameKind.KERNEL for frame in frames):
                frames = (_kernel(first.wchan), *frames)
            yield key, frames, rest


def _fits(sample: StackSample, off: OffCpu) -> bool:
    """Whether a snapshot can show the thread at that place of the kernel."""
    if off.state is OffState.RUNNABLE:
        return sample.state == "R"
    if sample.state == "R":
        return False
    if sample.address is not None:
        return any("futex" in function for function in off.kernel)
    if sample.wchan:
        return sample.wchan in off.kernel
    return not any("futex" in function for function in off.kernel)


def _faults(recording: Recording) -> Weighed:
    """The faults of each instruction over the snapshots that show the thread in its function while it ran or faulted:
    where it sleeps it does not fault.
    """
    samples = _by_thread(sample for sample in recording.samples if _can_fault(sample))
    placed: dict[Key, int] = defaultdict(int)
    for place in recording.places:
        key = (place.pid, place.tid)
        count = place.minor + place.major
        placed[key] += count
        leaf = _note(_mapped(place))
        fitting: list[StackSample] = []
        otherwise: tuple[Frame, ...] = (_note(_NOT_SEEN),)
        if place.code is None:
            fitting = samples[key]
        elif place.code:
            fitting = [sample for sample in samples[key] if _executes(recording.stacks[sample.stack], place)]
            otherwise = (_code(place), _note(_NOT_SEEN))
        else:
            otherwise = (_note(_IN_SYSTEM_CALL),)
        for _, frames, weight in _spread(key, count, fitting, recording.stacks, otherwise=otherwise):
            yield key, (leaf, *frames), weight
    for thread in recording.threads:
        key = (thread.pid, thread.tid)
        rest = thread.minor_faults + thread.major_faults - placed[key]
        if rest > 0:
            yield from _spread(key, rest, samples[key], recording.stacks)


def _can_fault(sample: StackSample) -> bool:
    """Whether the stack is of a moment in which the thread ran, or slept outside of a system call: a stopped one
    does not sleep.
    """
    return sample.on_cpu or (sample.syscall == _IN_FAULT and sample.state in ("S", "D"))


def _executes(frames: Sequence[Frame], place: PlaceFaults) -> bool:
    """Whether a stack is within the function of the instruction that faulted."""
    leaf = next((frame for frame in frames if frame.kind is not FrameKind.KERNEL), None)
    if leaf is None or leaf.kind is not FrameKind.NATIVE:
        return False
    if leaf.address == place.code:
        return True
    return place.function is not None and (leaf.function, leaf.module) == (place.function, place.module)


def _code(place: PlaceFaults) -> Frame:
    return Frame(
        kind=FrameKind.NATIVE,
        function=place.function or f"{place.code:#x}",
        module=place.module,
        address=place.code,
        found_by=FoundBy.LEAF,
    )


def _mapped(place: PlaceFaults) -> str:
    if place.gone:
        return "[page faults in memory that is gone]"
    if place.mapping is None:
        return "[page faults, mapping not known]"
    if place.mapping.startswith("/dev/zero"):  # the kernel's name for what is shared and of no file
        return "[page faults in /dev/zero: shared, anonymous]"
    return f"[page faults in {place.mapping.rpartition('/')[2] or 'anonymous memory'}]"


def _note(text: str) -> Frame:
    return Frame(kind=FrameKind.NATIVE, function=text, found_by=FoundBy.LEAF)


def _spread(
    key: Key,
    weight: float,
    samples: Sequence[StackSample],
    stacks: Sequence[tuple[Frame, ...]],
    *,
    otherwise: tuple[Frame, ...] = (_note(_NOT_SEEN),),
) -> Weighed:
    """The weight over the stacks of these samples, in proportion; without any of them all of it on `otherwise`."""
    if not samples:
        yield key, otherwise, weight
        return
    # A stack that mixes two moments is better than none, and worse than any other.
    samples = [sample for sample in samples if sample.whole] or samples
    for stack, count in Counter(sample.stack for sample in samples).items():
        yield key, stacks[stack], weight * count / len(samples)


def _by_thread(samples: Iterable[StackSample]) -> dict[Key, list[StackSample]]:
    found: dict[Key, list[StackSample]] = defaultdict(list)
    for sample in samples:
        found[sample.pid, sample.tid].append(sample)
    return found


def _kernel(function: str) -> Frame:
    return Frame(kind=FrameKind.KERNEL, function=function)


# -- the table -----------------------------------------------------------------------------------------------


def summarise(recording: Recording) -> RecordingSummary:
    """A row for each process that did anything, ranks first."""
    threads: dict[int, list[RecordedThread]] = defaultdict(list)
    for thread in recording.threads:
        threads[thread.pid].append(thread)
    ordered = sorted(
        recording.processes,
        key=lambda process: (process.rank is None, process.rank or 0, process.pid),
    )
    rows = tuple(_row(recording, process, threads[process.pid]) for process in ordered)
    return RecordingSummary(rows=rows, notes=tuple(_notes(recording)))


def _row(recording: Recording, process: RecordedProcess, threads: Sequence[RecordedThread]) -> SummaryRow:
    names = {thread.tid: thread.name for thread in threads}
    longest, who = max(
        ((_longest(thread), thread) for thread in threads),
        # A service thread that waits for work says less than any other that waits.
        key=lambda found: (found[1].service is None and found[0][0] > 0, found[0][0]),
        default=((0.0, False), None),
    )
    known = [thread.cpu_s for thread in threads if thread.cpu_s is not None]
    off = [thread.seen_s - thread.cpu_s for thread in threads if thread.cpu_s is not None]
    blocked = [
        each.off_s
        for each in recording.off_cpu
        if each.pid == process.pid and each.state is OffState.UNINTERRUPTIBLE
    ]
    rate, last = _collectives(recording, process.pid)
    return SummaryRow(
        pid=process.pid,
        rank=process.rank,
        label=f"rank {process.rank}" if process.rank is not None else _role(process),
        futex_waits=sum(thread.waits for thread in threads),
        futex_wait_s=sum(
            thread.wait_s
            + (thread.open_wait_s or 0.0)
            + (thread.stood_s if thread.stood_address is not None else 0.0)
            for thread in threads
        ),
        longest_wait_s=longest[0],
        longest_thread=who.name if who is not None and longest[0] > 0 else "",
        longest_open=longest[1],
        waker=_waker(process, names),
        minor_faults=sum(thread.minor_faults for thread in threads),
        major_faults=sum(thread.major_faults for thread in threads),
        cpu_s=sum(known) if known else None,
        off_cpu_s=sum(off) if off else None,
        io_wait_s=sum(blocked) if recording.off_cpu else _sampled_io_wait(recording, process.pid),
        block_bytes=process.block_bytes,
        collectives_per_s=rate,
        last_collective=last,
        calls=_calls(recording, process.pid),
    )


def _longest(thread: RecordedThread) -> tuple[float, bool]:
    """The longest futex wait of a thread, and whether it still goes on."""
    stood = thread.stood_s if thread.stood_address is not None else 0.0
    still = max(thread.open_wait_s or 0.0, stood if stood >= thread.seen_s > 0 else 0.0)
    finished = max(thread.longest_wait_s, stood)
    return (still, True) if still >= finished and still > 0 else (finished, False)


def _role(process: RecordedProcess) -> str:
    return process.role.value if process.role is not Role.OTHER else f"pid {process.pid}"


def _waker(process: RecordedProcess, names: Mapping[int, str]) -> str:
    """Who wakes most, and whom if that is known."""
    named = [waker for waker in process.wakers if waker.woke is not None]
    if not process.wakers:
        return ""
    top = max(named or process.wakers, key=lambda waker: waker.count)
    by = names.get(top.tid, str(top.tid))
    if top.woke is None:
        return f"{by}, {times(top.count)}"
    return f"{by} woke {names.get(top.woke, str(top.woke))} {times(top.count)}"


def _sampled_io_wait(recording: Recording, pid: int) -> float | None:
    """Without switches of threads, the share of snapshots in which a thread could not be interrupted."""
    mine = [sample for sample in recording.samples if sample.pid == pid]
    moments = len({sample.at_s for sample in mine})
    if not moments:
        return None
    return sum(sample.state == "D" for sample in mine) / moments * recording.window_s


def _collectives(recording: Recording, pid: int) -> tuple[float | None, str]:
    counts = [count for count in recording.collectives if count.pid == pid]
    calls = [each.calls for each in recording.calls if each.pid == pid and each.family == _COLLECTIVES]
    if calls:
        told = [event for event in recording.events if event.kind is EventKind.CALL and event.pid == pid]
        last = max(told, key=lambda event: event.at_s).text if told else ""
        return sum(calls) / recording.window_s, last
    if not counts:
        return None, _last_seen(recording, pid)
    rate = sum(max(count.after - count.before, 0) / count.passed_s for count in counts if count.passed_s > 0)
    newest = max(counts, key=lambda count: (count.after - count.before, count.after))
    what = newest.last or _last_seen(recording, pid)
    number = f"{what} #{newest.after}" if what else f"#{newest.after}"
    return rate, f"{number} of {newest.group}"


def _calls(recording: Recording, pid: int) -> str:
    """The functions in which most time was spent: `MPI_Allreduce 120 times, 1.50 s`."""
    calls: Counter[str] = Counter()
    spent: dict[str, float] = defaultdict(float)
    for each in recording.calls:
        if each.pid == pid:
            calls[each.function] += each.calls
            spent[each.function] += each.call_s
    most = sorted(spent, key=lambda name: (-spent[name], name))[:_MOST_CALLS]
    return "; ".join(f"{name} {times(calls[name])}, {spent[name]:.3f} s" for name in most)


def _last_seen(recording: Recording, pid: int) -> str:
    """The collective in which the last snapshots show it, "" if they show none."""
    spans = [span for span in collective_spans(recording) if span.pid == pid]
    return max(spans, key=lambda span: span.at_s + span.took_s).text if spans else ""


def collective_spans(recording: Recording) -> tuple[TimedEvent, ...]:
    """Collectives in which threads stood in consecutive snapshots, from the first to the last of them: as exact as the
    snapshots are close.
    """
    names = [_collective(stack) for stack in recording.stacks]
    spans: list[TimedEvent] = []
    for (pid, tid), samples in sorted(_by_thread(recording.samples).items()):
        begun: StackSample | None = None
        last = 0.0
        for sample in (*samples, None):
            name = names[sample.stack] if sample is not None else None
            if begun is not None and name != names[begun.stack]:
                spans.append(
                    TimedEvent(
                        kind=EventKind.CALL,
                        pid=pid,
                        tid=tid,
                        at_s=begun.at_s,
                        took_s=last - begun.at_s,
                        text=names[begun.stack] or "",
                    )
                )
                begun = None
            if sample is not None and name is not None:
                begun = begun or sample
                last = sample.at_s
    return tuple(spans)


def _collective(frames: tuple[Frame, ...]) -> str | None:
    call = recognise(frames)
    return call.op if call is not None and call.meaning is Meaning.COLLECTIVE else None


def _notes(recording: Recording) -> Iterable[str]:
    for name, count in recording.lost:
        if count:
            yield f"{count} {name}"
    ended = [event for event in recording.events if event.kind is EventKind.EXIT and event.tid == event.pid]
    for event in ended:
        yield f"pid {event.pid} ended after {event.at_s:.2f} s"
    for event in recording.events:
        if event.kind is EventKind.OOM:
            yield f"the OOM killer chose pid {event.pid} after {event.at_s:.2f} s"
    signals = Counter((event.pid, event.text) for event in recording.events if event.kind is EventKind.SIGNAL)
    for (pid, name), count in sorted(signals.items()):
        yield f"pid {pid} was sent {name}" + (f" {count} times" if count > 1 else "")
