"""One graph of waits over all threads of all processes, and what becomes of each wait.

A wait with edge `all` lasts as long as one of its targets does; with `any`, as long as all of them do. So a
cycle proves a deadlock only where no member has a way out: through `any` edges every target must be caught too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import (
    BY_ITSELF,
    GROUP_KINDS,
    MAY_BE_UNOWNED,
    Blocked,
    Standing,
    any_of_its_own,
    any_thread,
)
from pyhangtrace.analyze.calls import FROM_ONE_ROOT
from pyhangtrace.analyze.components import components, leading_to
from pyhangtrace.analyze.crowds import crowd, in_short, is_crowd
from pyhangtrace.analyze.knots import Circles, circles
from pyhangtrace.analyze.outside import awaiting_work, keeps_time, listening_and_lively, lively_but
from pyhangtrace.analyze.progress import GOES_ON, SETTLED_S, Progress, only_timed_out
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.teardown import never_comes
from pyhangtrace.model.kinds import Confidence, Edge, Kind, Role, WaitKind

# A timer with more to go than this is a hang to whoever waits for it.
LONG_TIMER_S = 60.0


class Fate(IntEnum):
    """What becomes of a wait, the more hopeless the higher."""

    MOVING = 0
    BUSY = 1
    SHORT = 2  # a timer that ends soon
    UNKNOWN = 3
    IDLE = 4
    LONG_TIMER = 5
    BLOCKED = 6
    CYCLE = 7
    STOPPED = 8
    GONE = 9

    @property
    def hung(self) -> bool:
        """It does not end by itself in any reasonable time."""
        return self >= Fate.LONG_TIMER


# Which of several targets, all of which must act, decides: the idle one last, since it may have done its part.
_WORST = (
    Fate.IDLE,
    Fate.MOVING,
    Fate.SHORT,
    Fate.BUSY,
    Fate.UNKNOWN,
    Fate.LONG_TIMER,
    Fate.BLOCKED,
    Fate.CYCLE,
    Fate.STOPPED,
    Fate.GONE,
)

# Where each fate, by its number, stands among them.
_BADNESS = tuple(map(_WORST.index, Fate))
_FATE = itemgetter(0)


def _badness(target: tuple[Fate, Key]) -> int:
    return _BADNESS[target[0]]


_READS = frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL})
# Waits that only a thread of the same process ends.
_INSIDE = frozenset({WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.BARRIER, WaitKind.QUEUE, WaitKind.JOIN})
_MAY_IDLE = frozenset(
    {WaitKind.QUEUE, WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.JOIN, WaitKind.P2P, WaitKind.BARRIER}
)


# Whoever holds one of these may rightly keep the others out while it waits for work (an accept mutex, a leader's lock).
_TURNS = frozenset(
    {WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK, WaitKind.FILE_LOCK, WaitKind.LOCK_FILE}
)


# Without slots, which have no room for what is found when it is asked for.
@dataclass(frozen=True)
class _World:
    """The scene, and who in it waits for the world outside, may yet be reached by it, or waits for work to be done."""

    scene: Scene
    waits: Mapping[Key, Blocked]
    listening: frozenset[Key]
    lively: frozenset[Key]
    awaiting_work: frozenset[Key]

    @cached_property
    def soon(self) -> frozenset[Key]:
        """Of the lively ones, those that something may reach before a long timer is over."""
        asleep = {
            key
            for key, wait in self.waits.items()
            if wait.standing is Standing.TIMER and _timer(wait) is Fate.LONG_TIMER
        }
        return lively_but(self.scene, self.waits, asleep) if asleep else self.lively

    @cached_property
    def behind(self) -> Mapping[Key, Sequence[Blocked]]:
        """Waits by the threads that they are for."""
        behind: dict[Key, list[Blocked]] = {}
        for wait in self.waits.values():
            for target in wait.targets:
                behind.setdefault(target, []).append(wait)
        return behind

    @cached_property
    def workers(self) -> Mapping[int, frozenset[Key]]:
        """Threads with work of their own, by process."""
        workers: dict[int, set[Key]] = {}
        for key, service in self.scene.services.items():
            if service is None:
                workers.setdefault(key[0], set()).add(key)
        return {pid: frozenset(keys) for pid, keys in workers.items()}

    @cached_property
    def bound(self) -> Mapping[Key, tuple[Key, ...]]:
        """What those of them wait for that know it: guesses prove nothing."""
        return {
            key: wait.targets
            for key, wait in self.waits.items()
            if wait.standing is Standing.FIRM and wait.targets and self.scene.services.get(key) is None
        }

    @cached_property
    def bound_to(self) -> Mapping[Key, Sequence[Key]]:
        """And who of the same process that is, by the threads that they wait for."""
        bound_to: dict[Key, list[Key]] = {}
        for key, targets in self.bound.items():
            for target in targets:
                if target[0] == key[0]:
                    bound_to.setdefault(target, []).append(key)
        return bound_to


class Outcome(NamedTuple):
    """The fate of a node, and the target that decides it (None: it decides itself).

    `doubted`: it would be hopeless but for other threads at the other end, which may yet act.
    """

    fate: Fate
    via: Key | None = None
    doubted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All nodes' outcomes and the cycles that are proven. `listening` and `lively` as `outside` says. `clocked` are
    members of a knot that the clock may get out of it, as far as one has seen. `whole` are cycles of one thread that
    stands for its process, with all threads that may be in it.
    """

    outcomes: Mapping[Key, Outcome]
    cycles: tuple[tuple[Key, ...], ...]
    clocked: frozenset[Key] = frozenset()
    whole: Mapping[Key, tuple[Key, ...]] = field(default_factory=dict)
    listening: frozenset[Key] = frozenset()
    lively: frozenset[Key] = frozenset()

    def fate(self, key: Key) -> Fate:
        """UNKNOWN for a node that is not in the graph."""
        outcome = self.outcomes.get(key)
        return outcome.fate if outcome is not None else Fate.UNKNOWN

    def chain(self, start: Key) -> tuple[Key, ...]:
        """The nodes from here to the end; a cycle is gone round once."""
        path: dict[Key, None] = {}
        node: Key | None = start
        while node is not None and node not in path:
            path[node] = None
            outcome = self.outcomes.get(node)
            node = outcome.via if outcome is not None else None
        return tuple(path)

    def ends(self) -> dict[Key, Key]:
        """Where each node's chain ends; for one that leads into a cycle, a member of it."""
        ends: dict[Key, Key] = {}
        for start in self.outcomes:
            path: dict[Key, None] = {}
            node = start
            while node not in path and node not in ends:
                path[node] = None
                outcome = self.outcomes.get(node)
                if outcome is None or outcome.via is None:
                    break
                node = outcome.via
            ends.update(dict.fromkeys(path, ends.get(node, node)))
        return ends

    def leading_to(self, goals: Iterable[Key]) -> frozenset[Key]:
        """All nodes whose chain passes one of these, themselves included."""
        return leading_to(
            goals,
            {node: (outcome.via,) for node, outcome in self.outcomes.items() if outcome.via is not None},
        )


