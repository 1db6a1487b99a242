"""Verdicts on programs that are not hung: busy, late, idle, or not decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing, weakest
from pyhangtrace.analyze.calls import Meaning, python_frames
from pyhangtrace.analyze.causes import cause_of, compiler_at_end, confidence_of, lead_of, symptom_of
from pyhangtrace.analyze.fates import Fate
from pyhangtrace.analyze.finding import (
    Case,
    Finding,
    name_of,
    named_for,
    one_a_process,
    other_missing,
    victims_of,
)
from pyhangtrace.analyze.orders import awaiting_answers, awaits_orders, gets_results
from pyhangtrace.analyze.outside import keeps_time
from pyhangtrace.analyze.progress import GOES_ON, SETTLED_S, Progress
from pyhangtrace.analyze.readings import read
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.states import throttled_share
from pyhangtrace.analyze.unseen import tells
from pyhangtrace.model.kinds import Confidence, Edge, Kind, Part, Role, State, WaitKind
from pyhangtrace.model.programs import is_shell
from pyhangtrace.model.threads import ThreadSample

# Shorter naps than this are how loops poll; who is that late is not late in particular.
_STRAGGLER_S = 1.0

# Of the time: a quota that bites now and then is how quotas work.
_MOSTLY = 0.5

_MOVING_SHARE = 0.02

# Longer ones are no pauses between two questions.
LONGEST_NAP_S = 30.0

# Waits for what somebody has or owes, as far as it is recorded who.
_OF_SOMEBODY = frozenset(
    {
        WaitKind.MUTEX,
        WaitKind.RWLOCK,
        WaitKind.ONCE,
        WaitKind.PYTHON_LOCK,
        WaitKind.GIL,
        WaitKind.IMPORT_LOCK,
        WaitKind.FILE_LOCK,
        WaitKind.LOCK_FILE,
        WaitKind.SOCKET,
    }
)

# Locks of one process, of which nobody keeps the others out while he waits for work.
_KEPT_OUT = frozenset({WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK})

# Waits for somebody to come to an end, or to a place where the others are already.
_FOR_THE_END = frozenset(
    {
        WaitKind.JOIN,
        WaitKind.CHILD,
        WaitKind.BARRIER,
        WaitKind.CONDITION,
        WaitKind.SEMAPHORE,
        WaitKind.QUEUE,
        WaitKind.ONCE,
    }
)

# How much earlier than a nap the waiting for it may have begun.
_BEFORE_THE_NAP_S = 1.0


def busy(case: Case, found: Sequence[Key]) -> Finding | None:
    """Somebody works while the others wait."""
    found = [key for key in found if not (awaits_orders(case, key) or gets_results(case, key))]
    found = found or awaiting_answers(case)
    if not found:
        return None
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


def late(case: Case, found: Sequence[Key]) -> Finding | None:
    """Somebody moves, and those who wait for it do not."""
    found = [key for key in found if len(case.judged.chain(key)) > 1]
    if not found:
        return None
    seed = found[0]
    chain = case.judged.chain(seed)
    end = chain[-1]
    if case.waits[seed].kind not in GROUP_KINDS and not _worth_naming(case, seed, end):
        return None
    pid = end[0]
    share = sum(case.scene.cpu_share(other) for other in (pid, *case.scene.descendants(pid)))
    if share >= 0.5 or compiler_at_end(case.scene, chain) is not None:
        return _straggling(case, State.BUSY, found, chain, Fate.MOVING)
    if not _waits_for_a_step(case.waits[seed]):
        return None
    if case.scene.evidence.window_s < SETTLED_S and not _waited_long(case, found):
        return Finding(state=State.RUNNING, chain=chain)
    return _straggling(case, State.SLOW, found, chain, Fate.MOVING)


def _waits_for_a_step(wait: Blocked) -> bool:
    """Somebody waits for what another one is to do next; who waits for a child or a thread to end is in no hurry."""
    if wait.cause is Kind.IPC_PIPE_FULL:
        return bool(wait.targets)
    return wait.kind in GROUP_KINDS or (wait.kind in _OF_SOMEBODY and wait.holder is not None)


def _waits_for_a_nap(case: Case, key: Key) -> bool:
    """Somebody waits for a thread, a child, or a piece of work to end that has napped all the while.

    One that has napped before and naps again does its rounds, and whoever waits for its end is in no hurry.
    """
    wait = case.waits[key]
    chain = case.judged.chain(key)
    end = case.waits.get(chain[-1])
    if wait.kind not in _FOR_THE_END or end is None:
        return False
    if any(_guesses(case.waits[each]) or _is_nap_of_shell(case, each) for each in chain[:-1]):
        return False
    napped, waited = end.since_s, wait.since_s
    return napped is not None and waited is not None and waited <= napped + _BEFORE_THE_NAP_S


def _guesses(wait: Blocked) -> bool:
    """It waits for what any of several threads may do: which of them is to, is not known."""
    return wait.standing is not Standing.FIRM or (wait.edge is Edge.ANY and len(wait.targets) > 1)


def _is_nap_of_shell(case: Case, key: Key) -> bool:
    """A shell waits for a command that does nothing but sleep, which is how shells sleep themselves."""
    process = case.scene.processes.get(key[0])
    wait = case.waits[key]
    return process is not None and is_shell(process.comm) and wait.kind is WaitKind.CHILD


def _waited_long(case: Case, found: Sequence[Key]) -> bool:
    return any(_waited_s(case, key) >= SETTLED_S for key in found)


def _waited_s(case: Case, key: Key) -> float:
    """For how long at the least; of one that looks at the clock again and again, as far as it was seen."""
    wait = case.waits[key]
    seen = case.scene.evidence.window_s if wait.progress is Progress.REARMED else 0.0
    return wait.since_s if wait.since_s is not None else seen


def short(case: Case, found: Sequence[Key]) -> Finding | None:
    """A timer that ends soon keeps the others waiting."""
    found = [key for key in found if len(case.judged.chain(key)) > 1]
    found = [key for key in found if _waits_for_a_step(case.waits[key]) or _waits_for_a_nap(case, key)]
    found = [key for key in found if not _waits_aside(case, key)]
    if not found:
        return None
    seed = found[0]
    chain = case.judged.chain(seed)
    in_group = case.waits[seed].kind in GROUP_KINDS
    nap = _nap(case, chain[-1])
    if not in_group and nap < _STRAGGLER_S:
        kept = [key for key in found if _is_kept_out(case, key)]
        settled = [key for key in kept if (case.waits[key].since_s or 0.0) >= SETTLED_S]
        if settled:
            return undecided(case, settled)
        # It may be let in yet.
        looks_on = kept and case.scene.evidence.window_s < SETTLED_S
        return Finding(state=State.RUNNING, chain=case.judged.chain(kept[0])) if looks_on else None
    if (nap < _STRAGGLER_S or not in_group) and not _waited_long(case, found):
        # Naps like these are how loops poll: nobody is late yet.
        return Finding(state=State.RUNNING, chain=chain)
    end = case.waits.get(chain[-1])
    if end is not None and end.progress is Progress.REARMED and (case.waits[seed].since_s or 0.0) > 2 * nap:
        # It naps again and again at one place: it looks for something, and what that is does not show.
        return undecided(case, [seed]) if in_group else None
    finding = _straggling(case, State.SLOW, found, chain, Fate.SHORT)
    if case.waits[seed].kind is WaitKind.SOCKET:
        # Who sends now and then is late only if an answer is due, and that does not show.
        finding = replace(finding, confidence=Confidence.POSSIBLE)
    return finding


def _waits_aside(case: Case, key: Key) -> bool:
    """A thread that is there to wait for a child, while the first one of its process listens to the world."""
    first = case.scene.threads_of(key[0])[0]
    return key != first and case.waits[key].kind is WaitKind.CHILD and first in case.judged.listening


def _is_kept_out(case: Case, key: Key) -> bool:
    """Behind a lock of somebody who naps again and again: he looks for something, and what that is does not show."""
    wait = case.waits[key]
    if wait.kind not in _KEPT_OUT or wait.progress is not Progress.UNMOVED:
        return False
    chain = case.judged.chain(key)
    # The lock was kept over many of these naps.
    return wait.holder is not None and (wait.since_s or 0.0) > 2 * _nap(case, chain[-1])


def _straggling(case: Case, state: State, found: Sequence[Key], chain: tuple[Key, ...], end: Fate) -> Finding:
    lead = lead_of(case.scene, case.waits, chain)
    if lead is None:
        return Finding(state=State.RUNNING, confidence=Confidence.POSSIBLE)
    cause = cause_of(case.scene, case.waits, chain, lead, end)
    if end is Fate.SHORT and _is_round(case, chain):
        # They wait for each other until one's time is over: nobody is singled out.
        named = [name_of(case, key, Part.PARTY) for key in sorted(chain, key=case.order)]
    else:
        named = list(named_for(case, chain, lead, cause))
    named += other_missing(case, chain[0], chain, named)
    compiler = compiler_at_end(case.scene, chain)
    if compiler is not None and compiler not in {who.key[0] for who in named if who.key}:
        named.append(name_of(case, (compiler, compiler), Part.CULPRIT))
    confidence = confidence_of(case.waits, chain, (), end)
    if any(key in case.waits and _guesses(case.waits[key]) for key in chain[:-1]):
        # That one of several who may end a wait gets on does not show that it is the one who will.
        confidence = weakest(confidence, Confidence.LIKELY)
    return Finding(
        state=state,
        symptom=symptom_of(case.scene, case.waits, chain),
        cause=cause,
        confidence=confidence,
        named=tuple(named),
        victims=victims_of(case, found, named, chain),
        chain=chain,
    )


def _is_round(case: Case, chain: Sequence[Key]) -> bool:
    """Whether the last of a chain waits, until its time is over, for the first."""
    return chain[-1] in case.judged.clocked and chain[0] in case.waits[chain[-1]].targets


def straggler(case: Case) -> Finding | None:
    """Everything moves, but whenever one looks the same rank is in a nap or computes, and all others wait for it."""
    looks = case.scene.evidence.looks
    ranks = set(case.scene.who.pid_of_rank)
    if len(ranks) < 2 or looks[-1].at_s - looks[0].at_s < _STRAGGLER_S:
        return None
    late: list[int] = []
    in_calls = [
        {(sample.pid, sample.tid) for sample in look.threads if _in_collective(sample)} for look in looks
    ]
    called = set().union(*in_calls)
    callers, calling = {tid for _, tid in called}, {pid for pid, _ in called}
    for look, in_call in zip(looks, in_calls, strict=True):
        inside = {rank for pid, _ in in_call if (rank := case.scene.who.rank(pid)) is not None}
        shown = {
            rank
            for sample in look.threads
            if (rank := case.scene.who.rank(sample.pid)) is not None
            and (sample.tid in callers or sample.pid not in calling)
            and tells(sample, native=True)
        }
        # Of who is met awake it may not show where; somebody else is late then only if that is seen.
        outside = ranks - inside if len(ranks - inside) == 1 else (ranks - inside) & shown
        if len(outside) > 1:
            return None
        late.extend(outside)
    # All inside for a moment is a step that just ends.
    if len(set(late)) != 1 or len(late) < max(2, len(looks) * 2 // 3):
        return None
    rank = late[0]
    pid = case.scene.who.pid_of_rank[rank]
    waited = _waited_for_long(case, rank)
    for key in case.scene.threads_of(pid):
        wait = case.waits.get(key)
        # One nap all the while is no habit.
        naps = wait is not None and wait.standing is Standing.TIMER and wait.progress is not Progress.UNMOVED
        naps = naps and _nap(case, key) >= _STRAGGLER_S
        works = waited and wait is not None and wait.standing is Standing.RUNNING
        if wait is not None and (naps or works):
            victims = tuple(
                other
                for other, blocked in sorted(case.waits.items(), key=lambda item: case.order(item[0]))
                if blocked.kind is WaitKind.COLLECTIVE and other[0] != pid
            )
            if not victims:
                return None
            return Finding(
                state=State.BUSY if works else State.SLOW,
                symptom=Kind.COLLECTIVE_MISSING_RANK,
                cause=wait.cause,
                confidence=Confidence.LIKELY,
                named=(name_of(case, key, Part.CULPRIT),),
                victims=victims,
                chain=(victims[0], key),
            )
    return None


def _waited_for_long(case: Case, rank: int) -> bool:
    """Whether all other ranks had waited for a time that matters while it was at work: asleep, in one of the looks, or
    while no message of MPI came to any, from one look to another.
    """
    main = case.scene.who.pid_of_rank[rank]
    others = {pid for each, pid in case.scene.who.pid_of_rank.items() if each != rank}
    calls = (wait.call for wait in case.waits.values() if wait.key[0] in others)
    in_mpi = any(call is not None and call.backend == "mpi" for call in calls)
    since: tuple[dict[int, int | None], float] | None = None
    for look in case.scene.evidence.looks:
        at_work = any(
            # Where it is must be seen: one that is met awake may be in the operation, too.
            sample.pid == main and sample.running and tells(sample, native=in_mpi)
            for sample in look.threads
        )
        if not at_work:
            since = None
            continue
        asleep = {sample.pid: sample.asleep_for_s or 0.0 for sample in look.threads if _in_collective(sample)}
        if others <= asleep.keys() and min(asleep[pid] for pid in others) >= _STRAGGLER_S:
            return True
        messages = {facts.pid: facts.messages for facts in look.mpi}
        if None in messages.values() or not others <= messages.keys():
            since = None
        elif since is None or since[0] != messages:
            since = (messages, look.at_s)
        elif look.at_s - since[1] >= _STRAGGLER_S:
            return True
    return False


def _in_collective(sample: ThreadSample) -> bool:
    call = read(sample.frames).rule
    return call is not None and call.meaning is Meaning.COLLECTIVE


def _nap(case: Case, key: Key) -> float:
    """How long a thread sleeps at a time: what was asked for, or at least what is left of it."""
    sample = case.scene.thread(key)
    if sample is None:
        return 0.0
    return max(sample.timeout_s or 0.0, sample.remaining_s or 0.0)


def undecided(case: Case, keys: Sequence[Key]) -> Finding:
    """Waits of the group whose end is not known."""
    seed = keys[0]
    return Finding(
        state=State.UNKNOWN,
        symptom=symptom_of(case.scene, case.waits, (seed,)),
        cause=Kind.UNKNOWN,
        victims=tuple(one_a_process(keys)),
        chain=case.judged.chain(seed),
    )


def throttled(case: Case) -> Finding | None:
    """Somebody is kept off the CPU by the quota of its control group for most of the time."""
    found = [
        key
        for key in sorted(case.waits, key=case.order)
        if case.waits[key].kind is WaitKind.THROTTLED
        and case.waits[key].service is None
        and case.scene.is_member(key[0])
        and throttled_share(case.scene, key[0]) > _MOSTLY
    ]
    if not found:
        return None
    return Finding(
        state=State.SLOW,
        cause=Kind.CPU_THROTTLED,
        confidence=Confidence.LIKELY,
        named=tuple(name_of(case, key, Part.CULPRIT) for key in one_a_process(found)),
        chain=(found[0],),
    )


def is_idle(case: Case) -> bool:
    """Whether everybody waits for the world outside, or for somebody who does: a connection, input, the clock.

    One that asks again and again for what others have to do, and that was seen elsewhere meanwhile, need not do so; nor
    one of which it could not be read where it naps, or what it polls for.
    """
    found = False
    for key, wait in case.waits.items():
        process = case.scene.processes.get(key[0])
        if process is None or process.role in (Role.OUTSIDER, Role.COMPILER):
            continue
        if (wait.asks and wait.progress in GOES_ON) or _naps_unseen(case, key) or _polls_unseen(wait):
            return False
        if wait.kind is WaitKind.PAGE_FAULT and wait.service is None:
            return False  # in the midst of its work
        well = key in case.judged.lively or keeps_time(wait) or wait.standing is Standing.STOPPED
        well = well and not (wait.service is None and (_lacks_a_party(case, key) or _held_unseen(case, key)))
        found = found or well
        if not well and wait.service is None:
            return False
    return found


def _held_unseen(case: Case, key: Key) -> bool:
    """Whether a lock of a file leads in the end to a process that was not looked at: what that does is not known."""
    if case.waits[key].kind is not WaitKind.FILE_LOCK:
        return False
    end = case.judged.chain(key)[-1]
    return end not in case.waits and end[0] not in case.scene.processes and not case.scene.exited(end[0])


def _lacks_a_party(case: Case, key: Key) -> bool:
    """Whether it is at a barrier, or waits for the end of one that is, or that wants a permit of a semaphore: nobody
    waits there for work, and that somebody beside them does says nothing of those who have not come.
    """
    kind = case.waits[key].kind
    if kind is WaitKind.BARRIER:
        return True
    if kind is not WaitKind.JOIN:
        return False
    passed: set[Key] = set()
    at = key
    while at in case.waits and at not in passed and case.waits[at].standing is Standing.FIRM:
        passed.add(at)
        if len(case.waits[at].targets) != 1:
            return False
        at = case.waits[at].targets[0]
    end = case.waits.get(at)
    return end is not None and end.service is None and end.kind in (WaitKind.BARRIER, WaitKind.SEMAPHORE)


def _polls_unseen(wait: Blocked) -> bool:
    return wait.kind is WaitKind.POLL and wait.standing is Standing.OPAQUE and wait.service is None


def _naps_unseen(case: Case, key: Key) -> bool:
    """Whether a thread naps, and what its loop asks for in between is not known, as that was not read in time."""
    sample = case.scene.thread(key)
    if (
        sample is None
        or case.waits[key].standing is not Standing.TIMER
        or case.waits[key].service is not None
    ):
        return False
    if (sample.timeout_s or 0.0) > LONGEST_NAP_S:
        return False
    told = sample.stack_complete or any(python_frames(sample.frames))
    return sample.nap_unread or (sample.moved and not told)


def movers(case: Case) -> list[Key]:
    """Threads with work of their own that run or moved."""
    found = []
    for key, wait in case.waits.items():
        if wait.service is not None or not case.scene.is_member(key[0]):
            continue
        share = (case.scene.thread_cpu_s(key) or 0.0) / (case.scene.evidence.window_s or 1.0)
        works = wait.progress is Progress.MOVING and share > _MOVING_SHARE
        of_group = wait.progress is Progress.MOVING and wait.kind in GROUP_KINDS
        if wait.progress is Progress.RUNNING or works or of_group:
            found.append(key)
    return found


def may_poll(case: Case, keys: Sequence[Key]) -> bool:
    """Whether those who move may all be ranks that wait for each other and look again and again: none was seen.

    Without a stack nothing tells their calls from work, unless messages are seen to come.
    """
    scene = case.scene
    return all(
        scene.who.rank(key[0]) is not None
        and not scene.mpi_moves(key[0])
        and not any(tells(sample, native=False) for sample in scene.samples[key])
        for key in keys
    )
