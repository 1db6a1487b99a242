"""What becomes of the probes' tables, against children that answer what they are told to."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import pytest

from pyhangtrace.collect import recorded_threads
from pyhangtrace.collect.record_probes import RecordProbes
from pyhangtrace.collect.record_tables import ACTIVITY_SOURCE, Counted
from pyhangtrace.collect.snapshots import Snapshots
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.recording import EventKind, Metric, OffState, StackSample
from pyhangtrace.model.threads import LockFacts, ThreadSample
from pyhangtrace.probes import activity_events, events, launch
from pyhangtrace.probes import result as results

PATIENT_S = 30.0
PID, TID, WORD = 100, 101, 0x7F00
START_NS = 1_000_000_000


def table(*records: bytes) -> str:
    return base64.b64encode(b"".join(records)).decode()


def answer(tables: dict[str, str], lost: int) -> dict[str, Any]:
    return {
        "window_s": 2.0,
        "attached_s": 2.1,
        "cpu_s": 0.3,
        "opened_ns": START_NS,
        "closed_ns": START_NS + 2_000_000_000,
        "tables": tables,
        "texts": {},
        "untold": 0,
        "told": True,
        "lost": [0] * lost,
    }


def window() -> dict[str, Any]:
    sums = events.ThreadSums(*[0] * 16)._replace(
        waits=3, wait_ns=900_000_000, longest_ns=500_000_000, tgid=PID
    )
    word = (WORD, TID, 0x80, 3, 900_000_000, 500_000_000, 1, *range(events.WAIT_SLOTS), PID, 0)
    tables = {
        "threads": table(events.TID.pack(TID) + events.THREAD_SUMS.pack(*sums)),
        "pairs": "",
        "word_waits": table(events.WORD_WAITS_KEY.pack(*word[:3]) + events.WORD_WAITS.pack(*word[3:])),
        "timeline": table(
            events.TIMED_EVENT.pack(
                START_NS + 250_000_000, 500_000_000, WORD, TID, PID, 7, events.EVENT_FUTEX_WAIT
            )
        ),
    }
    return answer(tables, len(events.Lost._fields))


def activity() -> dict[str, Any]:
    def off(stack: int, state: int, times: int, ns: int) -> bytes:
        return activity_events.OFF_KEY.pack(stack, state, TID, PID) + activity_events.OFF_SUMS.pack(
            times, ns, ns // times
        )

    def now(global_tid: int, since_ns: int) -> bytes:
        return events.TID.pack(global_tid) + activity_events.OFF_NOW.pack(since_ns, 5, 0, TID, PID)

    def event(kind: int, tid: int, tgid: int, detail: int = 0) -> bytes:
        return activity_events.ACTIVITY.pack(START_NS + 1_000_000_000, 0, tid, tgid, kind, detail)

    tables = {
        # Two stacks of the same functions at other addresses.
        "off_sums": table(off(5, 0, 4, 400_000_000), off(6, 0, 1, 100_000_000), off(-1, 1, 2, 20_000_000)),
        "off_now": table(now(9000, START_NS + 1_500_000_000), now(9001, 0)),
        "io": table(activity_events.IO_KEY.pack(TID, PID) + activity_events.IO_SUMS.pack(2, 16)),
        "timeline": table(
            event(activity_events.ACTIVITY_EXIT, TID, PID),
            event(activity_events.ACTIVITY_SIGNAL, TID, PID, 10),
            event(activity_events.ACTIVITY_OOM, PID, 0),
            event(activity_events.ACTIVITY_OOM, 4711, 0),  # somebody else's process
        ),
    }
    texts = {"5": ["__schedule", "do_nap"], "6": ["__schedule", "do_nap"], "absent": []}
    return {**answer(tables, len(activity_events.LostActivity._fields)), "texts": texts}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the probe processes: each program by what it answers when it is told to stop."""

    def replace(**answers: dict[str, Any]) -> None:
        def command(request: launch.Request) -> list[str]:
            said = answers[request.program]
            lines = ["import sys"]
            if "unavailable" in said:
                lines.append(f"print({json.dumps(json.dumps(said))}, flush=True)")
            else:
                ready = {"ready": True, "at_s": 5.0}
                for message, until in (({"attached": True}, "g"), (ready, "s"), ({"result": said}, "")):
                    lines.append(f"print({json.dumps(json.dumps(message))}, flush=True)")
                    lines.append(
                        f"sys.stdin.read(1) == {until!r} or sys.exit('told something else')" if until else ""
                    )
                lines.append(f"print({json.dumps(json.dumps({'detached_s': 2.2}))}, flush=True)")
            return [sys.executable, "-I", "-S", "-c", "\n".join(lines)]

        monkeypatch.setattr(launch.Request, "command", command)

    return replace


