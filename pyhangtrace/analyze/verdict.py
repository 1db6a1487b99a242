"""The answer: state, who is named, who waits, and the chain that proves it.

Seeds are waits of the group for its members first, then all other waits of threads with work of their own.
What is proven hung goes before what is busy, slow or idle; what the evidence does not decide stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing
from pyhangtrace.analyze.calls import Meaning, recognise
from pyhangtrace.analyze.causes import (
    busy_compiler,
    cause_of,
    cause_of_cycle,
    confidence_of,
    exit_cause,
    lead_of,
    symptom_of,
)
from pyhangtrace.analyze.collectives import Matched, report_frame
from pyhangtrace.analyze.graph import Fate, Judged
from pyhangtrace.analyze.progress import SETTLED_S, Progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.evidence import ThreadSample
from pyhangtrace.model.kinds import Confidence, Kind, Part, Role, State, WaitKind
from pyhangtrace.model.report import Divergence, Side

# Shorter naps than this are how loops poll; who is that late is not late in particular.
_STRAGGLER_S = 1.0

_MOVING_SHARE = 0.02

# Processes that work for a rank and are named after it.
_HELPERS = frozenset({Role.OUTSIDER, Role.COMPILER, Role.DATA_WORKER})

# Nobody alive can be blamed: those who wait are named as parties.
_NOBODY = frozenset({Kind.FILE_LOCK_STALE, Kind.LOCK_HANDOFF_LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Somebody the verdict names; `key` is None for a rank without a process."""

    key: Key | None
    part: Part
    rank: int | None = None


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


def find(scene: Scene, matched: Matched, judged: Judged) -> Finding:
    """Makes the verdict."""
    case = Case(scene=scene, matched=matched, judged=judged)
    if all(scene.exited(pid) for pid in scene.evidence.job.members) and not matched.waits:
        return Finding(state=State.ENDED, cause=Kind.PEER_EXITED, confidence=Confidence.PROVEN, settled=True)
    group = sorted((key for key, wait in matched.waits.items() if wait.kind in GROUP_KINDS), key=case.order)
    group = [key for key in group if matched.waits[key].service is None]
    others = [
        key for key in sorted(matched.waits, key=case.order) if _has_a_say(case, key) and key not in group
    ]
    for seeds in (group, others):
        hung = [key for key in seeds if judged.fate(key).hung]
        if hung:
            return _hung(case, hung, seeds)
    for seeds in (group, others):
        for fate, make in ((Fate.BUSY, _busy), (Fate.MOVING, _late), (Fate.SHORT, _short)):
            found = [key for key in seeds if judged.fate(key) is fate and _stands(matched.waits[key])]
            if found:
                finding = make(case, found)
                if finding is not None:
                    return finding
    straggler = _straggler(case)
    if straggler is not None:
        return straggler
    undecided = [key for key in group if judged.fate(key) is Fate.UNKNOWN]
    undecided += [
        key
        for key in others
        if matched.waits[key].kind is WaitKind.LOCK_FILE and judged.fate(key) is Fate.UNKNOWN
    ]
    if undecided:
        return _undecided(case, undecided)
    on_gpu = [
        key for key in others if matched.waits[key].kind is WaitKind.GPU and _stands(matched.waits[key])
    ]
    if on_gpu:
        # At work or hung: the host's stacks do not tell.
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN, chain=(on_gpu[0],))
    if not any(sample.syscall is not None or sample.frames or sample.running for sample in _newest(scene)):
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN)
    if _anything_moves(case):
        return Finding(state=State.RUNNING, confidence=Confidence.LIKELY)
    if not _anybody_listens(case):
        # All wait for each other in ways that record nobody: neither a hang that is proven nor an idle program.
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN)
    return Finding(state=State.IDLE, confidence=Confidence.LIKELY)


def _newest(scene: Scene) -> Iterable[ThreadSample]:
    return (samples[-1] for samples in scene.samples.values())


