"""From a chain of waits to a name for it: symptom, cause and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked, Standing, awaits_key, weakest
from pyhangtrace.analyze.fates import Fate
from pyhangtrace.analyze.memory import THRASH_FAULTS_PER_S, major_faults_per_s
from pyhangtrace.analyze.progress import Progress, is_ready
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.states import THROTTLED_SHARE, throttled_share
from pyhangtrace.model.kinds import Confidence, Kind, WaitKind

# Waits that only pass on what another thread of the process is in.
_PASSES_ON = frozenset(
    {WaitKind.JOIN, WaitKind.QUEUE, WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.BARRIER}
)

# All have come, and asked for different things.
MISMATCHES = frozenset(
    {Kind.COLLECTIVE_OP_MISMATCH, Kind.COLLECTIVE_SIZE_MISMATCH, Kind.COLLECTIVE_ROOT_MISMATCH}
)

_IPC = frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL})

_SIGKILL = 9
_BUSY_SHARE = 0.05


def lead_of(scene: Scene, waits: Mapping[Key, Blocked], chain: Sequence[Key]) -> int | None:
    """Where the waiting leaves the group: the index after the last wait for members; None if it never does.

    A missing rank that another missing rank waits for is where it leaves, not the one that waits.
    """
    last = -1
    for index, key in enumerate(chain):
        wait = waits.get(key)
        if wait is not None and wait.kind in GROUP_KINDS and not awaits_key(wait):
            last = index
    lead = last + 1
    if lead >= len(chain):
        return None
    ranks = [key[0] for key in chain[lead:] if scene.who.rank(key[0]) is not None]
    if ranks:
        lead += next(index for index, key in enumerate(chain[lead:]) if key[0] == ranks[-1])
    return lead


def symptom_of(
    scene: Scene, waits: Mapping[Key, Blocked], chain: Sequence[Key], cycle: Sequence[Key] = ()
) -> Kind:
    """What the victim at the start of a chain shows; a join only passes on what the joined thread is in."""
    wait = waits[chain[0]]
    for key in chain:
        if key not in waits:
            break
        wait = waits[key]
        if key in cycle or not _passes_on(scene, wait) or wait.kind is WaitKind.CHILD:
            break
    if wait.kind is WaitKind.COLLECTIVE:
        return Kind.COLLECTIVE_MISSING_RANK
    if wait.kind is WaitKind.GIL:
        return Kind.LOCK_GIL
    if wait.key in cycle:
        return Kind.LOCK_GIL if _has_gil(waits, cycle) else cause_of_cycle([waits[key] for key in cycle])
    if wait.kind is WaitKind.P2P:
        return Kind.P2P_UNMATCHED
    return wait.cause


def _has_gil(waits: Mapping[Key, Blocked], cycle: Sequence[Key]) -> bool:
    return any(waits[key].kind is WaitKind.GIL for key in cycle)


def cause_of_cycle(members: Sequence[Blocked]) -> Kind:
    """A name for a cycle, by what its members wait for."""
    kinds = {wait.kind for wait in members}
    if kinds == {WaitKind.P2P}:
        # One sends to who receives from it: what they mean are different messages.
        meanings = {wait.call.meaning for wait in members if wait.call is not None}
        return Kind.P2P_UNMATCHED if len(members) == 2 and len(meanings) == 2 else Kind.P2P_CYCLE
    causes = {wait.cause for wait in members}
    if len(causes) == 1 and causes <= MISMATCHES:
        return causes.pop()
    if kinds <= GROUP_KINDS and WaitKind.P2P in kinds:
        return Kind.P2P_UNMATCHED
    if kinds <= GROUP_KINDS:
        return Kind.COLLECTIVE_GROUP_CYCLE
    if any(wait.cause is Kind.IPC_PIPE_FULL for wait in members):
        return Kind.IPC_PIPE_FULL
    if kinds & {WaitKind.PIPE, WaitKind.SOCKET} or any(
        wait.cause is Kind.IPC_PEER_SILENT for wait in members
    ):
        return Kind.IPC_CYCLE
    if kinds <= {WaitKind.IMPORT_LOCK}:
        return Kind.LOCK_IMPORT
    return Kind.LOCK_CYCLE


def cause_of(scene: Scene, waits: Mapping[Key, Blocked], chain: Sequence[Key], lead: int, end: Fate) -> Kind:
    """What the culprit is in: the first wait after the waiting left the group, not the last sleep behind it.

    Where it is known that the end works, the work is what matters; where it is gone, that.
    """
    last = waits.get(chain[-1])
    if end is Fate.BUSY and last is not None:
        return last.cause
    if end is Fate.MOVING:
        return moving_cause(scene, chain)
    for key in chain[lead:]:
        wait = waits.get(key)
        if wait is None:
            return exit_cause(scene, key[0])
        if wait.cause is Kind.WORKER_STUCK and scene.exited(chain[-1][0]):
            return Kind.WORKER_DEAD
        if not _passes_on(scene, wait) or key == chain[-1]:
            return wait.cause
    return Kind.UNKNOWN


def _passes_on(scene: Scene, wait: Blocked) -> bool:
    if wait.kind is WaitKind.CHILD:
        # A program without ranks is a group of its own: what the child is in explains more.
        return scene.who.rank(wait.key[0]) is None and not scene.who.pid_of_rank
    if wait.kind is WaitKind.JOIN:
        return wait.cause is not Kind.LOCK_TEARDOWN
    return wait.kind in _PASSES_ON and wait.cause is Kind.UNKNOWN


def exit_cause(scene: Scene, pid: int) -> Kind:
    """Why a process is not there."""
    return Kind.PEER_OOM_KILLED if died_of_oom(scene, pid) else Kind.PEER_EXITED


def died_of_oom(scene: Scene, pid: int) -> bool:
    """The kernel's log names it, or it was killed and its own group counts such a kill."""
    if any(kill.pid == pid for kill in scene.evidence.host.oom_log):
        return True
    process = scene.processes.get(pid)
    if process is None or process.exit_code is None or process.exit_code & 0x7F != _SIGKILL:
        return False
    cgroup = scene.evidence.cgroup
    return cgroup is not None and bool(cgroup.oom_kills)


