"""Serving engines: what their parts do when nobody asks, and what it means that a part is stopped or has ended.

The parts of a server hand each request on to the next one and wait for none of them in particular: a part that stands
still keeps nobody in a wait, and the server silent all the same.
"""

from __future__ import annotations

from pyhangtrace.analyze.blocked import Standing
from pyhangtrace.analyze.calls import path_has, python_frames, short
from pyhangtrace.analyze.causes import exit_cause
from pyhangtrace.analyze.finding import Case, Finding, name_of
from pyhangtrace.analyze.progress import GOES_ON
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Kind, Part, Role, State
from pyhangtrace.model.logs import SHUTDOWN
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.threads import ThreadSample

_PARTS = frozenset({Role.ENGINE, Role.SCHEDULER, Role.DETOKENIZER})
_TITLE = "title"

# SGLang 0.4 to 0.5 (srt/managers/scheduler.py and its mixins): the loops that look for requests again and again, and
# what they call when there is work.
_PLACE = "sglang/srt/"
_LOOP = "event_loop_"
_AT_A_BATCH = frozenset(
    {"run_batch", "process_batch_result", "forward_batch_generation", "process_input_requests"}
)


def broken_part(case: Case) -> Finding | None:
    """A part of a server that is stopped, or has ended, while nobody waits for it in particular; or that has ended by
    what the server's own log says.
    """
    scene = case.scene
    parts = [process for _, process in sorted(scene.processes.items()) if _is_part(process)]
    for process in parts:
        key = (process.pid, process.pid)
        wait = case.waits.get(key)
        if wait is not None and wait.standing is Standing.STOPPED:
            unread = unread_by(scene, process.pid)
            return Finding(
                state=State.HUNG,
                symptom=None,
                cause=wait.cause,
                confidence=Confidence.PROVEN if unread else Confidence.LIKELY,
                named=(name_of(case, key, Part.CULPRIT),),
                chain=(key,),
                settled=True,
            )
    for process in parts:
        if scene.exited(process.pid):
            return Finding(
                state=State.ENDED,
                cause=exit_cause(scene, process.pid),
                confidence=Confidence.PROVEN,
                named=(name_of(case, (process.pid, 0), Part.CULPRIT),),
                settled=True,
            )
    if any(mark.phase == SHUTDOWN for mark in scene.evidence.log_marks):
        # Whoever has waited for a process leaves nothing of it to be seen.
        return Finding(state=State.ENDED, cause=Kind.PEER_EXITED, confidence=Confidence.LIKELY, settled=True)
    return None


def _is_part(process: ProcessFacts) -> bool:
    """By its title; of a rank that has ended nothing is left of that, and a failure is one whatever it served."""
    worker = process.role is Role.RANK and any(claim.source == _TITLE for claim in process.claims)
    return process.role in _PARTS or worker or (process.role is Role.RANK and bool(process.exit_code))


def unread_by(scene: Scene, pid: int) -> tuple[int, ...]:
    """Who has sent what lies unread in the sockets of a process."""
    found = {
        facts.pid
        for facts in scene.fds.values()
        if facts.socket is not None
        and (facts.socket.peer_rx_queue or 0) > 0
        and any(holder.pid == pid for holder in facts.peers)
        and facts.pid != pid
    }
    return tuple(sorted(found))


def looks_for_requests(case: Case) -> bool:
    """Whether all that moves are schedulers that look for requests, find none, and look again."""
    scene = case.scene
    moving = [key for key, wait in case.waits.items() if wait.service is None and wait.progress in GOES_ON]
    return bool(moving) and len(scene.evidence.looks) > 1 and all(_finds_none(scene, key) for key in moving)


def _finds_none(scene: Scene, key: Key) -> bool:
    seen = [found for sample in scene.samples[key] if (found := _loop(sample)) is not None]
    return bool(seen) and all(seen)


def _loop(sample: ThreadSample) -> bool | None:
    """True in the loop without a batch, False anywhere else; None where what was seen of the stack does not tell."""
    names = [(short(frame.function), frame.file) for frame in python_frames(sample.frames)]
    apart = [(short(frame.function), frame.file) for frame in sample.unmerged_python]
    stack = [*names, *apart]
    loops = (at for at, (name, file) in enumerate(stack) if name.startswith(_LOOP) and path_has(file, _PLACE))
    at = next(loops, None)
    if at is not None or not _AT_A_BATCH.isdisjoint(name for name, _ in stack):
        return at is not None and _AT_A_BATCH.isdisjoint(name for name, _ in stack[:at])
    # Of one that was on its way the outer end may be missing.
    whole = sample.stack_complete and sample.python_problem is None and not apart
    return False if names and whole else None