def _stands(wait: Blocked) -> bool:
    return wait.progress in (Progress.UNMOVED, Progress.REARMED, Progress.UNSEEN)


def _has_a_say(case: Case, key: Key) -> bool:
    """A wait that, hung, makes a hang of its own: not a serving thread, not the launcher, not an outsider's."""
    wait = case.waits[key]
    if wait.service is not None or wait.standing in (Standing.TIMER, Standing.RUNNING):
        return False
    process = case.scene.processes.get(key[0])
    if process is None or process.role in (Role.OUTSIDER, Role.COMPILER):
        return False
    if wait.standing is Standing.STOPPED:
        # One that nobody waits for is somebody's business; a whole job that stands still is why it is silent.
        return key == case.scene.threads_of(key[0])[0] and _all_stopped(case)
    strangers = wait.targets and all(
        (other := case.scene.processes.get(target[0])) is None or other.role is Role.OUTSIDER
        for target in wait.targets
    )
    if wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL) and not wait.targets:
        return wait.cause is Kind.IPC_NO_EOF
    if wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL) and strangers:
        return case.judged.fate(key) in (Fate.CYCLE,) or wait.cause is Kind.IPC_PIPE_FULL
    if wait.kind in (WaitKind.IO, WaitKind.PAGE_FAULT):
        return (wait.since_s or 0.0) >= SETTLED_S
    return True


def _all_stopped(case: Case) -> bool:
    return all(
        wait.standing is Standing.STOPPED
        for key, wait in case.waits.items()
        if (process := case.scene.processes.get(key[0])) is not None and process.role is not Role.OUTSIDER
    )


# -- hung ----------------------------------------------------------------------------------------------------


def _hung(case: Case, hung: Sequence[Key], seeds: Sequence[Key]) -> Finding:
    waits, judged = case.waits, case.judged
    seed = _best_seed(case, hung)
    chain = judged.chain(seed)
    cycle = _cycle_on(judged, chain)
    parted = case.matched.parted
    if cycle and all(key in waits and waits[key].kind in GROUP_KINDS for key in cycle):
        return _parted(case, hung, cycle, parted)
    if cycle:
        return _deadlock(case, seed, chain, cycle, hung)
    end = judged.fate(chain[-1])
    lead = lead_of(waits, chain)
    if lead is None:
        # Everybody is inside and nobody is known to be missing: nobody is accused.
        kind = _inside(waits[seed])
        return Finding(
            state=State.UNKNOWN if kind is Kind.RENDEZVOUS_UNREACHABLE else State.HUNG,
            symptom=kind,
            cause=kind,
            named=tuple(_name(case, key, Part.PARTY) for key in _one_a_process(hung)),
            chain=chain,
        )
    cause = _exit_or(case, seed, chain, lead, end)
    if _holder_unknown(case, chain, cause):
        # Who waits is all that is known; who of them is to blame is not.
        same = [chain[-1], *(key for key in hung if key != chain[-1] and _same_trouble(case, key, chain[-1]))]
        named = tuple(_name(case, key, Part.PARTY) for key in sorted(same, key=case.order))
    else:
        named = _named(case, chain, lead, cause)
        named = (*named, *_other_missing(case, seed, chain, named))
    return Finding(
        state=State.HUNG,
        symptom=symptom_of(case.scene, waits, chain) if len(chain) > 1 else None,
        cause=cause,
        confidence=confidence_of(waits, chain, (), end),
        named=named,
        victims=_victims(case, hung, named, chain),
        chain=chain,
        settled=end in (Fate.STOPPED, Fate.GONE),
    )


def _inside(wait: Blocked) -> Kind:
    if wait.kind is WaitKind.RENDEZVOUS:
        return Kind.RENDEZVOUS_UNREACHABLE
    return Kind.P2P_UNMATCHED if wait.kind is WaitKind.P2P else Kind.COLLECTIVE_NONE_COMPLETES