def judge(scene: Scene, waits: Mapping[Key, Blocked]) -> Judged:
    """Works out all fates, ends of chains first."""
    leads = {key: in_short(wait.targets) for key, wait in waits.items() if _is_waiting(wait)}
    # Targets of who waits are come to from there.
    others = chain.from_iterable(wait.targets for key, wait in waits.items() if key not in leads)
    nodes = sorted({*waits, *others})

    def edges(node: Key) -> tuple[Key, ...]:
        return crowd(scene, node) if is_crowd(node) else leads.get(node, ())

    world = _World(scene, waits, *listening_and_lively(scene, waits), awaiting_work(scene, waits))
    outcomes: dict[Key, Outcome] = {}
    knots: list[Circles] = []
    clocked: set[Key] = set()
    for component in map(_threads, components(nodes, edges)):
        if len(component) > 1 or (component and component[0] in edges(component[0])):
            clocked |= _judge_component(world, component, outcomes, knots)
        elif component:
            outcomes[component[0]] = _judge_one(world, component[0], outcomes)
    return Judged(
        outcomes=outcomes,
        cycles=tuple(sorted(cycle for knot in knots for cycle in knot.cycles)),
        clocked=frozenset(clocked),
        whole={key: threads for knot in knots for key, threads in knot.whole.items()},
        listening=world.listening,
        lively=world.lively,
    )


