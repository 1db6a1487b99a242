"""The fate of a wait that is in no knot: all that it is for are judged before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import (
    BY_ITSELF,
    GROUP_KINDS,
    MAY_BE_UNOWNED,
    Blocked,
    Standing,
    any_thread,
)
from pyhangtrace.analyze.calls import FROM_ONE_ROOT
from pyhangtrace.analyze.ends import is_stranger
from pyhangtrace.analyze.fates import LONG_TIMER_S, Fate, Outcome, badness, fate_of_timer
from pyhangtrace.analyze.outside import keeps_time
from pyhangtrace.analyze.progress import GOES_ON, SETTLED_S, Progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.teardown import never_comes
from pyhangtrace.analyze.world import World
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind

_FATE = itemgetter(0)
GETS_ON = frozenset({Fate.MOVING, Fate.BUSY, Fate.SHORT})
READS = frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL})
# Waits that only a thread of the same process ends.
_INSIDE = frozenset({WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.BARRIER, WaitKind.QUEUE, WaitKind.JOIN})
_MAY_IDLE = frozenset(
    {WaitKind.QUEUE, WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.JOIN, WaitKind.P2P, WaitKind.BARRIER}
)


# Whoever holds one of these may rightly keep the others out while it waits for work (an accept mutex, a leader's lock).
_TURNS = frozenset(
    {WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK, WaitKind.FILE_LOCK, WaitKind.LOCK_FILE}
)


def judge_one(world: World, node: Key, outcomes: Mapping[Key, Outcome]) -> Outcome:
    scene, waits = world.scene, world.waits
    wait = waits.get(node)
    if wait is None:
        gone = node[0] < 0 or scene.exited(node[0])
        return Outcome(Fate.GONE if gone else Fate.UNKNOWN)
    if wait.standing in BY_ITSELF:
        return Outcome(_by_itself(scene, wait))
    if wait.progress in GOES_ON:
        return Outcome(Fate.MOVING)
    if wait.standing is Standing.IDLE:
        return _passive(scene, waits, wait, outcomes)
    if wait.own_end:
        return _own_end(world, wait)
    outcome = _by_targets(world, wait, outcomes) if wait.targets else _alone(world, wait)
    if wait.from_stdin and scene.who.rank(node[0]) is None:
        return Outcome(Fate.IDLE, outcome.via)
    if wait.progress is Progress.UNSEEN and outcome.fate.hung:
        at_once = outcome.via is not None and outcomes[outcome.via].fate in (
            Fate.CYCLE,
            Fate.STOPPED,
            Fate.GONE,
        )
        if not at_once:
            return Outcome(Fate.UNKNOWN, outcome.via)
    return outcome


def _by_itself(scene: Scene, wait: Blocked) -> Fate:
    if wait.standing is Standing.STOPPED:
        # Its tracer naps: it may let it go on then.
        return Fate.UNKNOWN if wait.helped else Fate.STOPPED
    if wait.standing is Standing.TIMER:
        return fate_of_timer(wait)
    return Fate.BUSY if scene.works(wait.key) else Fate.MOVING


def _half_seen(scene: Scene, key: Key) -> bool:
    """A stack without its end: what the thread is in may be something else than what it shows."""
    sample = scene.thread(key)
    return sample is not None and not sample.stack_complete


def _passive(
    scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, outcomes: Mapping[Key, Outcome]
) -> Outcome:
    """A wait for a signal that any of the targets may give, or none of them: they are guesses.

    Who works, or wakes up soon, may be about to give it. That nobody can is no proof, but one thread alone that is
    itself held up, by more than the clock, is where to look on.
    """
    short = Fate.SHORT
    for target in wait.targets:
        outcome = outcomes.get(target)
        if outcome is None or outcome.fate > short:
            continue
        if outcome.fate < short or _naps(waits, target, outcomes):
            return Outcome(outcome.fate, target)
    only = wait.targets[0] if len(wait.targets) == 1 else None
    if only is not None and only in waits and outcomes[only].fate.hung and not _half_seen(scene, wait.key):
        held_up = waits[only].standing is Standing.FIRM and wait.progress is not Progress.UNSEEN
        if held_up:
            return Outcome(Fate.BLOCKED, only)
    return Outcome(Fate.IDLE)


def _naps(waits: Mapping[Key, Blocked], node: Key, outcomes: Mapping[Key, Outcome]) -> bool:
    """Whether the clock ends what a thread waits for."""
    passed = {node}
    while (via := outcomes[node].via) is not None and via in outcomes and via not in passed:
        passed.add(via)
        node = via
    return node in waits and waits[node].standing is Standing.TIMER


def _alone(world: World, wait: Blocked) -> Outcome:
    scene, waits = world.scene, world.waits
    if wait.standing is not Standing.FIRM:
        return Outcome(Fate.UNKNOWN)
    if wait.kind is WaitKind.PYTHON_LOCK and wait.holder is None and _half_seen(scene, wait.key):
        # Conditions, queues and pools wait on such locks too: which of them this is, only the whole stack tells.
        return Outcome(Fate.UNKNOWN)
    inside = wait.kind in READS and bool(wait.candidates)
    if wait.kind in (WaitKind.IO, WaitKind.PAGE_FAULT) or (
        wait.kind is WaitKind.SOCKET and wait.holder is None and not inside
    ):
        # A disk, a file server or another host may be this slow and come back.
        return Outcome(Fate.BLOCKED if (wait.since_s or 0.0) > LONG_TIMER_S else Fate.SHORT)
    if wait.holder is None:
        # Nobody is recorded. While one who may hold it still moves, it may yet let go.
        runs, moves = Standing.RUNNING, Progress.MOVING
        for candidate in wait.candidates:
            other = waits.get(candidate)
            if other is None:
                continue
            if other.standing is runs and scene.works(candidate):
                return Outcome(Fate.BUSY, candidate)
            if other.progress is moves and wait.kind not in READS:
                return Outcome(Fate.MOVING, candidate)
        held = wait.kind in MAY_BE_UNOWNED and wait.cause is Kind.LOCK_HELD
        if (held or inside) and any(_may_act(world, candidate, world.woken) for candidate in wait.candidates):
            return Outcome(Fate.UNKNOWN)
        if held and (tries(wait) or any(tries(waits[each]) for each in wait.candidates if each in waits)):
            # It may give up some day, or the one who has it, who then lets go.
            return Outcome(Fate.UNKNOWN, doubted=True)
    return Outcome(Fate.BLOCKED)


def _may_act(world: World, key: Key, lively: frozenset[Key] | None = None) -> bool:
    """Whether a thread may yet do something: the clock or the world outside wakes it, or somebody who is not stuck."""
    wait = world.waits.get(key)
    if wait is not None and wait.standing is Standing.TIMER and fate_of_timer(wait) is Fate.LONG_TIMER:
        return False
    return wait is None or key in (world.lively if lively is None else lively) or keeps_time(wait)


def _own_end(world: World, wait: Blocked) -> Outcome:
    """A pipe to oneself: a handler of a signal or another thread writes it, unless there is neither."""
    scene = world.scene
    handled = holders.handled_signals(scene, wait.key[0])
    if handled or (handled is None and scene.who.rank(wait.key[0]) is None):
        return Outcome(Fate.IDLE)
    caught = _caught_with(world, wait.key)
    others = world.workers.get(wait.key[0], frozenset()) - {wait.key}
    if not world.reach.awaiting_work.isdisjoint(others - caught):
        # The thread that is to write may be the one that somebody's work holds up.
        return Outcome(Fate.UNKNOWN)
    # One with a timeout goes on without anybody's act; what it does then is not known.
    endless = not wait.ends_by_itself and wait.progress is not Progress.UNSEEN
    hopeless = endless and caught.issuperset(others)
    return Outcome(Fate.BLOCKED if hopeless else Fate.IDLE)


def _caught_with(world: World, key: Key) -> set[Key]:
    """A thread and those of its process that wait for nobody else, directly or not."""
    caught = {key}
    todo = [key]
    while todo:
        for other in world.bound_to.get(todo.pop(), ()):
            if other not in caught and caught.issuperset(world.bound[other]):
                caught.add(other)
                todo.append(other)
    return caught


def _by_targets(world: World, wait: Blocked, outcomes: Mapping[Key, Outcome]) -> Outcome:
    fates = [(outcomes[target].fate, target) for target in wait.targets]
    if wait.edge is Edge.ALL:
        # Of several equally hopeless ones the first is as good as any other.
        fate, via = max(fates, key=badness)
        if (
            fate is Fate.SHORT
            and wait.kind is WaitKind.JOIN
            and (endless := [target for found, target in fates if found is Fate.IDLE])
        ):
            # One of those whose end is awaited waits for work: it is not the one that naps who keeps the others.
            fate, via = Fate.IDLE, endless[0]
        if fate is Fate.IDLE and wait.cause is Kind.WORKER_STUCK:
            at_work = [target for target in wait.targets if _has_a_task(world.waits.get(target))]
            if len(at_work) == 1 and at_work[0] not in world.lively and wait.progress is not Progress.UNSEEN:
                # The others wait for work, so what is asked for is with this one, and nothing shows who would wake it.
                return Outcome(Fate.BLOCKED, at_work[0])
        if fate is Fate.BUSY:
            # Who works comes in the end; who waits for something in its own process all the while need not.
            stuck = next(
                (each for found, each in fates if found is Fate.IDLE and _lost(world, wait, each)),
                None,
            )
            if stuck is not None:
                return Outcome(Fate.BLOCKED, stuck)
    else:
        fate, via = min(fates, key=_FATE)
        if (
            any_thread(wait)
            and not fate.hung
            and any(_may_be_stuck(world, outcomes, each) for _, each in fates)
        ):
            # Whoever of them has it: one is stuck, or may well be, another one is not.
            return Outcome(Fate.UNKNOWN, via)
        if fate.hung:
            # None of them can end it; the one that waits itself explains more than the one that sleeps.
            fate, via = max(fates, key=badness)
        elif fate in GETS_ON and wait.kind in READS:
            unsure = of_several_ends(world, fates)
            if unsure is not None:
                return unsure
    if fate is Fate.IDLE:
        return Outcome(waiting_for_idle(world, wait, via), via)
    if (
        fate is Fate.UNKNOWN
        and wait.kind in GROUP_KINDS
        and never_comes(world.scene, world.waits.get(via), world.lively)
    ):
        return Outcome(Fate.BLOCKED, via)
    return behind_one(world, wait, fate, via)


def of_several_ends(world: World, fates: Sequence[tuple[Fate, Key]]) -> Outcome | None:
    """What becomes of a wait for data that any of several processes may send or take, of which some get on and others
    do not; None if all get on, or none.

    Children inherit descriptors that they never use. That one of them gets on says not that it is the one awaited.
    """
    best, _ = min(fates, key=_FATE)
    still = [each for each in fates if each[0] not in GETS_ON]
    if best not in GETS_ON or not still:
        return None
    if any(_stays(world, best, *each) for each in still):
        return Outcome(Fate.UNKNOWN, doubted=True)
    return Outcome(Fate.UNKNOWN if best is Fate.BUSY else best)


def _stays(world: World, best: Fate, fate: Fate, key: Key) -> bool:
    """Whether the process that others may be waiting for is held up itself, rather than waits for work."""
    if fate is Fate.STOPPED:
        return True
    return best is Fate.BUSY and (fate.hung or (fate is Fate.IDLE and key not in world.lively))


def behind_one(world: World, wait: Blocked, fate: Fate, via: Key) -> Outcome:
    """What becomes of a wait that somebody of this fate is to end: held up as well, unless others may help."""
    if not fate.hung:
        return Outcome(fate, via)
    # What is read may yet be written where nothing says that only its end is waited for.
    unsaid = wait.cause is Kind.IPC_NO_EOF and wait.basis is Confidence.POSSIBLE
    doubted = unsaid or is_helped(world, wait)
    return Outcome(Fate.UNKNOWN if doubted else Fate.BLOCKED, via, doubted)


def _may_be_stuck(world: World, outcomes: Mapping[Key, Outcome], key: Key) -> bool:
    """Hopeless, or of those that wait for others of whom that is not known."""
    fate, wait = outcomes[key].fate, world.waits.get(key)
    follows = wait is not None and wait.standing is Standing.FIRM and bool(wait.targets)
    return fate.hung or (follows and fate is Fate.UNKNOWN)


def is_helped(world: World, wait: Blocked) -> bool:
    """Whether another thread of those at the other end, who are known by their processes only, may yet act, or one
    that naps.
    """
    # One of several guessed at may be in a circle, and is not to be accused for the sleep of another one.
    lively = world.lively if any_thread(wait) else world.soon
    return wait.helped or any(_may_act(world, key, lively) for key in wait.besides)


def _has_a_task(wait: Blocked | None) -> bool:
    """A worker that waits for something other than its next task."""
    return wait is not None and not (wait.kind is WaitKind.QUEUE and wait.cause is Kind.IDLE)


def _lost(world: World, wait: Blocked, target: Key) -> bool:
    """A rank that others wait for, and that has long been waiting for a thread of its own to wake it."""
    other = world.waits.get(target)
    if other is None or wait.kind is not WaitKind.COLLECTIVE or other.kind not in _INSIDE:
        return False
    long_ago = (other.since_s or 0.0) >= SETTLED_S and other.progress is Progress.UNMOVED
    return long_ago and waiting_for_idle(world, wait, target) is Fate.BLOCKED


def _belong_together(scene: Scene, pid: int, other: int) -> bool:
    """Whether two processes may take turns at a lock: a stranger may as well have forgotten that he has it."""
    if not is_stranger(scene, other):
        return True
    one, two = scene.processes.get(pid), scene.processes.get(other)
    return one is not None and two is not None and one.comm == two.comm


def _pauses_for_good(world: World, key: Key) -> bool:
    """Whether it waits for signals of which none has a handler: nothing but its end comes of those."""
    wait = world.waits[key]
    if wait.kind is not WaitKind.POLL or wait.object.name != "signal":
        return False
    sample = world.scene.thread(key)
    pauses = sample is not None and world.scene.syscall(sample) == "pause"
    return pauses and holders.handled_signals(world.scene, key[0]) == frozenset()


def _owner_by_ident(scene: Scene, key: Key) -> bool:
    """Whether the lock records its owner as Python's RLock does, by an ident that new threads get of those that ended:
    one that waits for work, and so need not have taken anything, may have it from who has.
    """
    sample = scene.thread(key)
    return sample is not None and sample.lock is not None and sample.lock.kind == "python_rlock"


def waiting_for_idle(world: World, wait: Blocked, via: Key) -> Fate:
    """Who waits for somebody that waits for work from outside: is that how things should be?"""
    fate = _behind_idle(world, wait, via)
    if fate is Fate.BLOCKED and wait.kind not in GROUP_KINDS and via in world.reach.awaiting_anybody:
        # Who could come and serve it is not known, so neither is it that nobody does.
        return Fate.UNKNOWN
    return fate


def _behind_idle(world: World, wait: Blocked, via: Key) -> Fate:
    scene = world.scene
    if wait.kind in GROUP_KINDS and _half_seen(scene, via):
        # It may be in the call that the others wait in.
        return Fate.UNKNOWN
    if wait.kind is WaitKind.P2P and via not in world.lively:
        return Fate.BLOCKED
    if wait.cause is Kind.IPC_NO_EOF:
        # Who serves others may have something to say yet.
        return Fate.UNKNOWN
    if world.waits[via].own_end and any(_may_act(world, each) for each in world.waits[via].candidates):
        # The other end is in the same process: whoever is about to act there may be the one to write.
        return Fate.UNKNOWN
    if wait.kind in _TURNS and _pauses_for_good(world, via):
        return Fate.UNKNOWN
    if wait.kind in _TURNS and _owner_by_ident(scene, wait.key):
        return Fate.UNKNOWN
    if wait.kind in _TURNS and via in world.reach.listening and scene.who.rank(wait.key[0]) is None:
        return Fate.IDLE if _belong_together(scene, wait.key[0], via[0]) else Fate.UNKNOWN
    if any_thread(wait):
        return Fate.UNKNOWN
    if wait.cause is Kind.WORKER_STUCK:
        # All workers wait for work, so what is waited for got lost on the way: where, nobody knows.
        return Fate.UNKNOWN
    if wait.service is not None or wait.kind in _MAY_IDLE:
        return Fate.IDLE
    if wait.kind is WaitKind.COLLECTIVE:
        op = wait.object.name or ""
        from_root = op in FROM_ONE_ROOT and (wait.peer is None or wait.peer == scene.who.rank(via[0]))
        return Fate.IDLE if from_root else Fate.BLOCKED
    if wait.kind in READS and wait.cause is not Kind.IPC_PIPE_FULL:
        # Commands come from above or beside; from a child or a stranger one expects an answer.
        asked = not scene.is_member(via[0]) or via[0] in scene.descendants(wait.key[0])
        return Fate.BLOCKED if asked and scene.who.rank(wait.key[0]) is not None else Fate.IDLE
    if wait.kind is WaitKind.CHILD and scene.who.rank(wait.key[0]) is None:
        return Fate.IDLE
    return Fate.BLOCKED


def tries(wait: Blocked) -> bool:
    """Whether it waits for a while at a time: programs stop that after so many times, or when a deadline is over."""
    if not wait.ends_by_itself or wait.kind in GROUP_KINDS:
        return False
    sleeps_on = wait.progress is Progress.UNMOVED and wait.lasts_s is not None
    return not (sleeps_on and wait.lasts_s is not None and wait.lasts_s > LONG_TIMER_S)