def _holder_unknown(case: Case, chain: Sequence[Key], cause: Kind) -> bool:
    """The end is a wait that nobody alive is recorded for, and no rank stands out by not having come."""
    last = case.waits.get(chain[-1])
    if last is None or last.targets or last.standing is not Standing.FIRM or cause is Kind.IPC_NO_EOF:
        return False
    return not case.scene.who.pid_of_rank and (len(chain) == 1 or cause in (Kind.LOCK_HELD, *_NOBODY))


def _same_trouble(case: Case, key: Key, other: Key) -> bool:
    one, two = case.waits[key], case.waits[other]
    same_object = one.object == two.object or (one.kind is WaitKind.PYTHON_LOCK and key[0] == other[0])
    return one.cause is two.cause and one.kind is two.kind and same_object and not one.targets


def _best_seed(case: Case, hung: Sequence[Key]) -> Key:
    """The victim whose chain is the surest: one that ends in a cycle, a stopped or an exited member first."""

    ends = case.judged.ends()

    def key_of(seed: Key) -> tuple[int, tuple[int, int, int]]:
        sure = case.judged.fate(ends[seed]) in (Fate.CYCLE, Fate.STOPPED, Fate.GONE)
        followed = case.judged.outcomes[seed].via is not None
        return (0 if sure else 1 if followed else 2), case.order(seed)

    return min(hung, key=key_of)


def _cycle_on(judged: Judged, chain: Sequence[Key]) -> tuple[Key, ...]:
    for cycle in judged.cycles:
        if chain[-1] in cycle:
            return cycle
    return ()


def _exit_or(case: Case, seed: Key, chain: Sequence[Key], lead: int, end: Fate) -> Kind:
    if end is Fate.GONE and chain[lead] not in case.waits:
        started = case.waits[seed].kind is not WaitKind.RENDEZVOUS
        if chain[lead][0] < 0 and not started:
            return Kind.RENDEZVOUS_MISSING_RANK
        return exit_cause(case.scene, chain[lead][0])
    return cause_of(case.scene, case.waits, chain, lead, end)


def _name(case: Case, key: Key, part: Part) -> Named:
    if key[0] < 0:
        return Named(key=None, part=Part.ABSENT, rank=-1 - key[0])
    rank = case.scene.who.rank(key[0])
    if rank is None and case.scene.exited(key[0]) and len(case.scene.who.ranks_missing) == 1:
        rank = case.scene.who.ranks_missing[0]
    return Named(key=key, part=part, rank=rank)


def _named(case: Case, chain: Sequence[Key], lead: int, cause: Kind) -> tuple[Named, ...]:
    """Who is named for a chain: the rank where the waiting leaves the group, then who a person must act on."""
    after = list(range(max(lead, 1), len(chain))) or [lead]
    own = [index for index in range(lead, len(chain)) if _is_group(case, chain[index])]
    first = own[-1] if own else after[0]
    if first == 0 and len(chain) > 1:
        first = after[0]
    process = chain[first][0]
    while first + 1 < len(chain) and chain[first + 1][0] == process:
        first += 1
    part = Part.PARTY if cause in _NOBODY else Part.CULPRIT
    named = [_name(case, chain[first], part)]
    end = chain[-1]
    if end[0] != process and end[0] > 0:
        named.append(_name(case, end, Part.CULPRIT))
    return tuple(named)


def _is_group(case: Case, key: Key) -> bool:
    if case.scene.who.pid_of_rank:
        return case.scene.who.rank(key[0]) is not None
    process = case.scene.processes.get(key[0])
    return process is not None and process.role not in _HELPERS