def counted(metric: Metric = Metric.OFFCPU) -> Counted:
    with RecordProbes([PID], window_s=2, metric=metric) as probes:
        assert probes.open(deadline_s=PATIENT_S) == 5.0
        assert probes.missing(metric) is None
        found = probes.finish(deadline_s=PATIENT_S, communicators={})
    assert isinstance(found, Counted), found
    return found


def test_tables_become_sums_and_a_time_line(children: Any) -> None:
    children(window=window(), activity=activity())
    found = counted()
    assert found.threads[PID, TID].waits == 3
    (word,) = found.words
    assert (word.operation, word.waits, word.wait_s, word.longest_s, word.timed_out) == (
        "wait",
        3,
        0.9,
        0.5,
        1,
    )
    assert word.slots == tuple(range(events.WAIT_SLOTS))
    asleep, blocked = found.off_cpu
    # Equal functions are one place, and what goes on counts until the end.
    assert (asleep.state, asleep.kernel, asleep.times) == (OffState.SLEEPING, ("__schedule", "do_nap"), 5)
    assert asleep.off_s == pytest.approx(0.4 + 0.1 + 0.5)
    assert asleep.longest_s == pytest.approx(0.5)
    assert (blocked.state, blocked.kernel, blocked.off_s) == (OffState.UNINTERRUPTIBLE, (), 0.02)
    assert found.io == {PID: (2, 8192)}
    told = [(event.kind, event.pid, event.at_s, event.text) for event in found.events]
    assert told == [
        (EventKind.FUTEX_WAIT, PID, 0.25, ""),
        (EventKind.OOM, PID, 1.0, ""),
        (EventKind.EXIT, PID, 1.0, ""),
        (EventKind.SIGNAL, PID, 1.0, "SIGUSR1"),
    ]
    assert found.events[0].waker == 7
    assert found.lost == ()
    assert {status.state for status in found.coverage} == {SourceState.USED}


def test_what_is_lost_is_told(children: Any) -> None:
    lost = [0] * len(events.Lost._fields)
    lost[events.Lost._fields.index("sum")] = 4
    untold = 3 * events.TIMED_EVENT.size
    children(
        window={**window(), "lost": lost, "untold": untold, "told": False},
        activity={**activity(), "texts": {"absent": ["a:b"]}},
    )
    found = counted()
    assert dict(found.lost) == {
        "waits that are in no sum by futex word": 4,
        "waits and faults that are not on the time line": 3,
    }
    reasons = {
        status.source: status.reason for status in found.coverage if status.state is not SourceState.USED
    }
    assert "ring buffers" in reasons["time line"]
    assert reasons[ACTIVITY_SOURCE] == "this kernel has no a:b"


NOT_HERE = {"unavailable": {"reason": "bcc is not installed", "fix": "install it", "permission": False}}


def test_without_the_activity_probes_only_their_metric_is_missing(children: Any) -> None:
    children(window=window(), activity=NOT_HERE)
    with RecordProbes([PID], window_s=2, metric=Metric.OFFCPU) as probes:
        assert probes.open(deadline_s=PATIENT_S) == 5.0
        assert probes.missing(Metric.FUTEX) is None
        why = probes.missing(Metric.OFFCPU)
        assert why is not None
        assert (why.state, why.reason, why.fix) == (SourceState.ABSENT, "bcc is not installed", "install it")
    found = counted(Metric.FUTEX)
    assert [status.source for status in found.coverage if status.state is SourceState.ABSENT] == [
        ACTIVITY_SOURCE
    ]