def _threads(component: tuple[Key, ...]) -> tuple[Key, ...]:
    """Without nodes that only stand between them."""
    if any(map(is_crowd, component)):
        return tuple(node for node in component if not is_crowd(node))
    return component


def _is_waiting(wait: Blocked) -> bool:
    return wait.standing not in BY_ITSELF and wait.progress not in GOES_ON


def _judge_one(world: _World, node: Key, outcomes: Mapping[Key, Outcome]) -> Outcome:
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
        return Fate.STOPPED
    if wait.standing is Standing.TIMER:
        return _timer(wait)
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


def _timer(wait: Blocked) -> Fate:
    if wait.lasts_s is not None:
        return Fate.LONG_TIMER if wait.lasts_s > LONG_TIMER_S else Fate.SHORT
    slept = wait.since_s
    return Fate.LONG_TIMER if slept is not None and slept > LONG_TIMER_S else Fate.UNKNOWN


def _alone(world: _World, wait: Blocked) -> Outcome:
    scene, waits = world.scene, world.waits
    if wait.standing is not Standing.FIRM:
        return Outcome(Fate.UNKNOWN)
    if wait.kind is WaitKind.PYTHON_LOCK and wait.holder is None and _half_seen(scene, wait.key):
        # Conditions, queues and pools wait on such locks too: which of them this is, only the whole stack tells.
        return Outcome(Fate.UNKNOWN)
    inside = wait.kind in _READS and bool(wait.candidates)
    if wait.kind in (WaitKind.IO, WaitKind.PAGE_FAULT) or (
        wait.kind is WaitKind.SOCKET and wait.holder is None and not inside
    ):
        # A disk, a file server or another host may be this slow and come back.
        return Outcome(Fate.BLOCKED if (wait.since_s or 0.0) > LONG_TIMER_S else Fate.SHORT)
    if wait.holder is None:
        # Nobody is recorded. While one who may hold it still moves, it may yet let go.
        for candidate in wait.candidates:
            other = waits.get(candidate)
            if other is None:
                continue
            if other.standing is Standing.RUNNING and scene.works(candidate):
                return Outcome(Fate.BUSY, candidate)
            if other.progress is Progress.MOVING and wait.kind not in _READS:
                return Outcome(Fate.MOVING, candidate)
        held = wait.kind in MAY_BE_UNOWNED and wait.cause is Kind.LOCK_HELD
        if (held or inside) and any(_may_act(world, candidate) for candidate in wait.candidates):
            return Outcome(Fate.UNKNOWN)
        if held and (tries(wait) or any(tries(waits[each]) for each in wait.candidates if each in waits)):
            # It may give up some day, or the one who has it, who then lets go.
            return Outcome(Fate.UNKNOWN, doubted=True)
    return Outcome(Fate.BLOCKED)


def _may_act(world: _World, key: Key, lively: frozenset[Key] | None = None) -> bool:
    """Whether a thread may yet do something: the clock or the world outside wakes it, or somebody who is not stuck."""
    wait = world.waits.get(key)
    if wait is not None and wait.standing is Standing.TIMER and _timer(wait) is Fate.LONG_TIMER:
        return False
    return wait is None or key in (world.lively if lively is None else lively) or keeps_time(wait)


def _own_end(world: _World, wait: Blocked) -> Outcome:
    """A pipe to oneself: a handler of a signal or another thread writes it, unless there is neither."""
    scene = world.scene
    handled = holders.handled_signals(scene, wait.key[0])
    if handled or (handled is None and scene.who.rank(wait.key[0]) is None):
        return Outcome(Fate.IDLE)
    caught = _caught_with(world, wait.key)
    others = world.workers.get(wait.key[0], frozenset()) - {wait.key}
    if not world.awaiting_work.isdisjoint(others - caught):
        # The thread that is to write may be the one that somebody's work holds up.
        return Outcome(Fate.UNKNOWN)
    hopeless = caught.issuperset(others) and wait.progress is not Progress.UNSEEN
    return Outcome(Fate.BLOCKED if hopeless else Fate.IDLE)


