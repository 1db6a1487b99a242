"""Ranks of which no look tells whether they have come to where the others are.

Who wakes up, or waits for a processor, is met without its stack, or with one whose end is missing. It may be in the
call of the others as well as anywhere else: there it is not missing, and it is not what they wait for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing, changed
from pyhangtrace.analyze.call_waits import OF_THE_GROUP
from pyhangtrace.analyze.calls import has_stack, python_frames
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.progress import Progress, is_ready
from pyhangtrace.analyze.readings import read
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge
from pyhangtrace.model.ranks import fold
from pyhangtrace.model.report import Collective
from pyhangtrace.model.threads import ThreadSample

# Also mpi4py, which has calls of its own around it.
_IN_MPI = re.compile(r"P?MPI_[A-Z]|__pyx_\w*6mpi4py_3MPI_")
# What it sleeps in is told by the kernel, whatever its stack lacks.
_KNOWN_ASLEEP = frozenset({Standing.FIRM, Standing.TIMER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Processes of which it is not known where they are: `in_native` also for Python's frames, which name no call of
    MPI.
    """

    in_python: frozenset[int]
    in_native: frozenset[int]

    def for_(self, backend: str | None) -> frozenset[int]:
        """Those that may be in an operation of this backend."""
        return self.in_native if backend == "mpi" else self.in_python

    def with_native(self, pids: Collection[int]) -> Unseen:
        """The same, with more of which it is not known in which call of MPI they are."""
        return replace(self, in_native=self.in_native | frozenset(pids))


def unseen(scene: Scene, waits: Mapping[Key, Blocked], pids: Collection[int]) -> Unseen:
    """Of these processes."""
    speakers = {pid: _speakers(scene, waits, pid) for pid in pids if not scene.exited(pid)}

    def hidden(*, native: bool) -> frozenset[int]:
        return frozenset(
            pid
            for pid, own in speakers.items()
            if any(_is_hidden(scene, each, native=native) for each in own)
        )

    return Unseen(in_python=hidden(native=False), in_native=hidden(native=True))


def tells(sample: ThreadSample, *, native: bool) -> bool:
    """Whether a stack says in which call a thread is; with `native`, also one that Python's frames do not name."""
    if (sample.stack_complete and has_stack(sample)) or _is_in_call(sample):
        return True
    return not native and any(python_frames((*sample.frames, *sample.unmerged_python)))


def withhold(
    scene: Scene, waits: dict[Key, Blocked], of_group: Sequence[Key], found: Sequence[Collective], of: Unseen
) -> None:
    """Takes those who were not seen out of what others wait for, and says so."""
    expected = {each.id: set(each.expected) - set(each.entered) for each in found}
    for key in of_group:
        wait = waits[key]
        hidden = of.for_(wait.call.backend if wait.call is not None else None) - {key[0]}
        targets = tuple(target for target in wait.targets if target[0] not in hidden)
        lost = {target[0] for target in wait.targets} & hidden
        lost |= {
            pid for pid in hidden if scene.who.rank(pid) in expected.get(wait.object.collective or "", ())
        }
        if not lost:
            continue
        ranks = sorted(rank for pid in lost if (rank := scene.who.rank(pid)) is not None)
        who = f"rank{'s' if len(ranks) > 1 else ''} {fold(ranks)}" if ranks else f"pid {min(lost)}"
        waits[key] = changed(
            wait,
            targets=targets,
            candidates=tuple(target for target in wait.candidates if target[0] not in hidden),
            # Of several that may end it, one that was not seen may be the one.
            standing=wait.standing if targets and wait.edge is Edge.ALL else Standing.OPAQUE,
            basis=Confidence.POSSIBLE,
            evidence=(*wait.evidence, f"not seen: where {who} {'were' if len(ranks) > 1 else 'was'}"),
        )


def is_met_blind(sample: ThreadSample, *, native: bool) -> bool:
    """Whether a look met a thread awake and says nothing of where it was: another one may."""
    return (is_ready(sample) or sample.moved) and not tells(sample, native=native)


def _speakers(scene: Scene, waits: Mapping[Key, Blocked], pid: int) -> list[Blocked]:
    """The thread that speaks for a process, and whom it waits for there, who speak for it as well."""
    found: dict[Key, Blocked] = {}
    keys = [front(scene, waits, pid)]
    while keys:
        key = keys.pop()
        wait = waits.get(key)
        if key not in found and wait is not None:
            found[key] = wait
            keys += [target for target in wait.targets if target[0] == pid]
    return list(found.values())


def _is_hidden(scene: Scene, wait: Blocked, *, native: bool) -> bool:
    if wait.kind in GROUP_KINDS or wait.standing is Standing.STOPPED:
        return False
    if wait.progress is Progress.UNMOVED and wait.standing in _KNOWN_ASLEEP:
        return False
    samples = scene.samples[wait.key]
    if native and any(map(_is_in_mpi, samples)):
        return True
    told = next((sample for sample in reversed(samples) if tells(sample, native=native)), None)
    if told is None:
        return True
    # What an earlier look showed may be over by now, but that it was in such a call does not make it missing there.
    return (told is not samples[-1] or read(told.frames).rule is None) and _is_in_call(told)


def _is_in_call(sample: ThreadSample) -> bool:
    return any(
        (call := read(frames).rule) is not None and call.meaning in OF_THE_GROUP
        for frames in (sample.frames, sample.unmerged_python, sample.unmerged_native)
        if frames
    )


def _is_in_mpi(sample: ThreadSample) -> bool:
    """Whether it is in a call that no rule knows, or asks for the end of what it began, in which the others may be."""
    return any(_IN_MPI.match(frame.function) for frame in (*sample.frames, *sample.unmerged_native))