def test_without_the_futex_probes_there_is_nothing(children: Any) -> None:
    children(window=NOT_HERE, activity=activity())
    with RecordProbes([PID], window_s=2, metric=Metric.FUTEX) as probes:
        assert probes.open(deadline_s=PATIENT_S) is None
        assert isinstance(probes.missing(Metric.FUTEX), SourceStatus)


def test_damaged_tables_are_a_failure(children: Any) -> None:
    damaged = window()
    damaged["tables"]["word_waits"] = "AAAA"
    children(window=damaged, activity=activity())
    with RecordProbes([PID], window_s=2, metric=Metric.FUTEX) as probes:
        assert probes.open(deadline_s=PATIENT_S) is not None
        found = probes.finish(deadline_s=PATIENT_S, communicators={})
    assert isinstance(found, SourceStatus)
    assert "cannot be decoded" in found.reason


# -- threads in snapshots ------------------------------------------------------------------------------------


def seen(*samples: tuple[float, int, int, str]) -> Snapshots:
    """Snapshots of (time, thread, slices, state), all asleep on one word."""
    shots = Snapshots(reader=None, pids=[PID], opened_at=0.0)  # type: ignore[arg-type]
    lock = LockFacts(kind="futex", address=WORD, uaddr=WORD, op=0, value=0)
    for at_s, tid, slices, state in samples:
        thread = ThreadSample(
            pid=PID,
            tid=tid,
            comm="worker",
            state=state,
            slices=slices,
            run_ns=slices * 10**8,
            lock=lock if state == "S" else None,
        )
        shots.first.setdefault((PID, tid), (at_s, thread))
        shots.last[PID, tid] = (at_s, thread)
        shots.samples.append(
            StackSample(at_s=at_s, pid=PID, tid=tid, stack=0, state=state, slices=slices, address=WORD)
        )
    return shots


def nothing() -> Counted:
    return Counted(window_s=2.0, attached_s=2.0, cpu_s=0.0, threads={}, wakers={})


def test_a_wait_that_had_begun_before_lasts_until_the_thread_runs() -> None:
    shots = seen(
        *((at_s, 1, 5, "S") for at_s in (0.0, 0.5, 1.0, 2.0)),  # never ran
        *((at_s, 2, slices, "S") for at_s, slices in ((0.0, 5), (0.5, 5), (1.0, 6), (2.0, 6))),  # ran once
        *((at_s, 3, 5, "R") for at_s in (0.0, 2.0)),  # on the CPU all the time
    )
    standing, ran, running = recorded_threads.threads(nothing(), shots, {(PID, 1): "pool"})
    assert (standing.stood_s, standing.stood_address, standing.cpu_s, standing.service) == (
        2.0,
        WORD,
        0.0,
        "pool",
    )
    assert (ran.stood_s, ran.stood_address) == (0.5, WORD)
    assert ran.cpu_s == pytest.approx(0.1)
    assert (running.stood_s, running.stood_address) == (0.0, None)


def test_a_wait_that_the_probes_saw_begin_counts_once() -> None:
    shots = seen((0.01, TID, 5, "S"), (2.0, TID, 5, "S"))
    probe = results.decode(
        (PID,),
        threads=events.TID.pack(TID)
        + events.THREAD_SUMS.pack(
            *events.ThreadSums(*[0] * 16)._replace(waiting_since_ns=1, uaddr=WORD, operation=0x80, tgid=PID)
        ),
        pairs=b"",
        lost=events.Lost(),
        window_s=2.0,
        closed_ns=2_000_000_000,
    )[0].threads[0]
    found = nothing()
    found.threads[PID, TID] = probe
    (thread,) = recorded_threads.threads(found, shots, {})
    assert thread.open_wait_s == pytest.approx(2.0)
    assert (thread.stood_s, thread.stood_address) == (0.0, None)
