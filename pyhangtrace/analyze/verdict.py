"""The answer: state, who is named, who waits, and the chain that proves it.

Seeds are waits of the group for its members first, then all other waits of threads with work of their own.
What is proven hung goes before what is busy, slow or idle; what the evidence does not decide stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyhangtrace.analyze import steps
from pyhangtrace.analyze.blocked import GROUP_KINDS, MAY_BE_UNOWNED, Blocked, Standing, asks_for_lock
from pyhangtrace.analyze.calls import Meaning
from pyhangtrace.analyze.collectives import Matched
from pyhangtrace.analyze.fates import Fate, Judged
from pyhangtrace.analyze.finding import Case, Finding
from pyhangtrace.analyze.hung import hung_verdict
from pyhangtrace.analyze.naps_apart import naps_apart
from pyhangtrace.analyze.orders import handed_on
from pyhangtrace.analyze.progress import GOES_ON, SETTLED_S, Progress
from pyhangtrace.analyze.requests import with_askers
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.servers import broken_part, looks_for_requests
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.slow_storage import reading, slow_reads
from pyhangtrace.analyze.working import (
    busy,
    is_idle,
    late,
    may_poll,
    movers,
    short,
    straggler,
    throttled,
    undecided,
)
from pyhangtrace.model.kinds import Confidence, FrameKind, Kind, Role, State, WaitKind
from pyhangtrace.model.threads import ThreadSample


def find(scene: Scene, matched: Matched, judged: Judged) -> Finding:
    """Makes the verdict."""
    case = Case(scene=scene, matched=matched, judged=judged)
    return _withheld(case, with_askers(case, _find(case, scene, matched, judged)))


def _withheld(case: Case, finding: Finding) -> Finding:
    """Takes back what rests on processes for which there was no time: their stacks may say something else."""
    lost = case.scene.not_in_time()
    if not lost or finding.settled or finding.confidence is Confidence.PROVEN:
        return finding
    unread = {
        key for pid in lost for key in case.scene.threads_of(pid) if not _has_stack(case.scene.thread(key))
    }
    accused = any(who.key in unread for who in finding.named)
    if finding.state is State.IDLE or accused:
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN)
    return finding


def _has_stack(sample: ThreadSample | None) -> bool:
    return sample is not None and any(frame.kind is not FrameKind.KERNEL for frame in sample.frames)


def _find(case: Case, scene: Scene, matched: Matched, judged: Judged) -> Finding:
    if all(scene.exited(pid) for pid in scene.evidence.job.members) and not matched.waits:
        return Finding(state=State.ENDED, cause=Kind.PEER_EXITED, confidence=Confidence.PROVEN, settled=True)
    waits = matched.waits
    ordered = sorted(waits, key=case.order)
    group = [key for key in ordered if waits[key].kind in GROUP_KINDS and waits[key].service is None]
    members = set(group)
    others = [key for key in ordered if key not in members and _has_a_say(case, key)]
    naps = [key for key in others if _is_loop_of_shell(case, key)]
    for seeds in (group, others):
        hung = [key for key in seeds if judged.fate(key).hung and key not in naps]
        if hung:
            return hung_verdict(case, hung)
    for seeds in (group, others):
        for fate, make in ((Fate.BUSY, busy), (Fate.MOVING, late), (Fate.SHORT, short)):
            found = [key for key in seeds if judged.fate(key) is fate and _stands(waits[key])]
            if found:
                finding = make(case, found)
                if finding is not None:
                    return finding
    broken = broken_part(case)
    if broken is not None:
        return broken
    stalled = slow_reads(case)
    if stalled is not None:
        return stalled
    late_each_time = straggler(case)
    if late_each_time is not None:
        return late_each_time
    open_ends = [key for key in group if judged.fate(key) is Fate.UNKNOWN]
    open_others = [key for key in others if judged.fate(key) is Fate.UNKNOWN]
    open_ends += [key for key in open_others if _holder_open(waits[key])]
    if open_ends:
        return undecided(case, open_ends)
    on_gpu = [key for key in others if waits[key].kind is WaitKind.GPU and _stands(waits[key])]
    if on_gpu:
        # At work or hung: the host's stacks do not tell.
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN, chain=(on_gpu[0],))
    if not any(sample.syscall is not None or sample.frames or sample.running for sample in _newest(scene)):
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN)
    held_back = throttled(case)
    if held_back is not None:
        return held_back
    standing = [key for key in open_others if _stands(waits[key])]
    circle = [key for key in standing if _in_doubted_circle(case, key)]
    if circle:
        # That others move says nothing of those that only somebody else can let go.
        return undecided(case, circle)
    moving = movers(case)
    taken = steps.taken(scene, waits)
    if moving and not taken and len(scene.who.pid_of_rank) > 1 and may_poll(case, moving):
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN, chain=tuple(moving[:1]))
    if moving or taken:
        # A lock between processes that is not given back soon is worth more time.
        kept = [key for key in standing if waits[key].kind is WaitKind.FILE_LOCK]
        if looks_for_requests(case):
            return Finding(state=State.IDLE, confidence=Confidence.LIKELY)
        return Finding(state=State.RUNNING, confidence=Confidence.LIKELY, chain=tuple(kept[:1]))
    # That somebody in the process still has time to pass does not make a wait for a lock a healthy one.
    kept = [key for key in standing if waits[key].kind in MAY_BE_UNOWNED or judged.outcomes[key].doubted]
    if naps or kept:
        return undecided(case, naps or kept)
    crossed = _may_be_crossed(case)
    if crossed:
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN, victims=crossed, chain=crossed[:1])
    futile = [key for key in others if key in judged.clocked and _waits_for_itself(matched.waits[key])]
    if futile:
        return undecided(case, futile)
    from_disk = reading(case)
    if from_disk is not None:
        return from_disk
    if not is_idle(case):
        # All wait for each other in ways that record nobody: neither a hang that is proven nor an idle program.
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN)
    apart = naps_apart(scene, waits)
    if apart:
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN, chain=apart[:1])
    if scene.who.ranks_unseen:
        # They may wait for one that is seen, and for which nobody seen waits.
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN)
    state = State.RUNNING if handed_on(case) else State.IDLE
    return Finding(state=state, confidence=Confidence.LIKELY)


def _in_doubted_circle(case: Case, key: Key) -> bool:
    """Whether by all that is recorded it waits for itself in the end, and another one may let it go all the same."""
    outcome = case.judged.outcomes[key]
    return outcome.doubted and outcome.via is None and bool(case.waits[key].targets)


def _may_be_crossed(case: Case) -> tuple[Key, ...]:
    """Threads of one process that want different plain Python locks, which each may have of the other one."""
    wanted: dict[int, dict[str | None, Key]] = {}
    for key in sorted(case.waits, key=case.order):
        wait = case.waits[key]
        alone = wait.kind is WaitKind.PYTHON_LOCK and wait.holder is None and not wait.targets
        if (
            not alone
            or wait.service is not None
            or wait.call is not None
            or wait.standing is not Standing.FIRM
        ):
            continue
        if (wait.since_s or 0.0) >= SETTLED_S and wait.progress is Progress.UNMOVED:
            wanted.setdefault(key[0], {}).setdefault(wait.object.address, key)
    return next((tuple(keys.values()) for keys in wanted.values() if len(keys) > 1), ())


def _waits_for_itself(wait: Blocked) -> bool:
    """Whether a thread waits for a task of its own event loop, so that nothing but the clock ends that."""
    call = wait.call.meaning if wait.call is not None else None
    return call is Meaning.FUTURE and wait.cause is Kind.LOCK_CYCLE and wait.targets == (wait.key,)


def _holder_open(wait: Blocked) -> bool:
    """A lock, or the end of a pipe, that somebody has kept for long; who that is, or what he does, does not show."""
    unseen = wait.kind in MAY_BE_UNOWNED and wait.holder is None
    kept = wait.kind is WaitKind.FILE_LOCK or unseen or wait.cause is Kind.IPC_NO_EOF
    settled = kept and (wait.since_s or 0.0) >= SETTLED_S and _stands(wait)
    # One that asks for a lock again and again has not slept for long, but has not got it either.
    asks = asks_for_lock(wait) and wait.holder is None and _stands(wait)
    return settled or asks or wait.kind is WaitKind.LOCK_FILE


def _is_loop_of_shell(case: Case, key: Key) -> bool:
    """Waits for a child that does nothing but sleep for long: a step that takes its time, or a round of a loop."""
    if case.scene.who.pid_of_rank or case.waits[key].kind is not WaitKind.CHILD:
        return False
    chain = case.judged.chain(key)
    return case.judged.fate(chain[-1]) is Fate.LONG_TIMER and {
        case.waits[each].kind for each in chain[:-1]
    } == {WaitKind.CHILD}


def _newest(scene: Scene) -> Iterable[ThreadSample]:
    return (samples[-1] for samples in scene.samples.values())


def _stands(wait: Blocked) -> bool:
    return wait.progress not in GOES_ON


def _has_a_say(case: Case, key: Key) -> bool:
    """A wait that, hung, makes a hang of its own: not a serving thread, not the launcher, not an outsider's."""
    wait = case.waits[key]
    if wait.service is not None or wait.standing in (Standing.TIMER, Standing.RUNNING, Standing.IDLE):
        return False
    process = case.scene.processes.get(key[0])
    if process is None or process.role in (Role.OUTSIDER, Role.COMPILER):
        return False
    if wait.standing is Standing.STOPPED:
        # One that nobody waits for is somebody's business; a whole job that stands still is why it is silent.
        return key == case.scene.threads_of(key[0])[0] and _all_stopped(case)
    strangers = wait.targets and not any(case.scene.is_member(pid) for pid, _ in wait.targets)
    if wait.cause is Kind.IPC_NO_EOF:
        return True
    if wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL) and not wait.targets:
        return False
    if wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL) and strangers:
        return case.judged.fate(key) in (Fate.CYCLE,) or wait.cause is Kind.IPC_PIPE_FULL
    if wait.kind is WaitKind.PYTHON_LOCK and wait.holder is None and not wait.targets:
        # A plain lock may be somebody's signal: whoever listens to the world may yet release it.
        return not any(
            key in case.judged.listening or (key in case.waits and _may_be_woken(case.waits[key]))
            for key in wait.candidates
        )
    if wait.kind in (WaitKind.IO, WaitKind.PAGE_FAULT):
        return (wait.since_s or 0.0) >= SETTLED_S
    return True


def _may_be_woken(wait: Blocked) -> bool:
    """By the world outside. Who waits for a signal of its own process, as for a condition, is not."""
    outside = wait.standing is Standing.IDLE and wait.cause is Kind.IDLE
    return outside or wait.standing in (Standing.OPAQUE, Standing.RUNNING)


def _all_stopped(case: Case) -> bool:
    """But for those that keep the others stopped, as a debugger at its prompt does, and for launchers of them."""
    tracers = {
        wait.holder.pid
        for wait in case.waits.values()
        if wait.standing is Standing.STOPPED and wait.holder is not None
    }
    return all(
        wait.standing is Standing.STOPPED
        or (key[0] in tracers and wait.standing is Standing.IDLE)
        or (bool(tracers) and wait.service == LAUNCHER and case.judged.fate(key).hung)
        for key, wait in case.waits.items()
        if case.scene.is_member(key[0])
    )