def _caught_with(world: _World, key: Key) -> set[Key]:
    """A thread and those of its process that wait for nobody else, directly or not."""
    caught = {key}
    todo = [key]
    while todo:
        for other in world.bound_to.get(todo.pop(), ()):
            if other not in caught and caught.issuperset(world.bound[other]):
                caught.add(other)
                todo.append(other)
    return caught


def _by_targets(world: _World, wait: Blocked, outcomes: Mapping[Key, Outcome]) -> Outcome:
    fates = [(outcomes[target].fate, target) for target in wait.targets]
    if wait.edge is Edge.ALL:
        # Of several equally hopeless ones the first is as good as any other.
        fate, via = max(fates, key=_badness)
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
            fate, via = max(fates, key=_badness)
    if fate is Fate.IDLE:
        return Outcome(_waiting_for_idle(world, wait, via), via)
    if (
        fate is Fate.UNKNOWN
        and wait.kind in GROUP_KINDS
        and never_comes(world.scene, world.waits.get(via), world.lively)
    ):
        return Outcome(Fate.BLOCKED, via)
    return _behind(world, wait, fate, via)


def _behind(world: _World, wait: Blocked, fate: Fate, via: Key) -> Outcome:
    """What becomes of a wait that somebody of this fate is to end: held up as well, unless others may help."""
    if not fate.hung:
        return Outcome(fate, via)
    # What is read may yet be written where nothing says that only its end is waited for.
    unsaid = wait.cause is Kind.IPC_NO_EOF and wait.basis is Confidence.POSSIBLE
    doubted = unsaid or _helped(world, wait)
    return Outcome(Fate.UNKNOWN if doubted else Fate.BLOCKED, via, doubted)


def _may_be_stuck(world: _World, outcomes: Mapping[Key, Outcome], key: Key) -> bool:
    """Hopeless, or of those that wait for others of whom that is not known."""
    fate, wait = outcomes[key].fate, world.waits.get(key)
    follows = wait is not None and wait.standing is Standing.FIRM and bool(wait.targets)
    return fate.hung or (follows and fate is Fate.UNKNOWN)


def _helped(world: _World, wait: Blocked) -> bool:
    """Whether another thread of those at the other end, who are known by their processes only, may yet act, or one
    that naps.
    """
    # One of several guessed at may be in a circle, and is not to be accused for the sleep of another one.
    lively = world.lively if any_thread(wait) else world.soon
    return wait.helped or any(_may_act(world, key, lively) for key in wait.besides)


def _has_a_task(wait: Blocked | None) -> bool:
    """A worker that waits for something other than its next task."""
    return wait is not None and not (wait.kind is WaitKind.QUEUE and wait.cause is Kind.IDLE)


def _lost(world: _World, wait: Blocked, target: Key) -> bool:
    """A rank that others wait for, and that has long been waiting for a thread of its own to wake it."""
    other = world.waits.get(target)
    if other is None or wait.kind is not WaitKind.COLLECTIVE or other.kind not in _INSIDE:
        return False
    long_ago = (other.since_s or 0.0) >= SETTLED_S and other.progress is Progress.UNMOVED
    return long_ago and _waiting_for_idle(world, wait, target) is Fate.BLOCKED


def _waiting_for_idle(world: _World, wait: Blocked, via: Key) -> Fate:
    """Who waits for somebody that waits for work from outside: is that how things should be?"""
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
    if wait.kind in _TURNS and via in world.listening and scene.who.rank(wait.key[0]) is None:
        return Fate.IDLE
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
    if wait.kind in _READS and wait.cause is not Kind.IPC_PIPE_FULL:
        # Commands come from above or beside; from a child or a stranger one expects an answer.
        process = scene.processes.get(via[0])
        stranger = process is None or process.role is Role.OUTSIDER
        asked = stranger or via[0] in scene.descendants(wait.key[0])
        return Fate.BLOCKED if asked and scene.who.rank(wait.key[0]) is not None else Fate.IDLE
    if wait.kind is WaitKind.CHILD and scene.who.rank(wait.key[0]) is None:
        return Fate.IDLE
    return Fate.BLOCKED