def _other_missing(case: Case, seed: Key, chain: Sequence[Key], named: Sequence[Named]) -> tuple[Named, ...]:
    """Further ranks that are missing for a reason of their own."""
    if case.waits[seed].kind not in GROUP_KINDS:
        return ()
    found: list[Named] = []
    known = {who.key[0] for who in named if who.key is not None} | {key[0] for key in chain}
    for target in case.waits[seed].targets:
        if target in chain or target[0] in known or not case.judged.fate(target).hung:
            continue
        path = case.judged.chain(target)
        if any(key[0] in known for key in path) or any(
            key in case.waits and case.waits[key].kind in GROUP_KINDS for key in path
        ):
            continue
        found.extend(_named(case, (seed, *path), 1, Kind.UNKNOWN)[:1])
        known.add(target[0])
    return tuple(found)


def _victims(
    case: Case, hung: Iterable[Key], named: Sequence[Named], chain: Sequence[Key]
) -> tuple[Key, ...]:
    guilty = {who.key for who in named}
    guilty_ranks = {who.key[0] for who in named if who.key is not None and who.rank is not None}
    goals = {who.key if who.key is not None else chain[-1] for who in named}
    leading = case.judged.leading_to({*goals, chain[-1]})
    return tuple(
        key
        for key in hung
        if key in leading and key != chain[-1] and key not in guilty and key[0] not in guilty_ranks
    )


def _one_a_process(keys: Iterable[Key]) -> list[Key]:
    seen: dict[int, Key] = {}
    for key in keys:
        seen.setdefault(key[0], key)
    return list(seen.values())


def _deadlock(
    case: Case, seed: Key, chain: Sequence[Key], cycle: tuple[Key, ...], hung: Sequence[Key]
) -> Finding:
    waits = case.waits
    cause = cause_of_cycle([waits[key] for key in cycle])
    symptom = symptom_of(case.scene, waits, chain, cycle)
    named = tuple(_name(case, key, Part.PARTY) for key in sorted(cycle, key=case.order))
    leading = case.judged.leading_to(cycle)
    ranks = {who.key[0] for who in named if who.key is not None and who.rank is not None}
    return Finding(
        state=State.HUNG,
        symptom=symptom,
        cause=cause,
        confidence=confidence_of(waits, chain, cycle, Fate.CYCLE),
        named=named,
        victims=tuple(key for key in hung if key not in cycle and key[0] not in ranks and key in leading),
        chain=tuple(chain),
        cycle=cycle,
        settled=True,
    )


def _parted(case: Case, hung: Sequence[Key], cycle: tuple[Key, ...], parted: Kind | None) -> Finding:
    """The group waits for itself: all are named, nobody is singled out."""
    kinds = {case.waits[key].kind for key in cycle}
    kind = cause_of_cycle([case.waits[key] for key in cycle])
    if WaitKind.COLLECTIVE in kinds and parted is not None:
        kind = parted
    mismatch = kind is Kind.COLLECTIVE_OP_MISMATCH
    chain = cycle if not mismatch else case.judged.chain(hung[0])
    return Finding(
        state=State.HUNG,
        symptom=kind,
        cause=kind,
        confidence=Confidence.POSSIBLE if kind is Kind.COLLECTIVE_GROUP_CYCLE else Confidence.LIKELY,
        named=tuple(_name(case, key, Part.PARTY) for key in _one_a_process(hung)),
        chain=chain,
        cycle=() if mismatch else cycle,
        diverged_at=_divergence(case, hung) if WaitKind.COLLECTIVE in kinds else None,
    )


def _divergence(case: Case, keys: Iterable[Key]) -> Divergence | None:
    """Lowest frame common to all ranks, and what each side calls from there."""
    stacks = {}
    for key in _one_a_process(keys):
        rank = case.scene.who.rank(key[0])
        sample = case.scene.thread(key)
        if rank is not None and sample is not None:
            stacks[rank] = [frame for frame in reversed(sample.frames) if frame.kind.value == "python"]
    if len(stacks) < 2 or not all(stacks.values()):
        return None
    depth = 0
    common = None
    shortest = min(len(stack) for stack in stacks.values())
    while depth < shortest:
        here = {(stack[depth].function, stack[depth].file) for stack in stacks.values()}
        if len(here) > 1:
            break
        common = next(iter(stacks.values()))[depth]
        depth += 1
        lines = {stack[depth - 1].line for stack in stacks.values()}
        if len(lines) > 1:
            break
    sides: dict[tuple[str, str | None, int | None], list[int]] = {}
    frames = {}
    for rank, stack in sorted(stacks.items()):
        frame = stack[min(depth, len(stack) - 1)]
        at = stack[depth - 1] if depth else frame
        mark = (frame.function, at.file, at.line)
        sides.setdefault(mark, []).append(rank)
        frames[mark] = frame
    if len(sides) < 2:
        return None
    return Divergence(
        common=report_frame(common),
        sides=tuple(
            Side(ranks=tuple(ranks), frame=report_frame(frames[mark])) for mark, ranks in sides.items()
        ),
    )


