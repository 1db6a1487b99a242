"""Which waits are for something outside the program, or lead to one that is: what makes silence healthy.

A program is idle only on positive evidence: somebody listens on a socket, reads the input, waits for a signal, or
sleeps by the clock, and everybody else waits for one who does. A wait for another thread that leads nowhere is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from pyhangtrace.analyze import holders, objects
from pyhangtrace.analyze.blocked import BY_ITSELF, Blocked, Standing
from pyhangtrace.analyze.components import leading_to
from pyhangtrace.analyze.crowds import crowd, in_short, is_crowd
from pyhangtrace.analyze.ends import is_stranger, watched_descriptors
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import FdKind, Kind, WaitKind
from pyhangtrace.model.open_files import FdFacts

# Serving threads of libraries through which work arrives.
_SERVE_OUTSIDE = frozenset({"grpc", "zmq", "libuv", "ray", "manager server"})
_PID = itemgetter(0)

# By names of their own: before Python 3.12 each look-up of a member costs as much as a step of these loops.
_IDLE, _OPAQUE, _MOVING = Standing.IDLE, Standing.OPAQUE, Progress.MOVING

_GOING_ON = BY_ITSELF - {Standing.STOPPED}
_ENDS = frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL})
_OF_PROCESSES = _ENDS | {WaitKind.SEMAPHORE, WaitKind.FILE_LOCK, WaitKind.QUEUE}
_UNSEEN_ENDS = frozenset({WaitKind.IO, WaitKind.POLL, WaitKind.GPU})

# In place of a thread id: any thread of the process with work of its own, or through which work reaches it.
_ANY_WORKER = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`firm` are the targets of waits that know them. Over these, `listening` wait for the world outside, or do so
    themselves, `awaiting_anybody` for what whoever knows its name or key may serve, and `awaiting_work` for somebody
    who works or sleeps by the clock. Life comes from `sources` in any case, and from those who move by themselves;
    over `edges` it comes to who waits for these.
    """

    firm: Mapping[Key, tuple[Key, ...]]
    listening: frozenset[Key]
    awaiting_anybody: frozenset[Key]
    awaiting_work: frozenset[Key]
    sources: Set[Key]
    moving: Set[Key]
    edges: Mapping[Key, tuple[Key, ...]]

    def lively(self, *, but: Set[Key] = frozenset(), also: Set[Key] = frozenset()) -> frozenset[Key]:
        """Those that something may yet reach: they listen, move, or wait for one that does, by name or by role.

        With `but`, where these do nothing by themselves for as long as anybody would wait; with `also`, where these
        may be woken as well.
        """
        reached = leading_to(self.sources | (self.moving - but) | also, self.edges)
        return frozenset(key for key in reached if key[1] >= 0)


def reach(scene: Scene, waits: Mapping[Key, Blocked]) -> Reach:
    """Whom the world outside reaches."""
    known, timer = Standing.FIRM, Standing.TIMER
    firm = {key: wait.targets for key, wait in waits.items() if wait.standing is known}
    world = {key for key, wait in waits.items() if _listens(scene, wait)}
    at_it = {key for key, wait in waits.items() if wait.standing is timer} | (scene.at_work & waits.keys())
    edges = {key: _may_end(scene, wait) for key, wait in waits.items()}
    # Thousands of threads may each wait for any of the others: one node in between stands for all of a process.
    named = set(chain.from_iterable(edges.values()))
    between = {key: _standing_for(scene, key) for key in named if key[1] < 0}
    named.update(chain.from_iterable(between.values()))
    alive = {pid for pid in set(map(_PID, named)) if is_stranger(scene, pid) and not scene.exited(pid)}
    return Reach(
        firm=firm,
        listening=leading_to(world, firm),
        awaiting_anybody=leading_to({key for key, wait in waits.items() if wait.anybodys}, firm),
        awaiting_work=leading_to(
            {key for key, targets in firm.items() if not at_it.isdisjoint(targets)}, firm
        ),
        sources=world.union(key for key in named if key[0] in alive),
        moving={key for key, wait in waits.items() if _gives_life(wait)},
        edges={**between, **edges},  # in this order, since most lead over those
    )


def _may_end(scene: Scene, wait: Blocked) -> tuple[Key, ...]:
    """Threads that could end a wait, those included that nothing but their place says so of."""
    if wait.standing in BY_ITSELF:
        return ()
    others = in_short(wait.targets)
    if wait.candidates is not wait.targets:
        others = (*others, *in_short(wait.candidates))
    own = ((wait.key[0], _ANY_WORKER),) if wait.standing is _IDLE else ()
    return _of_processes(scene, wait, others, own) if wait.kind in _OF_PROCESSES else (*others, *own)


