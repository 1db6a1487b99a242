"""Queues in shared memory: who has the segment open besides the one that waits, and is on the other side of the queue.

The memory does not record who writes and who reads. But who waits for something to be written is a reader, and who
waits for room a writer: those of the same kind do not end each other's wait.
"""

from __future__ import annotations

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import RINGS, Meaning
from pyhangtrace.analyze.progress import Progress, in_place
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import ThreadSample

_SEGMENT = "buffer.shared_memory._name"
NAME = "queue in shared memory"
# The place in the queue, and when something was last read.
_PLACES = ("current_idx", "_spin_condition.last_read", "_read_spin_timer.last_activity")
_SURE_LOOKS = 4


def ring(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A thread that waits for a queue in shared memory to be written to, or to have room."""
    if draft.call is None or draft.call.meaning not in RINGS:
        return None
    reading = draft.call.meaning is not Meaning.RING_WRITE
    segment = _segment_of(sample)
    users = _users(scene, segment)
    alike = {
        pid for pid in users if pid != sample.pid and _does_the_same(scene, pid, segment, draft.call.meaning)
    }
    others = tuple(pid for pid in users if pid != sample.pid and pid not in alike and not scene.exited(pid))
    wait = changed(
        draft,
        kind=WaitKind.QUEUE,
        # Where nobody is known to be at the other side, who reads waits for work as far as one can see.
        standing=Standing.FIRM if others else Standing.IDLE if reading else Standing.OPAQUE,
        cause=Kind.IPC_PEER_SILENT if others else Kind.IDLE if reading else Kind.UNKNOWN,
        basis=Confidence.LIKELY,
        object=WaitObject(name=NAME, path=segment),
        progress=_progress(scene, draft),
        # It asks again before its time is over, and only sometimes gives up then.
        ends_by_itself=False,
        lasts_s=None,
        does="write to the queue" if reading else "read what is in the queue",
    )
    if not others:
        return wait
    told = ", ".join(map(str, others))
    return changed(
        wait,
        targets=tuple((pid, 0) for pid in others),
        candidates=tuple((pid, 0) for pid in others) if len(others) > 1 else (),
        holder=holders.process_holder(scene, others[0]) if len(others) == 1 else None,
        # A reader waits for the one that writes; a writer for whoever has not read yet.
        edge=Edge.ANY if reading else Edge.ALL,
        evidence=(
            *wait.evidence,
            f"segment {segment} is open in pid {told} as well; {_alike(alike, reading=reading)}",
        ),
    )


def _alike(pids: set[int], *, reading: bool) -> str:
    if not pids:
        return "nobody else waits on this side of it"
    side = "for something to be written" if reading else "for room"
    return f"pid {', '.join(map(str, sorted(pids)))} waits {side} like this one"


def _progress(scene: Scene, draft: Blocked) -> Progress:
    """It looks again and again, and is no nearer to its end while it has come no further in the queue.

    The place is one of a few that are gone round: only with the time of the last message it is the same one for sure.
    """
    samples = scene.samples[draft.key]
    places = {tuple(_value(sample, name) for name in _PLACES) for sample in samples}
    if len(samples) < 2 or len(places) != 1:
        return draft.progress if len(places) == 1 else Progress.MOVING
    (place,) = places
    timed = any(value is not None for value in place[1:])
    sure = timed or (place[0] is not None and len(samples) >= _SURE_LOOKS)
    return in_place(draft.progress) if sure else draft.progress


def _segment_of(sample: ThreadSample) -> str | None:
    value = _value(sample, _SEGMENT)
    return value if isinstance(value, str) else None


def _value(sample: ThreadSample, name: str) -> str | int | None:
    return next((each.value for each in sample.named_values if each.name == name), None)


def _users(scene: Scene, segment: str | None) -> tuple[int, ...]:
    found = [one for look in scene.evidence.looks for one in look.segments if one.name == segment]
    return found[-1].users if found else ()


def _does_the_same(scene: Scene, pid: int, segment: str | None, meaning: Meaning) -> bool:
    if meaning is Meaning.RING_READY:
        return False  # both sides do, until they have met
    for key in scene.threads_of(pid):
        other = scene.thread(key)
        if other is not None and _segment_of(other) == segment:
            call = scene.reading(other).call(other.frames)
            if call is not None and call.meaning is meaning:
                return True
    return False