# -- not hung ------------------------------------------------------------------------------------------------


def _busy(case: Case, found: Sequence[Key]) -> Finding | None:
    seed = found[0]
    chain = case.judged.chain(seed)
    if len(chain) < 2:
        return None
    wait = case.waits[seed]
    end = chain[-1]
    if wait.kind not in GROUP_KINDS and not _worth_naming(case, seed, end):
        return None
    return _straggling(case, State.BUSY, found, chain, case.judged.fate(end))


def _worth_naming(case: Case, seed: Key, end: Key) -> bool:
    """Inside one process threads wait for each other all the time; a long one is worth a word."""
    return (case.waits[seed].since_s or 0.0) >= SETTLED_S and end in case.waits


def _late(case: Case, found: Sequence[Key]) -> Finding | None:
    """Somebody moves, and those who wait for it do not."""
    seed = found[0]
    chain = case.judged.chain(seed)
    end = chain[-1]
    if len(chain) < 2 or (case.waits[seed].kind not in GROUP_KINDS and not _worth_naming(case, seed, end)):
        return None
    pid = end[0]
    share = sum(case.scene.cpu_share(other) for other in (pid, *case.scene.descendants(pid)))
    if share >= 0.5 or busy_compiler(case.scene, pid) is not None:
        return _straggling(case, State.BUSY, found, chain, Fate.MOVING)
    if case.scene.evidence.window_s < SETTLED_S and not _waited_long(case, found):
        return Finding(state=State.RUNNING, chain=chain)
    return _straggling(case, State.SLOW, found, chain, Fate.MOVING)


def _waited_long(case: Case, found: Sequence[Key]) -> bool:
    return any((case.waits[key].since_s or 0.0) >= SETTLED_S for key in found)


def _short(case: Case, found: Sequence[Key]) -> Finding | None:
    seed = found[0]
    chain = case.judged.chain(seed)
    if len(chain) < 2 or case.waits[seed].kind not in GROUP_KINDS:
        return None
    if _nap(case, chain[-1]) < _STRAGGLER_S and not _waited_long(case, found):
        # Naps like these are how loops poll: nobody is late yet.
        return Finding(state=State.RUNNING, chain=chain)
    return _straggling(case, State.SLOW, found, chain, Fate.SHORT)


def _straggling(case: Case, state: State, found: Sequence[Key], chain: tuple[Key, ...], end: Fate) -> Finding:
    lead = lead_of(case.waits, chain)
    if lead is None:
        return Finding(state=State.RUNNING, confidence=Confidence.POSSIBLE)
    cause = cause_of(case.scene, case.waits, chain, lead, end)
    named = list(_named(case, chain, lead, cause))
    compiler = busy_compiler(case.scene, chain[-1][0])
    if compiler is not None and compiler not in {who.key[0] for who in named if who.key}:
        named.append(_name(case, (compiler, compiler), Part.CULPRIT))
    return Finding(
        state=state,
        symptom=symptom_of(case.scene, case.waits, chain),
        cause=cause,
        confidence=confidence_of(case.waits, chain, (), end),
        named=tuple(named),
        victims=_victims(case, found, named, chain),
        chain=chain,
    )