def failure_recorded(scene: Scene, key: Key) -> bool:
    """Whether anything tells how somebody who is gone came to its end, and that it failed: the status that its zombie
    keeps, or the kernel's log. That a process is gone says neither.
    """
    return bool(scene.exit_status(key)) or died_of_oom(scene, key[0])


def moving_cause(scene: Scene, chain: Sequence[Key]) -> Kind:
    """What keeps somebody who moves, at the end of a chain."""
    pid = chain[-1][0]
    if compiler_at_end(scene, chain) is not None:
        return Kind.COMPILE_RUNNING
    if (major_faults_per_s(scene, pid) or 0.0) > THRASH_FAULTS_PER_S:
        return Kind.MEMORY_THRASH
    if scene.cpu_share(pid) >= 0.5:
        return Kind.CPU_BUSY
    if throttled_share(scene, pid) > THROTTLED_SHARE:
        return Kind.CPU_THROTTLED
    return Kind.UNKNOWN


def compiler_at_end(scene: Scene, chain: Sequence[Key]) -> int | None:
    """The busiest compiler where a chain ends: at or below its last process, or the tools before that which run it."""
    for number, (pid, _) in enumerate(reversed(chain)):
        if number and not scene.is_compiler(pid):
            return None
        found = busy_compiler(scene, pid)
        if found is not None:
            return found
    return None


def busy_compiler(scene: Scene, pid: int) -> int | None:
    """The busiest compiler at or below a process; None if none is on the CPU, nor was in an earlier look.

    A build starts one after the other: between two of them the tool that runs them stands for those that were seen.
    """
    below = [other for other in (pid, *scene.descendants(pid)) if scene.is_compiler(other)]
    busy = [(scene.cpu_share(other), -other) for other in below if scene.cpu_share(other) > _BUSY_SHARE]
    if busy:
        return -max(busy)[1]
    ran = any(
        sample.pid in below and is_ready(sample) for look in scene.evidence.looks for sample in look.threads
    )
    left = [other for other in below if not scene.exited(other) and not scene.processes[other].gone]
    return left[0] if ran and left else None


def confidence_of(
    waits: Mapping[Key, Blocked], chain: Sequence[Key], cycle: Sequence[Key], end: Fate
) -> Confidence:
    """As weak as the weakest wait on the way.

    A stopped or exited member is the kernel's own word: that others wait in a call of the group needs no
    further rule, so the chain to it counts as proven. That a thread which waits for its GPU waits for the group does.
    """
    on_way = [waits[key] for key in (cycle or chain) if key in waits]
    group = [wait for wait in on_way if wait.kind in GROUP_KINDS]
    own = [wait for wait in on_way if wait.kind not in GROUP_KINDS]
    # Who polls may be getting on with others, where messages cannot be counted.
    polls = any(
        wait.call is not None and wait.call.spins and wait.basis is Confidence.POSSIBLE for wait in group
    )
    direct = (
        end in (Fate.STOPPED, Fate.GONE)
        and not polls
        and not any(wait.from_counters for wait in group)
        and all(wait.standing is Standing.STOPPED for wait in own)
    )
    counted = own if direct else [*group, *own]
    unseen = any(wait.progress is Progress.UNSEEN for wait in on_way if wait.standing is not Standing.STOPPED)
    # Whichever of its threads it is, each is stuck for a reason of its own.
    guessed = any(wait.thread_guessed for wait in own)
    timed = any(wait.ends_by_itself and wait.kind is not WaitKind.TIMER for wait in own)
    at_best = Confidence.LIKELY if timed or (not cycle and (unseen or guessed)) else Confidence.PROVEN
    return weakest(at_best, *(wait.basis for wait in counted))
