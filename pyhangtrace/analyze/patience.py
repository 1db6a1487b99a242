"""How much longer to look before a verdict may be given."""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.analyze.blocked import Blocked, Standing, asks_for_lock
from pyhangtrace.analyze.fates import Judged
from pyhangtrace.analyze.finding import Finding
from pyhangtrace.analyze.holders import STALE_AFTER_S
from pyhangtrace.analyze.progress import GOES_ON, SETTLED_S, Progress
from pyhangtrace.analyze.requests import may_be_answered
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.steps import between
from pyhangtrace.analyze.unseen import is_met_blind
from pyhangtrace.model.kinds import State, WaitKind

_LOCKS = frozenset({WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK})

# Between two looks at the least, so that a wait that is taken up again shows.
FIRST_WINDOW_S = 0.1
# So often in a row at the most one that is met on its way from nap to nap is looked at for nothing but that.
_LOOKS_IN_PASSING = 3
# What goes on in steps with naps of less than this between them shows so within that time.
_STEPS_S = 0.5
_HANDED_OVER = frozenset(
    {WaitKind.PIPE, WaitKind.SOCKET, WaitKind.SEMAPHORE, WaitKind.CONDITION, WaitKind.QUEUE}
)
_HELD_UP = frozenset({State.HUNG, State.BUSY, State.SLOW, State.UNKNOWN})


def patience(scene: Scene, waits: dict[Key, Blocked], judged: Judged, finding: Finding) -> float:
    """Seconds by which the window should grow. A cycle, a stopped or an exited member needs no more time; any
    other chain whose end fell asleep less than 3 s ago may yet move. Who was met on its way from nap to nap is looked
    at once more; where somebody is held up, also who runs and was on no CPU when samples were taken, and who was not
    seen to be in MPI before, of which nothing says yet whether its messages come.
    """
    wanted = _for_the_verdict(scene, waits, judged, finding)
    again = _any_in_passing(scene, waits)
    again = again or (
        finding.state in _HELD_UP and (_any_unsampled(scene, waits) or _any_counted_once(scene))
    )
    return wanted or (FIRST_WINDOW_S if again else 0.0)


def _any_unsampled(scene: Scene, waits: Mapping[Key, Blocked]) -> bool:
    native = bool(scene.evidence.looks[-1].mpi)
    return len(scene.evidence.looks) <= _LOOKS_IN_PASSING and any(
        is_met_blind(samples[-1], native=native) and key in waits and waits[key].service is None
        for key, samples in scene.samples.items()
    )


def _any_counted_once(scene: Scene) -> bool:
    *before, last = scene.evidence.looks
    known = {facts.pid for look in before for facts in look.mpi}
    return any(facts.messages is not None and facts.pid not in known for facts in last.mpi)


def _any_in_passing(scene: Scene, waits: Mapping[Key, Blocked]) -> bool:
    return any(
        count <= _LOOKS_IN_PASSING and key in waits and waits[key].service is None
        for key, count in scene.passing.items()
    )


def _for_the_verdict(scene: Scene, waits: dict[Key, Blocked], judged: Judged, finding: Finding) -> float:
    window = scene.evidence.window_s
    if _ends_a_nap(waits, finding, SETTLED_S - window):
        # Whether somebody who naps beside a hang lets it be when its time is over.
        return _until(SETTLED_S, window)
    if finding.settled:
        return 0.0
    if len(scene.evidence.looks) < 2:
        return FIRST_WINDOW_S
    if window >= SETTLED_S or finding.state is State.ENDED:
        return 0.0
    if any(_tells_soon(waits[key], SETTLED_S - window) for key in judged.clocked):
        # Whether it lets go or tries again when its time is over.
        return _until(SETTLED_S, window)
    if finding.state not in (State.HUNG, State.BUSY) and _some_try_again(scene, waits):
        return _until(SETTLED_S, window)
    if finding.state is State.IDLE:
        # Between two steps a job looks idle.
        if between(scene, waits):
            return _until(SETTLED_S, window)
        return _until(_STEPS_S, window) if window < _STEPS_S and _may_work_in_steps(waits) else 0.0
    if finding.state is State.RUNNING and not finding.chain:
        return 0.0
    if may_be_answered(scene, finding):
        return _until(SETTLED_S, window)
    if finding.state is State.UNKNOWN and window < STALE_AFTER_S and _polls_for_a_file(waits):
        return _until(STALE_AFTER_S, window)
    asleep = _asleep(waits, finding)
    if asleep is not None and asleep >= SETTLED_S:
        return 0.0
    # Who was asleep before the first look need not be looked at for as long again.
    slept = asleep if asleep is not None and finding.state is State.HUNG else 0.0
    return _until(SETTLED_S, max(window, slept))


def _until(wanted_s: float, window_s: float) -> float:
    # A fraction of a millisecond short is still short: rounded to nothing, it would end the looking too early.
    return max(round(wanted_s - window_s, 3), 0.001)


def _may_work_in_steps(waits: Mapping[Key, Blocked]) -> bool:
    """Whether somebody naps for a moment, and another one waits for what may be handed over to it in between."""
    naps = any(
        wait.standing is Standing.TIMER and wait.service is None and (wait.lasts_s or _STEPS_S) < _STEPS_S
        for wait in waits.values()
    )
    return naps and any(
        wait.kind in _HANDED_OVER and wait.service is None and not wait.ends_by_itself
        for wait in waits.values()
    )


def _ends_a_nap(waits: Mapping[Key, Blocked], finding: Finding, left_s: float) -> bool:
    if finding.state in (State.HUNG, State.UNKNOWN):
        told = [key for key in (*finding.chain, *finding.cycle, *finding.victims) if key in waits]
    else:
        # But for that one these would be a hang.
        told = [key for key, wait in waits.items() if wait.helped]
    naps = {nap for key in told for nap in waits[key].bystanders}
    return any((waits[nap].lasts_s or 0.0) <= left_s for nap in naps if nap in waits) and left_s > 0


def _tells_soon(wait: Blocked, left_s: float) -> bool:
    return wait.progress is Progress.REARMED or (wait.lasts_s is not None and wait.lasts_s <= left_s)


def _some_try_again(scene: Scene, waits: Mapping[Key, Blocked]) -> bool:
    """Whether a thread that was seen to want for a while what another one has moved since, as far as one has seen.

    Or what nobody is recorded to have, while somebody waits for a lock of its own; or that naps and asks for a lock.
    """
    if any(asks_for_lock(wait) and wait.service is None for wait in waits.values()):
        return True
    held_up = {key for wait in waits.values() if wait.kind in _LOCKS for key in wait.targets}
    return any(
        sample.lock is not None
        and sample.lock.timeout
        and (sample.lock.owner_tid is not None or key in held_up)
        and sample.lock.kind != "gil"
        for key, wait in waits.items()
        if wait.progress in GOES_ON and wait.service is None and not scene.works(key)
        for sample in scene.samples[key]
    )


def _polls_for_a_file(waits: dict[Key, Blocked]) -> bool:
    return any(wait.kind is WaitKind.LOCK_FILE and not wait.targets for wait in waits.values())


def _asleep(waits: dict[Key, Blocked], finding: Finding) -> float | None:
    if finding.chain:
        # Of somebody who works only those who wait for it can say how long.
        ends = finding.chain[-1:] if finding.state is State.HUNG else finding.chain[:1]
    else:
        ends = tuple(key for key, wait in waits.items() if wait.service is None)
    ages = [waits[key].since_s for key in ends if key in waits]
    known = [age for age in ages if age is not None]
    return min(known) if known and len(known) == len(ages) else None