def _judge_component(
    world: _World,
    component: tuple[Key, ...],
    outcomes: dict[Key, Outcome],
    knots: list[Circles],
) -> set[Key]:
    """Judges a knot, and says who of it may get out by the clock."""
    waits = world.waits
    # Guesses hold nobody: a wait for a signal is never part of a proof.
    caught = {node for node in component if not _is_guess(waits[node])}
    let_go = {node for node in caught if _may_let_go(world, waits[node])}
    caught -= let_go
    by_clock = {node: Outcome(_by_clock(waits[node])) for node in sorted(let_go)}
    _let_out(world, caught, outcomes)
    free = [node for node in component if node not in caught]
    # The first whose time is over lets the others go on.
    ends = set(sorted(let_go, key=lambda node: (by_clock[node].fate, waits[node].lasts_s or 0.0, node))[:1])
    outcomes.update({node: by_clock[node] for node in ends})
    while after := {node for node in free if node not in ends and _follows(waits[node], ends)}:
        for node in after:
            via = next(target for target in waits[node].targets if target in ends)
            outcomes[node] = Outcome(outcomes[via].fate, via)
        ends |= after
    for node in free:
        if node in ends:
            continue
        # A way out leads over somebody outside; who else is in the knot does not matter then.
        wait = waits[node]
        if wait.standing is Standing.IDLE:
            outcomes[node] = Outcome(Fate.IDLE)
            continue
        out = [target for target in wait.targets if target in outcomes]
        fates = [(outcomes[target].fate, target) for target in out]
        if node in let_go:
            outcomes[node] = by_clock[node]
        elif any_thread(wait):
            outcomes[node] = Outcome(Fate.UNKNOWN, doubted=True)
        elif fates:
            fate, via = min(fates)
            if fate is Fate.SHORT and wait.kind is WaitKind.JOIN and wait.edge is Edge.ALL:
                # Somebody else whose end is awaited is in the knot, too.
                fate = fate if len(out) == len(wait.targets) else Fate.UNKNOWN
            outcomes[node] = _behind(world, wait, fate, via)
        else:
            outcomes[node] = Outcome(Fate.UNKNOWN, doubted=_helped(world, wait))
    if not caught:
        return let_go
    following = {
        node: _idle_outside(world, waits[node], outcomes) or _next_caught(waits[node], caught, outcomes)
        for node in sorted(caught)
    }
    knot = circles(waits, following)
    knots.append(knot)
    on_cycle = {key for cycle in knot.cycles for key in cycle}
    for node in sorted(caught):
        fate = Fate.CYCLE if node in on_cycle else Fate.BLOCKED
        unsure = node in knot.unsure
        outcomes[node] = Outcome(Fate.UNKNOWN if unsure else fate, knot.following[node], doubted=unsure)
    return let_go


def _let_out(world: _World, caught: set[Key], outcomes: Mapping[Key, Outcome]) -> None:
    """Leaves of the members of a knot only those whom the others, and who is outside of it, keep in it."""
    waits = world.waits
    caught -= {node for node in caught if _helped(world, waits[node])}
    kept = {node for node in caught if _idle_outside(world, waits[node], outcomes) is not None}
    out = [node for node in caught - kept if not _stays_caught(waits[node], caught, outcomes)]
    caught.difference_update(out)
    if not out:
        return
    behind: dict[Key, list[Key]] = {}
    for node in caught - kept:
        for target in waits[node].targets:
            behind.setdefault(target, []).append(node)
    while out:
        for node in behind.get(out.pop(), ()):
            if node in caught and not _stays_caught(waits[node], caught, outcomes):
                caught.discard(node)
                out.append(node)


def _follows(wait: Blocked, ends: set[Key]) -> bool:
    return wait.standing is Standing.FIRM and not ends.isdisjoint(wait.targets)


