"""Threads of a recording: what the probes counted of each, and what snapshots show of it."""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.collect.record_tables import Counted
from pyhangtrace.collect.snapshots import Snapshots
from pyhangtrace.model.recording import RecordedThread


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
