"""The verdict in one or two sentences, and waits in a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyhangtrace.analyze.blocked import CONNECT, Blocked
from pyhangtrace.analyze.call_sites import call_site, parting, wrapper
from pyhangtrace.analyze.calls import LEFT_EARLY, Meaning, first_own_frame
from pyhangtrace.analyze.finding import Case, Finding, Named, is_whole, one_a_process, threads_of_cycle
from pyhangtrace.analyze.group_waits import STORE
from pyhangtrace.analyze.lock_waits import WORD_NAMES
from pyhangtrace.analyze.phase import phase_of
from pyhangtrace.analyze.process_groups import DEFAULT_GROUP
from pyhangtrace.analyze.python_objects import FUTURE
from pyhangtrace.analyze.retries import is_young, who_tries
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.servers import unread_by
from pyhangtrace.analyze.slow_storage import read_from_disk
from pyhangtrace.analyze.spinning import loop_of
from pyhangtrace.analyze.states import FREEZER
from pyhangtrace.model.kinds import Edge, Kind, Part, SourceState, State, WaitKind
from pyhangtrace.model.logs import SHUTDOWN
from pyhangtrace.model.quantities import size
from pyhangtrace.model.ranks import fold
from pyhangtrace.model.report import ANSWERS, APPEARS, RESULTS

_PLAIN: dict[WaitKind, str] = {
    WaitKind.MUTEX: "a C mutex",
    WaitKind.RWLOCK: "a read-write lock",
    WaitKind.CONDITION: "a condition",
    WaitKind.SEMAPHORE: "a semaphore",
    WaitKind.BARRIER: "a barrier",
    WaitKind.ONCE: "an initialisation",
    WaitKind.GIL: "the GIL",
    WaitKind.PYTHON_LOCK: "a Python lock",
    WaitKind.IMPORT_LOCK: "an import lock",
    WaitKind.JOIN: "the end",
    WaitKind.FILE_LOCK: "a file lock",
    WaitKind.LOCK_FILE: "the lock file",
    WaitKind.PIPE: "a pipe",
    WaitKind.SOCKET: "a socket",
    WaitKind.QUEUE: "a queue",
    WaitKind.CHILD: "a child process",
    WaitKind.POLL: "events",
    WaitKind.IO: "input or output",
    WaitKind.PAGE_FAULT: "a page to be read in",
    WaitKind.GPU: "the GPU",
    WaitKind.THROTTLED: "CPU quota",
    WaitKind.RENDEZVOUS: "the other ranks to join",
}


# What has to happen for a wait to end, and who does it is what nobody records.
ENDED_BY: dict[WaitKind, str] = {
    WaitKind.CONDITION: "notify the condition or set the event",
    WaitKind.SEMAPHORE: "release the semaphore",
    WaitKind.BARRIER: "come to the barrier",
    WaitKind.ONCE: "finish the initialisation",
    WaitKind.QUEUE: "put something into the queue",
    WaitKind.PYTHON_LOCK: "release the lock",
    WaitKind.MUTEX: "unlock the mutex",
    WaitKind.RWLOCK: "unlock the read-write lock",
    WaitKind.PIPE: "write to the pipe or close it",
    WaitKind.SOCKET: "answer on the socket",
    WaitKind.POLL: "make one of the descriptors ready",
    WaitKind.COLLECTIVE: "enter the operation",
    WaitKind.P2P: "make the matching call",
    WaitKind.RENDEZVOUS: "set the key of the store",
}


# By the method of a queue that is waited in.
QUEUE_ENDED_BY = {"put": "take something out of the queue", "join": "finish what is in the queue"}


def ended_by(wait: Blocked) -> str | None:
    """What somebody has to do for a wait to end; None where no rule says."""
    if wait.does is not None:
        return wait.does
    if wait.call is not None and wait.call.meaning is Meaning.RENDEZVOUS:
        return "join"
    if wait.kind is WaitKind.CONDITION and wait.object.name in (FUTURE, WORD_NAMES["future"]):
        return "complete the future"
    if wait.kind is WaitKind.CONDITION and wait.object.name in WORD_NAMES.values():
        return "change the word and wake it"
    if wait.kind is WaitKind.POLL and wait.object.name == "signal":
        return "send the signal"
    if wait.kind is WaitKind.POLL and (wait.object.name or "").startswith(ANSWERS):
        return f"give the {wait.object.name}"
    if wait.kind is WaitKind.PIPE and wait.cause is Kind.IPC_PIPE_FULL:
        return "read from the pipe"
    if wait.kind is WaitKind.QUEUE and wait.call is not None:
        if wait.call.meaning in (Meaning.QUEUE_PUT, Meaning.SHARED_QUEUE_PUT):
            return QUEUE_ENDED_BY["put"]
        return QUEUE_ENDED_BY.get(wait.call.op, ENDED_BY[wait.kind])
    return ENDED_BY.get(wait.kind)


# Deadlocks beside the first one that are told in full.
_MOST_CYCLES = 2
_LONGEST_TITLE = 48
_MOST_TOLD = 3


def duration(seconds: float) -> str:
    """`0.4 s`, `74 s`, `6 min`, `2 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def who(case: Case, key: Key) -> str:
    """`rank 3 (pid 77)`, `pid 9911 (python warmup.py)`; the thread where it is not the main one."""
    if key[0] < 0:
        return f"rank {-1 - key[0]}"
    rank = case.scene.who.rank(key[0])
    process = case.scene.processes.get(key[0])
    title = short_title(process.title or process.comm) if process is not None else ""
    name = (
        f"rank {rank} (pid {key[0]})" if rank is not None else f"pid {key[0]}{f' ({title})' if title else ''}"
    )
    return f"{name}, {thread(case, key)}" if key[1] not in (0, key[0]) else name


def short_title(title: str) -> str:
    """A command line without folders: `python warmup.py --all`."""
    words = [word.rpartition("/")[2] or word for word in title.split()]
    text = " ".join(words)
    return text if len(text) <= _LONGEST_TITLE else f"{text[: _LONGEST_TITLE - 1]}…"


def thread(case: Case, key: Key) -> str:
    """`thread kv-cache-writer (tid 79)`."""
    sample = case.scene.thread(key)
    name = (sample.name or sample.comm) if sample is not None else ""
    return f"thread {name} (tid {key[1]})" if name else f"tid {key[1]}"


def waiting(case: Case, key: Key) -> str:
    """What a thread is in, as a verb phrase."""
    wait = case.waits.get(key)
    over = "has come to the end of its program, and " if wait is not None and wait.over else ""
    return f"{over}{_waiting(case, key, wait)}"


def _waiting(case: Case, key: Key, wait: Blocked | None) -> str:
    if wait is None:
        if case.scene.exited(key[0]) or key[0] < 0:
            return ended(case, key)
        process = case.scene.processes.get(key[0])
        why = f" ({process.problem})" if process is not None and process.problem else ""
        return f"could not be looked at{why}"
    age = f" for {duration(wait.since_s)}" if wait.since_s is not None and wait.since_s >= 1 else ""
    if wait.kind is WaitKind.STOPPED:
        tracer = wait.holder.pid if wait.holder is not None else None
        if wait.object.name == FREEZER:
            return f"is frozen by the control group {wait.object.path}{age}"
        return f"is stopped by its tracer, pid {tracer}{age}" if tracer else f"is stopped by a signal{age}"
    if wait.kind is WaitKind.RUNNING:
        return f"{_at_work(case, key)}{where(case, key)}"
    if wait.kind is WaitKind.TIMER:
        left = f", {duration(wait.lasts_s)} to go" if wait.lasts_s is not None else ""
        return f"sleeps{where(case, key)}{left or age}"
    if wait.kind in (WaitKind.COLLECTIVE, WaitKind.P2P):
        way = "to" if "send" in (wait.object.name or "") else "from"
        peer = f" {way} rank {wait.object.peer_rank}" if wait.object.peer_rank is not None else ""
        group = f" of {wait.group}" if wait.group not in (None, DEFAULT_GROUP) else ""
        by = _wrapped(case, key)
        what = f"{wait.object.name or 'a collective'}{by}{peer}{group}"
        return f"waits in {what}{_called(case, key)}{age}{_note(wait)}"
    thing = _PLAIN.get(wait.kind, wait.kind.value)
    if wait.kind in (WaitKind.POLL, WaitKind.SOCKET) and wait.object.name in ("signal", "connection"):
        thing = f"a {wait.object.name}"
    if wait.kind is WaitKind.POLL and (wait.object.name or "").startswith((ANSWERS, RESULTS)):
        thing = wait.object.name or thing
    if wait.kind is WaitKind.LOCK_FILE and wait.object.name == APPEARS:
        thing = APPEARS
    if wait.kind in (WaitKind.POLL, WaitKind.CONDITION) and wait.cause is Kind.LOCK_CYCLE:
        thing = _knot_of_tasks(wait.object.name or "")
    if wait.kind is WaitKind.JOIN and wait.holder is None:
        thing = "the end of a thread"
    if wait.kind is WaitKind.CONDITION and wait.object.name == FUTURE:
        thing = "the result of a future"
    if wait.kind is WaitKind.CONDITION and wait.object.name in WORD_NAMES.values():
        thing = f"{'an' if wait.object.name == WORD_NAMES['atomic'] else 'a'} {wait.object.name}"
    if (wait.object.name or "").startswith("asyncio."):
        thing = f"an {wait.object.name}"
    if wait.kind is WaitKind.RENDEZVOUS and wait.object.name == CONNECT:
        there = wait.answer or "which it tries to reach"
        thing = f"an answer of the store at {wait.object.path or 'its address'}, {there}"
    if wait.kind is WaitKind.RENDEZVOUS and wait.object.name == STORE:
        thing = _of_store(wait)
    if wait.kind is WaitKind.RENDEZVOUS and wait.object.peer_rank is not None:
        thing = f"rank {wait.object.peer_rank} to join"
    if wait.cause is Kind.WORKER_STUCK:
        thing = _workers(wait)
    if wait.cause is Kind.WORKER_DEAD:
        thing = "a piece of work that none of its workers is at"
    if wait.kind is WaitKind.GPU and wait.object.name is not None:
        thing = f"the GPU, in {wait.object.name}"
    if wait.note is not None:
        return f"waits for {thing}{where(case, key)}{age}{_note(wait)}"
    is_file = wait.kind in (WaitKind.FILE_LOCK, WaitKind.LOCK_FILE)
    path = f" on {wait.object.path}" if wait.kind is WaitKind.FILE_LOCK and wait.object.path else ""
    if is_file and not path and wait.object.path:
        path = f" {wait.object.path}"
    if wait.cause is Kind.IPC_PIPE_FULL:
        return f"writes to a full {wait.kind.value}{_holder(case, wait)}{age}"
    return f"waits for {thing}{path}{_holder(case, wait)}{where(case, key)}{age}"


def _workers(wait: Blocked) -> str:
    """Those of a pool: threads or processes, where that shows."""
    if not wait.targets:
        return "the workers of its pool"
    return (
        "its worker threads" if all(pid == wait.key[0] for pid, _ in wait.targets) else "its worker processes"
    )


def _note(wait: Blocked) -> str:
    return f", while {wait.note}" if wait.note is not None else ""


def _wrapped(case: Case, key: Key) -> str:
    """` (DDP)` where a part of torch makes the call."""
    sample = case.scene.thread(key)
    by = wrapper(sample.frames) if sample is not None else None
    return f" ({by})" if by is not None else ""


def _called(case: Case, key: Key) -> str:
    """` in step (train.py:12)`: the program's own line that calls the operation."""
    sample = case.scene.thread(key)
    frame = call_site(sample.frames) if sample is not None else None
    if frame is None or not frame.file or not frame.line:
        return ""
    return f" in {frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"


def _of_store(wait: Blocked) -> str:
    keys = wait.object.path
    if keys is None:
        return "a key of the store"
    return f"the key{'s' if ', ' in keys else ''} {keys} of the store"


def _knot_of_tasks(tasks: str) -> str:
    """`tasks a, b, which await each other`; of one task alone, itself."""
    alone = "," not in tasks
    return f"{tasks}, which awaits itself" if alone else f"{tasks}, which await each other"


def _at_work(case: Case, key: Key) -> str:
    loop = loop_of(case.scene.samples.get(key, ()))
    if loop is None:
        return "is on the CPU"
    does = "spins" if loop.is_spin else "spins or computes"
    return f"{does} in {loop.function}" if loop.function else does


def ended(case: Case, key: Key) -> str:
    """How a process that is gone came to its end: `has ended with exit code 3`, `was killed by signal 9`."""
    status = case.scene.exit_status(key)
    if status is None:
        return f"is gone{_left_by(case, -1 - key[0])}" if key[0] < 0 else "has ended"
    by = status & 0x7F
    return f"was killed by signal {by}" if by else f"has ended with exit code {status >> 8}"


def _left_by(case: Case, rank: int) -> str:
    """What a rank has forked before it ended: to the others it looks as if the rank were still there."""
    left = [pid for pid, process in sorted(case.scene.processes.items()) if process.forked_from_rank == rank]
    return f", and has left pid {', '.join(map(str, left))}, which it had forked, behind" if left else ""


def _holder(case: Case, wait: Blocked) -> str:
    holder = wait.holder
    if holder is None:
        return ""
    if not holder.alive and wait.cause is Kind.LOCK_AFTER_FORK:
        who = f"thread {holder.tid}" if holder.tid is not None else "a thread"
        return f" that {who} of its parent held when it was forked"
    if not holder.alive and holder.tid is None and holder.pid == wait.key[0]:
        return " whose recorded owner does not exist any more"
    if not holder.alive:
        return f" whose recorded owner {holder.tid or holder.pid} does not exist"
    if wait.kind is WaitKind.CHILD:
        return f" {holder.pid}"
    if wait.kind is WaitKind.JOIN and holder.tid is not None:
        return f" of {thread(case, (holder.pid, holder.tid))}"
    if wait.kind is WaitKind.CONDITION and wait.object.name == FUTURE and holder.tid is not None:
        return f" that {thread(case, (holder.pid, holder.tid))} works on"
    shared = wait.kind is WaitKind.QUEUE and wait.object.path is not None
    if shared or wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL):
        return f" whose other end is with pid {holder.pid}"
    if holder.pid == wait.key[0] and holder.tid is not None:
        runs = wait.kind is WaitKind.ONCE
        if (holder.pid, holder.tid) == wait.key:
            return f" that it {'runs' if runs else 'holds'} itself"
        return f" {'run' if runs else 'held'} by {thread(case, (holder.pid, holder.tid))}"
    return f" held by pid {holder.pid}{_with_sharers(wait)}"


def _with_sharers(wait: Blocked) -> str:
    """Who has a share of the lock as well, and who the same open file, and with it the lock."""
    if wait.kind is not WaitKind.FILE_LOCK:
        return ""
    known = wait.holder.pid if wait.holder is not None else 0
    others = {pid for pid, _ in wait.candidates} - {known}
    shares = others & {pid for pid, _ in wait.targets} if wait.edge is Edge.ALL else set()
    ways = ((" and by pid", shares), (" and, by the same open file, by pid", others - shares))
    return "".join(f"{way} {', '.join(map(str, sorted(pids)))}" for way, pids in ways if pids)


def where(case: Case, key: Key) -> str:
    """` in write_cache (cache.py:12)`: the innermost frame of the program itself, or nothing."""
    sample = case.scene.thread(key)
    frame = first_own_frame(sample.frames) if sample is not None else None
    if frame is None:
        return ""
    file = f" ({frame.file.rpartition('/')[2]}:{frame.line})" if frame.file and frame.line else ""
    return f" in {frame.function}{file}"


# In what the members of a group are together, and of what kind of it not.
_DIFFERS = {
    Kind.COLLECTIVE_SIZE_MISMATCH: ", of different size",
    Kind.COLLECTIVE_ROOT_MISMATCH: ", with different roots",
}


def summary(case: Case, finding: Finding) -> str:
    """The verdict as a person would say it."""
    phase = phase_of(case.scene)
    at = f" Phase: {phase.words}." if phase is not None and finding.named else ""
    return f"{_sentence(case, finding)}{at}"


def _sentence(case: Case, finding: Finding) -> str:
    if finding.state is State.IDLE:
        return "Nothing hangs: everybody waits for work from outside, or for a timer."
    if finding.state is State.ENDED and finding.named and finding.named[0].key is not None:
        key = finding.named[0].key
        return f"{_capital(who(case, key))} {ended(case, key)}, a part of the server."
    if finding.state is State.ENDED:
        mark = next((mark for mark in case.scene.evidence.log_marks if mark.phase == SHUTDOWN), None)
        if mark is not None:
            what = f": {mark.detail}" if mark.detail else ""
            return f"A part of the server has ended, as its own log says{what}. The rest of it ends, too."
        return "The job has ended and nobody waits for it."
    if finding.state is State.RUNNING:
        return "The job moves, and nobody is known to be late."
    if finding.state is State.UNKNOWN:
        return _unknown(case, finding) + _stopped_besides(case, finding)
    of_one = _DIFFERS.get(finding.cause or Kind.UNKNOWN)
    if (
        of_one is not None
        or finding.cause is Kind.COLLECTIVE_OP_MISMATCH
        or (finding.diverged_at is not None and not finding.cycle and finding.cause is not Kind.IDLE)
    ):
        members = "ranks" if case.scene.who.pid_of_rank else "processes"
        what = "one operation" if of_one else "different operations"
        how = of_one or _or_roots(case, finding)
        return (
            f"The {members} wait in {what}{_of_group(case, finding)}{how}: {_operations(case, finding)}."
            f" None of them can complete.{_parting(finding)}{_behind(case, finding)}"
        )
    if finding.cycle:
        told = [_circle(case, cycle) for cycle in (finding.cycle, *finding.other_cycles[:_MOST_CYCLES])]
        more = len(finding.other_cycles) - _MOST_CYCLES
        rest = f" {more} more like these." if more > 0 else ""
        if is_young(case, finding.cycle):
            tried = ", ".join(who(case, key) for key in who_tries(case, finding.cycle))
            whom = "Threads wait for each other" if len(finding.cycle) > 1 else "A thread waits for itself"
            told[0] = f"{whom}, which ends only if one stops trying ({tried}): {told[0]}"
            return f"{'. Another one: '.join(told)}.{rest}{_behind(case, finding)}"
        return f"Deadlock: {'. Another one: '.join(told)}.{rest}{_parting(finding)}{_behind(case, finding)}"
    if not finding.victims and all(one.part is Part.PARTY for one in finding.named) and finding.named:
        steps = "; ".join(
            f"{who(case, one.key)} {waiting(case, one.key)}" for one in finding.named if one.key
        )
        return f"{_capital(steps)}{_nobody(case, finding)}.{_parting(finding)}"
    return _accuse(case, finding)


def _or_roots(case: Case, finding: Finding) -> str:
    """Who has got from one root what it wanted is through with an operation in which others wait for another one."""
    calls = [wait.call for one in finding.named if one.key and (wait := case.waits.get(one.key)) is not None]
    rooted = any(call is not None and call.backend == "mpi" and call.op in LEFT_EARLY for call in calls)
    return ", or did one of them with different roots" if rooted else ""


def _circle(case: Case, cycle: Sequence[Key]) -> str:
    members = threads_of_cycle(case, cycle)
    most = _MOST_TOLD if is_whole(case, cycle) else len(members)
    steps = "; ".join(f"{who(case, key)} {waiting(case, key)}" for key in members[:most])
    if not is_whole(case, cycle):
        return steps
    more = f"; {len(members) - most} more" if len(members) > most else ""
    return (
        f"which of the threads of pid {cycle[0][0]} has the file lock is not recorded, and none of them can go on "
        f"before: {steps}{more}"
    )


def _accuse(case: Case, finding: Finding) -> str:
    first = finding.named[0] if finding.named else None
    if first is None and finding.state is State.SLOW and finding.cause is Kind.IO_STALLED:
        waiting_for = {key[0] for key in finding.victims}
        rate = size(int(read_from_disk(case, waiting_for)))
        both = " and ".join(who(case, key) for key in finding.victims[:2])
        more = f" and {len(finding.victims) - 2} more" if len(finding.victims) > 2 else ""
        return f"{_capital(both)}{more} read files from a disk that gives {rate}/s."
    if first is None:
        return "Somebody waits without end, and who keeps it waiting is not known."
    absent = [one.rank for one in finding.named if one.part is Part.ABSENT and one.rank is not None]
    if absent and first.key is None:
        gone = ended(case, finding.chain[-1] if finding.chain else (-1 - absent[0], 0))
        verb = "never started" if finding.cause is Kind.RENDEZVOUS_MISSING_RANK else gone
        return f"Rank {fold(absent)} {verb}; {_victims(case, finding, verb=' waiting for it')}."
    if first.key is not None and {key[0] for key in finding.victims} == {first.key[0]}:
        # All in one process: the chain tells it best from its start.
        steps = "; ".join(f"{thread(case, key)} {waiting(case, key)}" for key in finding.chain)
        return f"{_process(case, first)}: {steps}{_nobody(case, finding)}."
    keeps = f" keeps {_victims(case, finding, verb=' waiting')}" if finding.victims else ""
    start = next((i for i, key in enumerate(finding.chain) if first.key and key[0] == first.key[0]), None)
    tail = finding.chain[start:] if start is not None else (first.key,) if first.key else ()
    told: list[str] = []
    subject = _process(case, first)
    for index, key in enumerate(tail):
        told.append(f"{_short_name(case, first, key, is_first=index == 0)} {waiting(case, key)}")
    on_way = {key[0] for key in (*tail, *finding.chain)}
    for one in finding.named[1:]:
        if one.key is not None and one.key[0] not in on_way:
            told.append(f"{who(case, one.key)}, which has not come either, {waiting(case, one.key)}")
    if not told:
        return f"{subject}{keeps}."
    return f"{subject}{keeps}: {'; '.join(told)}{_nobody(case, finding)}{_unread(case, finding)}."


def _unread(case: Case, finding: Finding) -> str:
    """Whose messages a part of a server does not take, for which nobody waits."""
    if finding.victims or finding.cause is not Kind.PEER_STOPPED:
        return ""
    senders = unread_by(case.scene, finding.chain[-1][0])
    told = ", ".join(who(case, (pid, pid)) for pid in senders)
    return f"; what {told} sent it lies unread" if senders else ""


def _short_name(case: Case, first: Named, key: Key, *, is_first: bool) -> str:
    if is_first and key[1] in (0, key[0]):
        return "it"
    return thread(case, key) if first.key is not None and key[0] == first.key[0] else who(case, key)


def kept_open_by(case: Case, chain: Sequence[Key]) -> tuple[int, ...]:
    """Other processes that have the write end of a pipe of which somebody on the chain waits for the end."""
    waits = (case.waits[key] for key in chain if key in case.waits)
    reads = next((wait for wait in waits if wait.cause is Kind.IPC_NO_EOF), None)
    return tuple(pid for pid, _ in reads.targets if pid != reads.key[0]) if reads is not None else ()


def _nobody(case: Case, finding: Finding) -> str:
    if finding.cause is Kind.FILE_LOCK_STALE:
        return ", which nobody alive holds"
    if finding.cause is Kind.LOCK_AFTER_FORK:
        return ", copied by fork from a parent whose thread held it"
    if finding.cause is Kind.IPC_NO_EOF:
        if kept_open_by(case, finding.chain):
            return "; the child that wrote there has exited, and who inherited its output keeps it open"
        return ", of which it holds the only write end itself"
    return ""


def _process(case: Case, one: Named) -> str:
    if one.key is None:
        return f"Rank {one.rank}"
    name = who(case, (one.key[0], one.key[0]))
    # One that ended has nothing left that tells its rank, where it can be no other one.
    told = case.scene.who.rank(one.key[0]) is None and one.rank is not None
    return f"Rank {one.rank} (pid {one.key[0]})" if told else _capital(name)


def _victims(case: Case, finding: Finding, *, verb: str = "") -> str:
    ranks = [rank for key in finding.victims if (rank := case.scene.who.rank(key[0])) is not None]
    if ranks:
        words = f"rank{'s' if len(set(ranks)) > 1 else ''} {fold(ranks)}"
    else:
        own = {one.key[0] for one in finding.named[:1] if one.key is not None}
        # Its other threads are waiting as well, but it is not itself whom it keeps.
        pids = sorted({key[0] for key in finding.victims} - own) or sorted(own)
        words = f"pid{'s' if len(pids) > 1 else ''} {', '.join(map(str, pids))}" if pids else "nobody"
    oldest = max(
        (wait.since_s or 0.0 for key in finding.victims if (wait := case.waits.get(key))), default=0.0
    )
    told = {_in_what(case, key) for key in finding.victims}
    op = told.pop() if len(told) == 1 else ""
    return f"{words}{verb}{op}{f' for {duration(oldest)}' if oldest >= 1 else ''}"


def _in_what(case: Case, key: Key) -> str:
    """What a victim is in, as far as one may say it of several at once."""
    wait = case.waits.get(key)
    if wait is None:
        return ""
    if wait.kind is WaitKind.COLLECTIVE and wait.object.name:
        return f" in {wait.object.name}{_wrapped(case, key)}"
    if wait.kind is WaitKind.RENDEZVOUS and wait.object.name == STORE and wait.object.path:
        return f" for {_of_store(wait)}"
    if wait.kind is WaitKind.RENDEZVOUS and wait.object.name not in (None, CONNECT, STORE):
        return f" in {(wait.object.name or '').lstrip('_')}"
    return ""


def _behind(case: Case, finding: Finding) -> str:
    return f" Behind them: {_victims(case, finding, verb=' waiting')}." if finding.victims else ""


def _parting(finding: Finding) -> str:
    return parting(finding.diverged_at) if finding.diverged_at is not None else ""


def _of_group(case: Case, finding: Finding) -> str:
    """` of tp (ranks 0-3)`, where all that are named are in one group and it is not the default one."""
    groups = {case.waits[one.key].group for one in finding.named if one.key and one.key in case.waits}
    group = groups.pop() if len(groups) == 1 else None
    return f" of {group}" if group not in (None, DEFAULT_GROUP) else ""


def _operations(case: Case, finding: Finding) -> str:
    ops: dict[str, list[int]] = {}
    ranked = bool(case.scene.who.pid_of_rank)
    told = {one.key for one in finding.named}
    sizes = {one.id: one for one in case.matched.collectives}
    for key, wait in sorted(case.waits.items()):
        if key not in told:
            continue
        number = case.scene.who.rank(key[0]) if ranked else key[0]
        if wait.kind is WaitKind.COLLECTIVE and number is not None:
            op = f"{wait.object.name or 'unknown'}{_wrapped(case, key)}"
            own = sizes.get(wait.object.collective or "")
            if wait.cause is Kind.COLLECTIVE_SIZE_MISMATCH and own is not None:
                op = f"{op} of {own.count} x {own.dtype or 'elements'}"
            ops.setdefault(op, []).append(number)
    noun = "rank" if ranked else "pid"
    return "; ".join(
        f"{noun}{'s' if len(set(numbers)) > 1 else ''} {fold(numbers)} in {op}"
        for op, numbers in sorted(ops.items())
    )


def _unknown(case: Case, finding: Finding) -> str:
    if len(finding.victims) > 1 and len({key[0] for key in finding.victims}) == 1:
        told = _some(finding.victims, lambda key: f"{who(case, key)} {waiting(case, key)}")
        return f"Not decided: {told}. {_open(case, finding, finding.victims[:1])}"
    if finding.victims:
        end = finding.chain[-1] if len(finding.chain) > 1 else None
        rest = f"; {who(case, end)} {waiting(case, end)}" if end is not None else ""
        waiting_ones = _victims(case, finding, verb=" waiting")
        return f"Not decided: {waiting_ones}{rest}. {_open(case, finding, finding.chain[-1:] or finding.victims[:1])}"
    if finding.chain:
        key = finding.chain[0]
        return (
            f"Not decided: {who(case, key)} {waiting(case, key)}. {_open(case, finding, finding.chain[-1:])}"
        )
    late = case.scene.not_in_time()
    if late:
        some = f"{len(late)} processes" if len(late) > 1 else f"pid {late[0]}"
        return f"Not decided: {some} could not be looked at in time, or not all threads{_unseen(case)}."
    waits = [key for key in sorted(case.waits, key=case.order) if case.waits[key].service is None]
    if waits:
        told = _some(waits, lambda key: f"{who(case, key)} {waiting(case, key)}", noun=" threads")
        return f"Not decided: nothing records who should end these waits: {told}."
    return f"The evidence does not say whether anything hangs: no thread could be looked at{_unseen(case)}."


def _some(keys: Sequence[Key], words: Callable[[Key], str], *, noun: str = "") -> str:
    """The first ones, and how many more there are."""
    more = f"; {len(keys) - _MOST_TOLD} more{noun}" if len(keys) > _MOST_TOLD else ""
    return "; ".join(map(words, keys[:_MOST_TOLD])) + more


def stopped_members(case: Case) -> list[Key]:
    """One thread of each process of the job that is stopped."""
    keys = sorted(case.waits, key=case.order)
    stopped = [key for key in keys if case.waits[key].kind is WaitKind.STOPPED]
    return [key for key in one_a_process(stopped) if case.scene.is_member(key[0])]


def _stopped_besides(case: Case, finding: Finding) -> str:
    """Who is stopped, where no wait that is known leads to it: whatever it lacks, it does not go on by itself."""
    told = {key[0] for key in (*finding.chain, *finding.victims)}
    others = [key for key in stopped_members(case) if key[0] not in told]
    if not others:
        return ""
    return f" {_some(others, lambda key: f'{_capital(who(case, key))} {waiting(case, key)}')}."


def bystander(case: Case, key: Key) -> Key | None:
    """Who naps, and may end a wait when it wakes, though nothing says that it will."""
    wait = case.waits.get(key)
    return wait.bystanders[0] if wait is not None and wait.bystanders else None


def _open(case: Case, finding: Finding, keys: Sequence[Key]) -> str:
    """What is not known of the wait on which it hangs."""
    wait = case.waits.get(keys[0]) if keys else None
    if keys and keys[0] in case.judged.clocked:
        it = _capital(who(case, keys[0]))
        return f"{it} waits for a while at a time: whether it lets go in between is not known."
    nap = next((nap for key in finding.chain if (nap := bystander(case, key))), None)
    if nap is not None:
        return f"{_capital(who(case, nap))} {waiting(case, nap)}, and may let them go on then: that is not known."
    behind = case.waits.get(wait.targets[0]) if wait is not None and wait.holder and wait.targets else None
    if wait is not None and behind is not None and behind.key != wait.key:
        # Who has it is recorded; what is not, is who should let that one go on.
        return f"{_capital(who(case, behind.key))} {waiting(case, behind.key)}. {_who_should(case, behind)}"
    return _who_should(case, wait)


def _who_should(case: Case, wait: Blocked | None) -> str:
    does = ended_by(wait) if wait is not None else None
    if does is None:
        return f"Whether that ends is not known{_unseen(case)}."
    return f"Nothing records who should {does}{_unseen(case)}."


def _unseen(case: Case) -> str:
    lacking = any(
        line.fix and line.state in (SourceState.REFUSED, SourceState.FAILED, SourceState.TIMED_OUT)
        for line in case.scene.evidence.coverage
    )
    return "; what could not be seen, and how to see it, is listed under coverage" if lacking else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