def _may_let_go(world: _World, wait: Blocked) -> bool:
    """Whether a member of a knot may give up its wait by the clock, and then what the others want of it.

    One whose wait ran out and was taken up again may have let go in between, as programs do that back off. But a lock
    that is given up wakes who waits for it: where all of those slept on, it was not. What others are to read may come
    whenever the time of a wait is over.
    """
    if not wait.ends_by_itself or wait.kind in GROUP_KINDS:
        return False
    if wait.progress is not Progress.REARMED:
        return _timer(wait) is not Fate.LONG_TIMER
    after_it = world.behind.get(wait.key, ())
    return any(other.kind in _READS or not _slept_on(world.scene, other) for other in after_it)


def _slept_on(scene: Scene, wait: Blocked) -> bool:
    """Whether nobody woke a thread between the looks: it did not run, or when its own time was over only.

    One that naps and asks is never woken: a lock may have been free meanwhile, while whoever had ended stays ended.
    """
    if wait.asks and wait.kind not in (WaitKind.CHILD, WaitKind.JOIN):
        return False
    if wait.progress is Progress.REARMED and scene.evidence.window_s >= SETTLED_S:
        return only_timed_out(scene.samples[wait.key], scene.times[wait.key])
    return wait.progress is Progress.UNMOVED


def _by_clock(wait: Blocked) -> Fate:
    """What is known of one in a knot whose time is over some day: whether it lets go then, or only tries again."""
    return Fate.UNKNOWN if wait.progress is Progress.REARMED else min(_timer(wait), Fate.UNKNOWN)


def tries(wait: Blocked) -> bool:
    """Whether it waits for a while at a time: programs stop that after so many times, or when a deadline is over."""
    if not wait.ends_by_itself or wait.kind in GROUP_KINDS:
        return False
    sleeps_on = wait.progress is Progress.UNMOVED and wait.lasts_s is not None
    return not (sleeps_on and wait.lasts_s is not None and wait.lasts_s > LONG_TIMER_S)


def _is_guess(wait: Blocked) -> bool:
    """Who can end it is not known: any thread, or one of several that nothing but their place speaks for."""
    among_several = wait.basis is Confidence.POSSIBLE and wait.edge is Edge.ANY and len(wait.targets) > 1
    return wait.standing is Standing.IDLE or among_several


def _stays_caught(wait: Blocked, caught: set[Key], outcomes: Mapping[Key, Outcome]) -> bool:
    def hopeless(target: Key) -> bool:
        return target in caught or (target in outcomes and outcomes[target].fate.hung)

    if any_of_its_own(wait):
        # All of a process are in the knot, or who outside of it has the lock is not known.
        return caught.issuperset(wait.targets)
    if wait.edge is Edge.ANY:
        return all(hopeless(target) for target in wait.targets)
    return any(hopeless(target) for target in wait.targets)


def _idle_outside(world: _World, wait: Blocked, outcomes: Mapping[Key, Outcome]) -> Key | None:
    """Who outside of the knot a collective lacks, since he waits for what nobody of the group does."""
    if wait.kind is not WaitKind.COLLECTIVE or wait.edge is not Edge.ALL:
        return None
    outside = [target for target in wait.targets if target in outcomes]
    if any(not outcomes[target].fate.hung and outcomes[target].fate is not Fate.IDLE for target in outside):
        return None
    if any(outcomes[target].fate.hung for target in outside):
        return None
    return next(
        (each for each in outside if each in world.waits and _waiting_for_idle(world, wait, each).hung), None
    )


def _next_caught(wait: Blocked, caught: set[Key], outcomes: Mapping[Key, Outcome]) -> Key | None:
    # A hopeless target outside the knot explains more than going round in it.
    outside = [target for target in wait.targets if target in outcomes and outcomes[target].fate.hung]
    if outside:
        return max(outside, key=lambda target: (outcomes[target].fate, (-target[0], -target[1])))
    for target in wait.targets:
        if target in caught and target != wait.key:
            return target
    return wait.key if wait.key in wait.targets else None