def _straggler(case: Case) -> Finding | None:
    """Everything moves, but whenever one looks the same rank is in a nap or in a read and all others wait for it."""
    looks = case.scene.evidence.looks
    ranks = set(case.scene.who.pid_of_rank)
    if len(ranks) < 2 or looks[-1].at_s - looks[0].at_s < _STRAGGLER_S:
        return None
    late: list[int] = []
    for look in looks:
        inside = {
            rank
            for sample in look.threads
            if (rank := case.scene.who.rank(sample.pid)) is not None
            and (call := recognise(sample.frames)) is not None
            and call.meaning is Meaning.COLLECTIVE
        }
        outside = ranks - inside
        if len(outside) > 1:
            return None
        late.extend(outside)
    # All inside for a moment is a step that just ends.
    if len(set(late)) != 1 or len(late) < max(2, len(looks) * 2 // 3):
        return None
    rank = late[0]
    pid = case.scene.who.pid_of_rank[rank]
    for key in case.scene.threads_of(pid):
        wait = case.waits.get(key)
        if wait is not None and wait.standing is Standing.TIMER and _nap(case, key) >= _STRAGGLER_S:
            victims = tuple(
                other
                for other, blocked in sorted(case.waits.items(), key=lambda item: case.order(item[0]))
                if blocked.kind is WaitKind.COLLECTIVE and other[0] != pid
            )
            if not victims:
                return None
            return Finding(
                state=State.SLOW,
                symptom=Kind.COLLECTIVE_MISSING_RANK,
                cause=wait.cause,
                confidence=Confidence.LIKELY,
                named=(_name(case, key, Part.CULPRIT),),
                victims=victims,
                chain=(victims[0], key),
            )
    return None


def _nap(case: Case, key: Key) -> float:
    """How long a thread sleeps at a time: what was asked for, or at least what is left of it."""
    sample = case.scene.thread(key)
    if sample is None:
        return 0.0
    return max(sample.timeout_s or 0.0, sample.remaining_s or 0.0)


def _undecided(case: Case, keys: Sequence[Key]) -> Finding:
    seed = keys[0]
    return Finding(
        state=State.UNKNOWN,
        symptom=symptom_of(case.scene, case.waits, (seed,)),
        cause=Kind.UNKNOWN,
        victims=tuple(_one_a_process(keys)),
        chain=case.judged.chain(seed),
    )


def _anybody_listens(case: Case) -> bool:
    """Whether somebody waits for the world outside: a connection, input, a signal, the clock."""
    internal = (
        WaitKind.CONDITION,
        WaitKind.SEMAPHORE,
        WaitKind.BARRIER,
        WaitKind.QUEUE,
        WaitKind.PYTHON_LOCK,
    )
    if not case.waits:
        return False
    for key, wait in case.waits.items():
        process = case.scene.processes.get(key[0])
        if process is None or process.role is Role.OUTSIDER:
            continue
        if wait.kind in (*internal, WaitKind.JOIN, WaitKind.CHILD) and wait.service is None:
            continue
        if wait.standing in (Standing.IDLE, Standing.TIMER, Standing.OPAQUE, Standing.STOPPED):
            return True
        strangers = any(
            (other := case.scene.processes.get(target[0])) is None or other.role is Role.OUTSIDER
            for target in wait.targets
        )
        if strangers or (wait.kind in (WaitKind.SOCKET, WaitKind.IO) and not wait.targets):
            return True
    return False


def _anything_moves(case: Case) -> bool:
    for key, wait in case.waits.items():
        process = case.scene.processes.get(key[0])
        if wait.service is not None or process is None or process.role is Role.OUTSIDER:
            continue
        share = (case.scene.thread_cpu_s(key) or 0.0) / (case.scene.evidence.window_s or 1.0)
        if wait.progress is Progress.RUNNING or (wait.progress is Progress.MOVING and share > _MOVING_SHARE):
            return True
        if wait.progress is Progress.MOVING and wait.kind in GROUP_KINDS:
            return True
    return False
