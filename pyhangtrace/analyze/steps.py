"""Work that goes in steps, of which most looks show only the pause between two: no hang, and not idle either."""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing
from pyhangtrace.analyze.calls import FROM_ONE_ROOT, Meaning, recognise
from pyhangtrace.analyze.collectives import groups_of, is_run_loop
from pyhangtrace.analyze.fates import LONG_TIMER_S
from pyhangtrace.analyze.progress import GOES_ON
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Kind
from pyhangtrace.model.threads import ThreadSample


def taken(scene: Scene, waits: Mapping[Key, Blocked]) -> bool:
    """Whether the members of a process group did something together between the looks, and pause now."""
    return between(scene, waits) and any(_worked(scene, pid) for pid in _members(scene))


def between(scene: Scene, waits: Mapping[Key, Blocked]) -> bool:
    """Whether all members of process groups are where a program is between two steps: a short nap, a data loader."""
    members = _members(scene)
    return bool(members) and all(_pauses(scene, waits, pid) for pid in members)


def _members(scene: Scene) -> list[int]:
    return [pid for pid in scene.threads if groups_of(scene, pid) and not scene.exited(pid)]


def _pauses(scene: Scene, waits: Mapping[Key, Blocked], pid: int) -> bool:
    wait = waits.get(scene.threads_of(pid)[0])
    if wait is None or wait.progress in GOES_ON:
        return True
    if wait.standing is Standing.TIMER:
        return wait.lasts_s is not None and wait.lasts_s <= LONG_TIMER_S
    return wait.cause is Kind.WORKER_STUCK or wait.kind in GROUP_KINDS


def _worked(scene: Scene, pid: int) -> bool:
    """The loop that does the group's work ran, or a look met the process in an operation that all take part in."""
    main = scene.samples[scene.threads_of(pid)[0]]
    if not _ran(main):
        return False
    loops = (scene.samples[key] for key in scene.threads_of(pid))
    return any(is_run_loop(samples[-1]) and _ran(samples) for samples in loops) or any(
        (call := recognise(sample.frames)) is not None
        and call.meaning in (Meaning.COLLECTIVE, Meaning.SEND, Meaning.RECV)
        and call.op not in FROM_ONE_ROOT
        for sample in main
    )


def _ran(samples: tuple[ThreadSample, ...]) -> bool:
    first, last = samples[0].run_ns, samples[-1].run_ns
    return first is not None and last is not None and last > first
