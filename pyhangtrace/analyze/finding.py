"""The verdict before it is put into words, and who is named in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing, awaits_key
from pyhangtrace.analyze.calls import RINGS
from pyhangtrace.analyze.collectives import Matched
from pyhangtrace.analyze.fates import Fate, Judged
from pyhangtrace.analyze.progress import STILL
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, Part, Role, State, WaitKind
from pyhangtrace.model.report import Divergence

# Processes that work for a rank and are named after it.
_HELPERS = frozenset({Role.OUTSIDER, Role.COMPILER, Role.DATA_WORKER})

_GETS_ON = frozenset({Fate.MOVING, Fate.BUSY, Fate.SHORT})

# Nobody alive can be blamed: those who wait are named as parties.
NOBODY = frozenset({Kind.FILE_LOCK_STALE, Kind.LOCK_HANDOFF_LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Somebody the verdict names; `key` is None for a rank without a process. `whole`: the process, as nothing
    records which of its threads it is.
    """

    key: Key | None
    part: Part
    rank: int | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict before it is put into words. `settled` says that more time would not change it."""

    state: State
    symptom: Kind | None = None
    cause: Kind | None = None
    confidence: Confidence = Confidence.POSSIBLE
    named: tuple[Named, ...] = ()
    victims: tuple[Key, ...] = ()
    chain: tuple[Key, ...] = ()
    cycle: tuple[Key, ...] = ()
    other_cycles: tuple[tuple[Key, ...], ...] = ()  # as sure as the first, and apart from it
    diverged_at: Divergence | None = None
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that is known when the verdict is made."""

    scene: Scene
    matched: Matched
    judged: Judged

    @property
    def waits(self) -> Mapping[Key, Blocked]:
        """Waits of all threads."""
        return self.matched.waits

    def order(self, key: Key) -> tuple[int, int, int]:
        """Ranks in order, then everybody else by pid and tid."""
        rank = self.scene.who.rank(key[0])
        return (rank if rank is not None else 1 << 30, *key)


def is_whole(case: Case, cycle: Sequence[Key]) -> bool:
    """Whether it is one thread in place of all of its process, of which nothing says which of them are in a circle."""
    return len(cycle) == 1 and cycle[0] in case.judged.whole


def threads_of_cycle(case: Case, cycle: Sequence[Key]) -> tuple[Key, ...]:
    """Its members, or all that may be in it."""
    return case.judged.whole[cycle[0]] if is_whole(case, cycle) else tuple(cycle)


def name_of(case: Case, key: Key, part: Part) -> Named:
    """A thread as the verdict names it; a rank without a process is absent."""
    if key[0] < 0:
        return Named(key=None, part=Part.ABSENT, rank=-1 - key[0])
    rank = case.scene.who.rank(key[0])
    if rank is None and case.scene.exited(key[0]) and len(case.scene.who.ranks_missing) == 1:
        rank = case.scene.who.ranks_missing[0]
    return Named(key=key, part=part, rank=rank)


def named_for(case: Case, chain: Sequence[Key], lead: int, cause: Kind) -> tuple[Named, ...]:
    """Who is named for a chain: the rank where the waiting leaves the group, then who a person must act on."""
    after = list(range(max(lead, 1), len(chain))) or [lead]
    own = [index for index in range(lead, len(chain)) if _is_group(case, chain[0], chain[index])]
    first = own[-1] if own else after[0]
    if first == 0 and len(chain) > 1:
        first = after[0]
    process = chain[first][0]
    while first + 1 < len(chain) and chain[first + 1][0] == process:
        first += 1
    part = Part.PARTY if cause in NOBODY or awaits_key(case.waits.get(chain[-1])) else Part.CULPRIT
    named = [replace(name_of(case, chain[first], part), whole=_is_guessed(case, chain, first))]
    end = chain[-1]
    if end[0] != process and end[0] > 0:
        whole = _is_guessed(case, chain, len(chain) - 1)
        named.append(replace(name_of(case, end, Part.CULPRIT), whole=whole))
    return tuple(named)


def _is_guessed(case: Case, chain: Sequence[Key], index: int) -> bool:
    """Whether the chain came to the process of this thread by a wait that does not say for which of its threads."""
    process = chain[index][0]
    while index > 0 and chain[index][0] == process:
        index -= 1
        wait = case.waits.get(chain[index])
        if wait is not None and wait.thread_guessed:
            return True
    return False


def _is_group(case: Case, seed: Key, key: Key) -> bool:
    if case.scene.who.pid_of_rank:
        return case.scene.who.rank(key[0]) is not None
    process = case.scene.processes.get(key[0])
    first = case.scene.processes.get(seed[0])
    if process is not None and first is not None and case.waits[seed].kind in GROUP_KINDS:
        # Without ranks the members of a group are children of one parent; what they started works for them.
        return process.ppid == first.ppid
    return process is not None and process.role not in _HELPERS


