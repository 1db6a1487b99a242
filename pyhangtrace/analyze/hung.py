"""Verdicts on waits that do not end: cycles, ranks that are missing or parted ways, holders that hold on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyhangtrace.analyze.blocked import (
    CONNECT,
    GROUP_KINDS,
    MAY_BE_UNOWNED,
    Blocked,
    Standing,
    any_thread,
    changed,
    weaker,
)
from pyhangtrace.analyze.calls import Meaning, path_has
from pyhangtrace.analyze.causes import (
    MISMATCHES,
    cause_of,
    cause_of_cycle,
    confidence_of,
    exit_cause,
    failure_recorded,
    lead_of,
    symptom_of,
)
from pyhangtrace.analyze.collectives import groups_of
from pyhangtrace.analyze.components import components
from pyhangtrace.analyze.fates import Fate, Judged
from pyhangtrace.analyze.finding import (
    NOBODY,
    Case,
    Finding,
    Named,
    is_whole,
    name_of,
    named_for,
    one_a_process,
    other_missing,
    threads_of_cycle,
    victims_of,
)
from pyhangtrace.analyze.retries import is_young
from pyhangtrace.analyze.scene import Key
from pyhangtrace.model.kinds import Confidence, Edge, FrameKind, Kind, Part, State, WaitKind
from pyhangtrace.model.report import Divergence, Side
from pyhangtrace.model.stacks import Frame


def hung_verdict(case: Case, hung: Sequence[Key]) -> Finding:
    """The verdict on waits that do not end."""
    waits, judged = case.waits, case.judged
    seed = _best_seed(case, hung)
    chain = judged.chain(seed)
    cycle = _cycle_on(judged, chain)
    parted = case.matched.parted
    if len(cycle) == 1 and waits[cycle[0]].kind is WaitKind.COLLECTIVE:
        return _own_part(case, hung, cycle)
    if cycle and all(key in waits and waits[key].kind in GROUP_KINDS for key in cycle):
        return _parted(case, hung, cycle, parted)
    if cycle:
        return _deadlock(case, chain, cycle, hung)
    end = judged.fate(chain[-1])
    lead = lead_of(case.scene, waits, chain)
    if lead is None:
        # Everybody is inside and nobody is known to be missing: nobody is accused.
        kind = _inside(waits[seed])
        connects = waits[seed].object.name == CONNECT
        named = tuple(name_of(case, key, Part.PARTY) for key in one_a_process(hung))
        return Finding(
            state=State.HUNG if kind is not Kind.RENDEZVOUS_UNREACHABLE or connects else State.UNKNOWN,
            symptom=kind,
            cause=kind,
            confidence=Confidence.LIKELY if connects else Confidence.POSSIBLE,
            named=named,
            victims=_not_come_together(case, named) if connects else (),
            chain=chain,
        )
    cause = _exit_or(case, seed, chain, lead, end)
    if cause is Kind.LOCK_TEARDOWN and not case.scene.who.pid_of_rank and _wants_unowned(case, chain[-1]):
        # That the program is over is what shows of it: the lock is what the end waits for.
        cause = case.waits[chain[-1]].cause
    if cause is Kind.IDLE and (apart := _apart(case, seed, hung)):
        return Finding(
            state=State.HUNG,
            symptom=symptom_of(case.scene, waits, chain),
            cause=cause,
            confidence=_sure(case, chain, end),
            named=tuple(name_of(case, key, Part.PARTY) for key in apart),
            victims=tuple(key for key in one_a_process(hung) if key[0] not in {one[0] for one in apart}),
            chain=chain,
            diverged_at=_divergence(case, apart),
        )
    if _holder_unknown(case, chain, cause):
        # Who waits is all that is known; who of them is to blame is not.
        same = [chain[-1], *(key for key in hung if key != chain[-1] and _same_trouble(case, key, chain[-1]))]
        named = tuple(name_of(case, key, Part.PARTY) for key in sorted(same, key=case.order))
    else:
        named = named_for(case, chain, lead, cause)
        named = (*named, *other_missing(case, seed, chain, named))
    return Finding(
        state=State.HUNG,
        symptom=symptom_of(case.scene, waits, chain) if len(chain) > 1 else None,
        cause=cause,
        confidence=_sure(case, chain, end),
        named=named,
        victims=victims_of(case, hung, named, chain),
        chain=chain,
        settled=end in (Fate.STOPPED, Fate.GONE),
    )


def _not_come_together(case: Case, named: Sequence[Named]) -> tuple[Key, ...]:
    """The other ranks that are at their set-up: they lack those that cannot get there."""
    away = {who.key[0] for who in named if who.key is not None}
    keys = sorted(case.waits, key=case.order)
    waiting = [
        key for key in keys if case.waits[key].kind is WaitKind.RENDEZVOUS and case.waits[key].service is None
    ]
    return tuple(key for key in one_a_process(waiting) if key[0] not in away)


def _apart(case: Case, seed: Key, hung: Sequence[Key]) -> list[Key]:
    """Who is in an operation, and several who are not and wait for work: who has a call too many, or too few, nothing
    tells. () where some rank is missing for another reason, or one alone is.
    """
    wait = case.waits[seed]
    away = [target for target in wait.targets if target in case.waits]
    if wait.kind is not WaitKind.COLLECTIVE or wait.object.collective is None:
        return []
    if len(away) < max(2, len(wait.targets)):
        return []
    if any(case.waits[target].standing is not Standing.IDLE for target in away):
        return []
    inside = [key for key in hung if case.waits[key].object.collective == wait.object.collective]
    return one_a_process(sorted((*inside, *away), key=case.order))


def _inside(wait: Blocked) -> Kind:
    if wait.kind is WaitKind.RENDEZVOUS:
        return Kind.RENDEZVOUS_UNREACHABLE
    return Kind.P2P_UNMATCHED if wait.kind is WaitKind.P2P else Kind.COLLECTIVE_NONE_COMPLETES


def _holder_unknown(case: Case, chain: Sequence[Key], cause: Kind) -> bool:
    """The end is a wait that nobody alive is recorded for, and no rank stands out by not having come."""
    last = case.waits.get(chain[-1])
    if last is None or last.targets or last.standing is not Standing.FIRM or cause is Kind.IPC_NO_EOF:
        return False
    unowned = _wants_unowned(case, chain[-1])
    return not case.scene.who.pid_of_rank and (
        len(chain) == 1 or unowned or cause in (Kind.LOCK_HELD, *NOBODY)
    )


def _wants_unowned(case: Case, key: Key) -> bool:
    """Whether it waits for a lock of which no holder is recorded: kept waiting itself, whoever waits for it."""
    wait = case.waits.get(key)
    return (
        wait is not None
        and wait.kind in MAY_BE_UNOWNED
        and wait.cause is Kind.LOCK_HELD
        and wait.holder is None
        and not wait.targets
    )


def _same_trouble(case: Case, key: Key, other: Key) -> bool:
    one, two = case.waits[key], case.waits[other]
    same_thing = changed(one.object, remaining_s=None) == changed(two.object, remaining_s=None)
    same_object = same_thing or (one.kind is WaitKind.PYTHON_LOCK and key[0] == other[0])
    return one.cause is two.cause and one.kind is two.kind and same_object and not one.targets


def _best_seed(case: Case, hung: Sequence[Key]) -> Key:
    """The victim whose chain is the surest: one that ends in a cycle, a stopped or an exited member first."""

    ends = case.judged.ends()
    inner = _waited_for(case, hung)
    young = {key for cycle in case.judged.cycles if is_young(case, cycle) for key in cycle}

    def key_of(seed: Key) -> tuple[int, bool, bool, int, tuple[int, int, int]]:
        may_end = ends[seed] in young
        sure = case.judged.fate(ends[seed]) in (Fate.CYCLE, Fate.STOPPED, Fate.GONE) and not may_end
        followed = case.judged.outcomes[seed].via is not None
        guessed = int(case.waits[seed].edge is Edge.ANY and case.waits[seed].holder is None)
        return (0 if sure else 1 if followed else 2), may_end, seed in inner, guessed, case.order(seed)

    return min(hung, key=key_of)


def _waited_for(case: Case, hung: Iterable[Key]) -> frozenset[Key]:
    """Threads of ranks that another rank waits for: not where the waiting starts, but where it leaves the group."""
    rank = case.scene.who.rank
    return frozenset(
        key
        for seed in hung
        if rank(seed[0]) is not None
        for key in case.judged.chain(seed)
        if key[0] != seed[0] and rank(key[0]) is not None
    )


def _cycle_on(judged: Judged, chain: Sequence[Key]) -> tuple[Key, ...]:
    for cycle in judged.cycles:
        if chain[-1] in cycle:
            return cycle
    return ()


def _exit_or(case: Case, seed: Key, chain: Sequence[Key], lead: int, end: Fate) -> Kind:
    if end is Fate.GONE and chain[lead] not in case.waits:
        if chain[lead][0] < 0 and not _had_come(case, seed):
            return Kind.RENDEZVOUS_MISSING_RANK
        return exit_cause(case.scene, chain[lead][0])
    return cause_of(case.scene, case.waits, chain, lead, end)


def _sure(case: Case, chain: Sequence[Key], end: Fate) -> Confidence:
    confidence = confidence_of(case.waits, chain, (), end)
    # Where nobody knows that it failed, it may have done its part before it ended.
    unrecorded = end is Fate.GONE and not failure_recorded(case.scene, chain[-1])
    is_group = any(key in case.waits and case.waits[key].kind in GROUP_KINDS for key in chain)
    # Whose a key of the store is, nothing records.
    store = any(key in case.waits and case.waits[key].kind is WaitKind.RENDEZVOUS for key in chain)
    guessed = (unrecorded and is_group) or (store and end is Fate.GONE)
    return Confidence.LIKELY if guessed and confidence is Confidence.PROVEN else confidence


def _had_come(case: Case, seed: Key) -> bool:
    """Whether the ranks without a process were there once: they left zombies, or the group had come together."""
    wait = case.waits[seed]
    if case.scene.who.ended or wait.kind is not WaitKind.RENDEZVOUS:
        return True
    opening = wait.call is not None and wait.call.meaning is not Meaning.STORE
    return not opening and groups_of(case.scene, seed[0]) > 0


def _deadlock(case: Case, chain: Sequence[Key], cycle: tuple[Key, ...], hung: Sequence[Key]) -> Finding:
    waits = case.waits
    cause = cause_of_cycle([waits[key] for key in cycle])
    symptom = symptom_of(case.scene, waits, chain, cycle)
    stuck = _held_fast(case, cycle)
    confidence = (
        Confidence.POSSIBLE if is_young(case, stuck) else confidence_of(waits, chain, stuck, Fate.CYCLE)
    )
    others = _other_cycles(case, cycle, confidence)
    caught = {key for one in (cycle, *others) for key in one}
    guessed = {
        key
        for one in (cycle, *others)
        for before, key in zip((one[-1], *one), one, strict=False)
        if waits[before].thread_guessed or is_whole(case, one)
    }
    named = tuple(
        replace(name_of(case, key, Part.PARTY), whole=key in guessed)
        for key in sorted(caught, key=case.order)
    )
    # Who of a process is a party and who a victim is not known where any of its threads may have the lock.
    guesses = {key[0] for key in guessed}
    either = {key for one in (cycle, *others) for key in _held_fast(case, one) if key[0] in guesses}
    leading = case.judged.leading_to(caught)
    ranks = {who.key[0] for who in named if who.key is not None and who.rank is not None}
    return Finding(
        state=State.HUNG,
        symptom=symptom,
        cause=cause,
        confidence=confidence,
        named=named,
        victims=tuple(
            key for key in hung if key not in caught | either and key[0] not in ranks and key in leading
        ),
        chain=tuple(chain),
        cycle=cycle,
        other_cycles=others,
        settled=True,
    )


def _held_fast(case: Case, cycle: tuple[Key, ...]) -> tuple[Key, ...]:
    """A cycle, with all threads that must be stuck as well, whichever thread of a process has the lock."""
    waits = case.waits
    found = dict.fromkeys(threads_of_cycle(case, cycle))
    todo = list(found)
    while todo:
        key = todo.pop()
        after = case.judged.outcomes[key].via
        # Who stands for all of a process is followed by himself.
        every = any_thread(waits[key]) or after == key
        ways = waits[key].targets if every else (after,) if after is not None else ()
        for way in ways:
            if way not in found and way in waits:
                found[way] = None
                todo.append(way)
    return tuple(found)


def _other_cycles(case: Case, cycle: tuple[Key, ...], confidence: Confidence) -> tuple[tuple[Key, ...], ...]:
    """Deadlocks apart from the one that is told, of threads with work of their own, and no less sure than it is."""
    return tuple(
        other
        for other in case.judged.cycles
        if other != cycle
        and all(case.waits[key].service is None and case.waits[key].kind not in GROUP_KINDS for key in other)
        and not weaker(confidence_of(case.waits, other, _held_fast(case, other), Fate.CYCLE), confidence)
        and (confidence is Confidence.POSSIBLE or not is_young(case, other))
    )


def _own_part(case: Case, hung: Sequence[Key], chain: tuple[Key, ...]) -> Finding:
    """A thread waits in a collective for what it is itself to do for another rank of its process."""
    named = (name_of(case, chain[0], Part.CULPRIT),)
    return Finding(
        state=State.HUNG,
        symptom=Kind.COLLECTIVE_MISSING_RANK,
        cause=Kind.COLLECTIVE_MISSING_RANK,
        confidence=confidence_of(case.waits, chain, chain, Fate.CYCLE),
        named=named,
        victims=victims_of(case, hung, named, chain),
        chain=chain,
    )


def _parted(case: Case, hung: Sequence[Key], cycle: tuple[Key, ...], parted: Kind | None) -> Finding:
    """The group waits for itself: all are named, nobody is singled out."""
    kinds = {case.waits[key].kind for key in cycle}
    kind = cause_of_cycle([case.waits[key] for key in cycle])
    known = all(case.waits[key].group is not None for key in cycle)
    if WaitKind.COLLECTIVE in kinds and parted is not None and not known:
        kind = parted
    mismatch = kind in MISMATCHES
    caught = _caught(case, hung, cycle, mismatch=mismatch) if known else one_a_process(hung)
    ranks = {key[0] for key in caught}
    chain = cycle if not mismatch else case.judged.chain(hung[0])
    return Finding(
        state=State.HUNG,
        symptom=kind,
        cause=kind,
        confidence=Confidence.POSSIBLE
        if kind is Kind.COLLECTIVE_GROUP_CYCLE and not known
        else Confidence.LIKELY,
        named=tuple(name_of(case, key, Part.PARTY) for key in caught),
        victims=tuple(key for key in one_a_process(hung) if key[0] not in ranks),
        chain=chain,
        cycle=() if mismatch else cycle,
        diverged_at=_divergence(case, caught) if WaitKind.COLLECTIVE in kinds else None,
    )


def _caught(case: Case, hung: Sequence[Key], cycle: tuple[Key, ...], *, mismatch: bool) -> list[Key]:
    """Who is a party: all who asked for something in the operation they differ about, or who wait for each other."""
    if mismatch:
        told = {case.waits[key].object.collective for key in cycle}
        return one_a_process(key for key in hung if case.waits[key].object.collective in told)

    def edges(key: Key) -> tuple[Key, ...]:
        return case.waits[key].targets if key in case.waits else ()

    knot = frozenset(components(cycle[:1], edges)[-1])  # the first one's own comes last
    return one_a_process(key for key in hung if key in knot)


def _divergence(case: Case, keys: Iterable[Key]) -> Divergence | None:
    """The innermost frame that all ranks are in, in whatever line of it, and what each side does from there."""
    stacks = {}
    for key in one_a_process(keys):
        rank = case.scene.who.rank(key[0])
        sample = case.scene.thread(key)
        if rank is not None and sample is not None:
            stacks[rank] = [frame for frame in reversed(sample.frames) if _tells(frame)]
    if len(stacks) < 2 or not all(stacks.values()):
        return None
    depth = 0
    for frames in zip(*stacks.values(), strict=False):
        if len({(frame.function, frame.file) for frame in frames}) > 1:
            break
        depth += 1
        if len({frame.line for frame in frames}) > 1:
            break
    if depth == 0:
        return None
    last = [stack[depth - 1] for stack in stacks.values()]
    in_lines = len({frame.line for frame in last}) > 1
    common = replace(last[0], line=None) if in_lines else last[0]
    sides: dict[Frame, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        frame = stack[depth - 1 if in_lines else min(depth, len(stack) - 1)]
        sides.setdefault(frame, []).append(rank)
    if len(sides) < 2:
        return None
    return Divergence(
        common=common,
        sides=tuple(Side(ranks=tuple(ranks), frame=frame) for frame, ranks in sides.items()),
    )


def _tells(frame: Frame) -> bool:
    """A frame of Python that is not the wrapper which c10d puts around each of its calls."""
    return frame.kind is FrameKind.PYTHON and not path_has(frame.file, "torch/distributed/c10d_logger.py")
