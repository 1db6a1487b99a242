"""The fates of waits in a knot: who of it may get out, and who is in a circle with no way out."""

from __future__ import annotations

from collections.abc import Mapping

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing, any_of_its_own, any_thread
from pyhangtrace.analyze.components import leading_to
from pyhangtrace.analyze.fates import LONG_TIMER_S, Fate, Outcome, fate_of_timer
from pyhangtrace.analyze.knots import Circles, circles
from pyhangtrace.analyze.progress import SETTLED_S, Progress, only_timed_out
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.single_fates import (
    GETS_ON,
    READS,
    behind_one,
    is_helped,
    of_several_ends,
    waiting_for_idle,
)
from pyhangtrace.analyze.world import World
from pyhangtrace.model.kinds import Confidence, Edge, WaitKind


def judge_knot(
    world: World,
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
    ways_out = _ways_out(waits, component, outcomes)
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
        elif fates and (several := _of_several_ends(world, wait, min(fates), ways_out)) is not None:
            outcomes[node] = several
        elif fates:
            fate, via = min(fates)
            if fate is Fate.SHORT and wait.kind is WaitKind.JOIN and wait.edge is Edge.ALL:
                # Somebody else whose end is awaited is in the knot, too.
                fate = fate if len(out) == len(wait.targets) else Fate.UNKNOWN
            outcomes[node] = behind_one(world, wait, fate, via)
        else:
            outcomes[node] = Outcome(Fate.UNKNOWN, doubted=is_helped(world, wait))
    if not caught:
        return let_go
    following = {
        node: _idle_outside(world, waits[node], outcomes) or _next_caught(waits[node], caught, outcomes)
        for node in sorted(caught)
    }
    knot = circles(waits, following)
    knots.append(knot)
    on_cycle = {key for cycle in knot.cycles for key in cycle}
    # Held by a process one of whose threads is in the knot, and another one is not: who keeps whom is not known, unless
    # that process keeps the waiter in either case.
    either = {
        node
        for node, after in following.items()
        if any_thread(waits[node])
        and after not in caught
        and not all(
            _comes_back(waits, following, each, node) for each in caught.intersection(waits[node].targets)
        )
    }
    ways = {node: (after,) for node, after in knot.following.items() if after is not None}
    open_to = knot.unsure | (leading_to(either, ways) & caught if either else set())
    for node in sorted(caught):
        fate = Fate.CYCLE if node in on_cycle else Fate.BLOCKED
        unsure = node in open_to
        outcomes[node] = Outcome(Fate.UNKNOWN if unsure else fate, knot.following[node], doubted=unsure)
    return let_go


def _ways_out(
    waits: Mapping[Key, Blocked], component: tuple[Key, ...], outcomes: Mapping[Key, Outcome]
) -> list[tuple[Fate, Key]]:
    """Who outside of a knot may let any of it go, with what becomes of him."""
    inside = set(component)
    targets = {target for node in component if waits[node].edge is Edge.ANY for target in waits[node].targets}
    return [(outcomes[each].fate, each) for each in sorted(targets - inside) if each in outcomes]


def _of_several_ends(
    world: World, wait: Blocked, best: tuple[Fate, Key], ways_out: list[tuple[Fate, Key]]
) -> Outcome | None:
    """The same as outside of knots, with the ways out of all of it: those who wait for each other have no other."""
    if wait.edge is not Edge.ANY or wait.kind not in READS or best[0] not in GETS_ON:
        return None
    return of_several_ends(world, [best, *ways_out])


def _comes_back(
    waits: Mapping[Key, Blocked], following: Mapping[Key, Key | None], start: Key, goal: Key
) -> bool:
    """Whether a thread in a knot waits for another one, over others, whichever thread of a process it is."""
    passed: set[Key] = set()
    todo = [start]
    while todo:
        at = todo.pop()
        if at == goal:
            continue
        after = following.get(at)
        if at in passed or after is None:
            return False
        passed.add(at)
        todo += waits[at].targets if any_thread(waits[at]) else (after,)
    return True


def _let_out(world: World, caught: set[Key], outcomes: Mapping[Key, Outcome]) -> None:
    """Leaves of the members of a knot only those whom the others, and who is outside of it, keep in it."""
    waits = world.waits
    caught -= {node for node in caught if is_helped(world, waits[node])}
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


def _may_let_go(world: World, wait: Blocked) -> bool:
    """Whether a member of a knot may give up its wait by the clock, and then what the others want of it.

    One whose wait ran out and was taken up again may have let go in between, as programs do that back off. But a lock
    that is given up wakes who waits for it: where all of those slept on, it was not. What others are to read may come
    whenever the time of a wait is over.
    """
    if wait.gives_up:
        # Within a minute, as of other clocks: those behind it have slept for as long as that is known.
        ages = [other.since_s or 0.0 for other in world.behind.get(wait.key, ())]
        return min(ages, default=0.0) <= LONG_TIMER_S
    if not wait.ends_by_itself or wait.kind in GROUP_KINDS:
        return False
    if wait.progress is not Progress.REARMED:
        return fate_of_timer(wait) is not Fate.LONG_TIMER
    after_it = world.behind.get(wait.key, ())
    return any(other.kind in READS or not _slept_on(world.scene, other) for other in after_it)


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
    again = wait.gives_up or wait.progress is Progress.REARMED
    return Fate.UNKNOWN if again else min(fate_of_timer(wait), Fate.UNKNOWN)


def _is_guess(wait: Blocked) -> bool:
    """Who can end it is not known: any thread, or one of several that nothing but their place speaks for."""
    if wait.standing is Standing.IDLE:
        return True
    return len(wait.targets) > 1 and wait.basis is Confidence.POSSIBLE and wait.edge is Edge.ANY


def _stays_caught(wait: Blocked, caught: set[Key], outcomes: Mapping[Key, Outcome]) -> bool:
    def hopeless(target: Key) -> bool:
        return target in caught or (target in outcomes and outcomes[target].fate.hung)

    if any_of_its_own(wait):
        # All of a process are in the knot, or who outside of it has the lock is not known.
        return caught.issuperset(wait.targets)
    if wait.edge is Edge.ANY:
        return all(hopeless(target) for target in wait.targets)
    return any(hopeless(target) for target in wait.targets)


def _idle_outside(world: World, wait: Blocked, outcomes: Mapping[Key, Outcome]) -> Key | None:
    """Who outside of the knot a collective lacks, since he waits for what nobody of the group does."""
    if wait.kind is not WaitKind.COLLECTIVE or wait.edge is not Edge.ALL:
        return None
    outside = [target for target in wait.targets if target in outcomes]
    if any(not outcomes[target].fate.hung and outcomes[target].fate is not Fate.IDLE for target in outside):
        return None
    if any(outcomes[target].fate.hung for target in outside):
        return None
    return next(
        (each for each in outside if each in world.waits and waiting_for_idle(world, wait, each).hung), None
    )


def _next_caught(wait: Blocked, caught: set[Key], outcomes: Mapping[Key, Outcome]) -> Key | None:
    # A hopeless target outside the knot explains more than going round in it; but not another rank that sleeps: those
    # that go round would wait for each other after it has come, too.
    outside = [target for target in wait.targets if target in outcomes and outcomes[target].fate.hung]
    asleep = all(outcomes[target].fate is Fate.LONG_TIMER for target in outside)
    of_all = wait.kind is WaitKind.COLLECTIVE and wait.edge is Edge.ALL
    if outside and not (of_all and asleep and any(target in caught for target in wait.targets)):
        return max(outside, key=lambda target: (outcomes[target].fate, (-target[0], -target[1])))
    for target in wait.targets:
        if target in caught and target != wait.key:
            return target
    return wait.key if wait.key in wait.targets else None