def other_missing(case: Case, seed: Key, chain: Sequence[Key], named: Sequence[Named]) -> tuple[Named, ...]:
    """Further ranks that are missing for a reason of their own, to any operation of the group that the chain passes."""
    if case.waits[seed].kind not in GROUP_KINDS:
        return ()
    found: list[Named] = []
    known = {who.key[0] for who in named if who.key is not None} | {key[0] for key in chain}
    passed = [
        wait
        for key in chain[1:]
        if (wait := case.waits.get(key)) is not None and wait.kind in GROUP_KINDS and wait.edge is Edge.ALL
    ]
    for target in dict.fromkeys(target for wait in (case.waits[seed], *passed) for target in wait.targets):
        fate = case.judged.fate(target)
        if target in chain or target[0] in known or not (fate.hung or fate is Fate.BUSY):
            continue
        path = case.judged.chain(target)
        if any(key[0] in known for key in path) or any(
            key in case.waits and case.waits[key].kind in GROUP_KINDS for key in path
        ):
            continue
        (named_one, *_) = named_for(case, (seed, *path), 1, Kind.UNKNOWN)
        if fate is Fate.BUSY and case.judged.fate(seed).hung:
            # Who works may come yet, or spin until the one comes that hangs.
            named_one = replace(named_one, part=Part.PARTY)
        found.append(named_one)
        known.add(target[0])
    return tuple(found)


def victims_of(
    case: Case, hung: Iterable[Key], named: Sequence[Named], chain: Sequence[Key]
) -> tuple[Key, ...]:
    """Those whose chain leads to who is named."""
    guilty = {who.key for who in named}
    guilty_ranks = {who.key[0] for who in named if who.key is not None and who.rank is not None}
    goals = {who.key if who.key is not None else chain[-1] for who in named}
    leading = case.judged.leading_to({*goals, chain[-1]})
    found = [
        key
        for key in hung
        if key in leading and key != chain[-1] and key not in guilty and key[0] not in guilty_ranks
    ]
    # A rank that is missing since it waits for who is named, for a lock of theirs, is a victim as well.
    kept = {key[0] for key in found} | guilty_ranks | {key[0] for key in guilty if key is not None}
    between = [
        key
        for key in chain[1:-1]
        if key in case.waits and key[0] not in kept and case.scene.who.rank(key[0]) is not None
    ]
    found += one_a_process(between)
    beside = _behind(case, guilty_ranks, kept | {key[0] for key in between})
    engines = [key for key in leading if _awaits_answer(case, key) and key != chain[-1] and key not in guilty]
    beside += one_a_process(sorted({*engines} - {*found, *beside, *between}, key=case.order))
    return tuple(sorted((*found, *beside), key=case.order) if between or beside else found)


def _awaits_answer(case: Case, key: Key) -> bool:
    """Of a process that gives ranks their work: it waits for what one of them is to say.

    That another thread there may answer as well counts for nothing beside a hang.
    """
    wait, process = case.waits.get(key), case.scene.processes.get(key[0])
    if wait is None or process is None or key[0] != key[1] or case.scene.who.rank(key[0]) is not None:
        return False
    ring = wait.call is not None and wait.call.meaning in RINGS
    firm = wait.standing is Standing.FIRM and wait.progress in STILL
    return firm and (ring or process.role is Role.ENGINE)


def _behind(case: Case, guilty: Collection[int], known: Collection[int]) -> list[Key]:
    """Further ranks that wait for who is named, or for one who does, whatever way: in another group, for a file lock.

    Each of these waits alone may be healthy, as for a command of a rank that serves; with a hang there it is none.
    """
    found: dict[int, Key] = {}
    held = set(known)
    grown = bool(guilty)
    while grown:
        grown = False
        for key in sorted(case.waits, key=case.order):
            wait = case.waits[key]
            if key[0] in held or wait.service is not None or case.scene.who.rank(key[0]) is None:
                continue
            if wait.progress not in STILL or case.judged.fate(key) in _GETS_ON:
                continue
            if wait.kind in GROUP_KINDS:
                met = [target[0] in held for target in wait.targets]
                follows = any(met) if wait.edge is Edge.ALL else bool(met) and all(met)
            else:
                follows = (
                    wait.kind is WaitKind.FILE_LOCK and wait.holder is not None and wait.holder.pid in held
                )
            if follows:
                found[key[0]] = key
                held.add(key[0])
                grown = True
    return list(found.values())


def one_a_process(keys: Iterable[Key]) -> list[Key]:
    """The first thread of each process."""
    seen: dict[int, Key] = {}
    for key in keys:
        seen.setdefault(key[0], key)
    return list(seen.values())