def _of_processes(
    scene: Scene, wait: Blocked, others: tuple[Key, ...], own: tuple[Key, ...]
) -> tuple[Key, ...]:
    """The same where any thread of a process may end the wait, or that one lives says nothing of it."""
    if wait.kind is WaitKind.SEMAPHORE and wait.call is None and not wait.targets:
        # A lock between processes: that a brother lives does not mean that he will let go.
        return ()
    if wait.kind is WaitKind.FILE_LOCK and not wait.targets:
        # Who of the holder's threads has the lock is not known, so that one of them lives promises nothing.
        return ()
    if wait.kind in _ENDS:
        others = (*others, *((pid, _ANY_WORKER) for pid, _ in wait.targets if _has_workers(scene, pid)))
    if wait.kind is WaitKind.QUEUE and wait.cause is Kind.IDLE:
        parent = scene.processes[wait.key[0]].ppid if wait.key[0] in scene.processes else 0
        return (*others, (parent, _ANY_WORKER if _has_workers(scene, parent) else 0))
    return (*others, *own)


def _listens(scene: Scene, wait: Blocked) -> bool:
    """It waits for the world itself: a connection, input, a signal, another host."""
    if wait.from_stdin and scene.who.rank(wait.key[0]) is None:
        return True
    if wait.own_end:
        return bool(holders.handled_signals(scene, wait.key[0]))
    if wait.standing is not _IDLE or wait.cause is not Kind.IDLE or wait.kind is WaitKind.QUEUE:
        return False
    # A loop that watches nothing but its own wake-up channel waits for its own process, or for a signal.
    alone = wait.kind is WaitKind.POLL and watches_own_only(scene, wait.key)
    return not alone or bool(holders.handled_signals(scene, wait.key[0]))


def served_from_elsewhere(scene: Scene, waits: Mapping[Key, Blocked], active: Set[Key]) -> frozenset[Key]:
    """Who waits in shared memory for something that records nobody, while another process of the job has a thread
    that is among the `active`: whether that one has the memory as well, and posts there, cannot be seen.
    """
    at_work = {key[0] for key in active}
    if not at_work:
        return frozenset()
    return frozenset(
        key
        for key, wait in waits.items()
        if wait.holder is None
        and not wait.thread_guessed
        and (at_work - {key[0]})
        and (sample := scene.thread(key)) is not None
        and sample.lock is not None
        and sample.lock.shared_key is not None
    )


def watches_own_only(scene: Scene, key: Key) -> bool:
    """Whether all that a thread polls for are pipes and sockets whose other end is in its own process only."""
    watched = _watched(scene, key)
    return bool(watched) and all(holders.writers(fd) == (key[0],) for fd in watched) and _are_ends(watched)


def watches_wake_up_only(scene: Scene, key: Key) -> bool:
    """Whether nothing but a thread of its own process can wake an event loop of asyncio by what it polls for.

    The one thing that it always polls for is a pair of its own, which children that were forked have too, and never
    use.
    """
    watched = _watched(scene, key)
    if len(watched) != 1 or not _are_ends(watched):
        return watches_own_only(scene, key)
    return key[0] in holders.writers(watched[0]) and all(
        pid == key[0] or _is_forked_from(scene, pid, key[0]) for pid in holders.writers(watched[0])
    )


def _watched(scene: Scene, key: Key) -> tuple[FdFacts, ...]:
    sample = scene.thread(key)
    return tuple(watched_descriptors(scene, sample)) if sample is not None else ()


def _are_ends(watched: Iterable[FdFacts]) -> bool:
    """Whether all of them are pipes and sockets whose ends can be counted: a FIFO is opened by whoever comes."""
    return all(fd.kind in (FdKind.PIPE, FdKind.SOCKET) and not objects.has_name(fd) for fd in watched)


def _is_forked_from(scene: Scene, pid: int, ancestor: int) -> bool:
    passed: set[int] = set()
    while pid not in passed:
        passed.add(pid)
        parent = holders.forked_without_exec(scene, pid)
        if parent is None:
            return False
        if parent.pid == ancestor:
            return True
        pid = parent.pid
    return False


def _gives_life(wait: Blocked) -> bool:
    if wait.progress is _MOVING or wait.standing in _GOING_ON:
        return True
    if wait.standing is _OPAQUE:
        return wait.kind in _UNSEEN_ENDS
    # Another host may answer.
    return not wait.targets and wait.kind is WaitKind.SOCKET and not wait.own_end


def keeps_time(wait: Blocked) -> bool:
    """Ends by the clock without anybody's act: healthy for the thread itself, no promise to those behind it."""
    timed = wait.ends_by_itself and wait.lasts_s is not None
    return wait.standing is Standing.TIMER or (timed and wait.standing is Standing.IDLE)


def _standing_for(scene: Scene, node: Key) -> tuple[Key, ...]:
    """The threads in place of which a node between is."""
    if is_crowd(node):
        return crowd(scene, node)
    return tuple(key for key in scene.threads_of(node[0]) if works_itself(scene, key))


def _has_workers(scene: Scene, pid: int) -> bool:
    return any(works_itself(scene, key) for key in scene.threads_of(pid))


def works_itself(scene: Scene, key: Key) -> bool:
    """It has work of its own, or is one of those through which work reaches the process."""
    return scene.services[key] is None or scene.services[key] in _SERVE_OUTSIDE
