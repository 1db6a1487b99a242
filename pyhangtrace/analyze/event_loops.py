"""Tasks of asyncio and the threads of their process in one graph: what an event loop really waits for.

A loop that sleeps waits for events, whatever its tasks wait for. Only where some of them wait for each other, or where
nothing but a thread of the same process can wake any of them, is it the loop that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyhangtrace.analyze import holders, python_objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Meaning
from pyhangtrace.analyze.closed_loops import filling, is_closed, is_deserted, is_sealed, settle_deserted
from pyhangtrace.analyze.components import components, leading_to
from pyhangtrace.analyze.fates import LONG_TIMER_S
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.loop_peers import settle_peers
from pyhangtrace.analyze.nap_waits import task_asks
from pyhangtrace.analyze.progress import GOES_ON, in_place
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.task_tries import crossed, lock_wanted, needs_of, trying
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.kinds import Confidence, Edge, Kind, TaskKind, TaskObjectKind, WaitKind
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import TaskSample

_MOST_TOLD = 4

# What a task awaits that waits for its turn only.
_READY = "ready"

# Of a process more than the reader shows: what the others wait for is not known then.
_MOST_TASKS = 2000

# Nodes of the graph: threads by their keys, a task as (pid, -address).
_Node = Key
_Tasks = Mapping[_Node, TaskSample]


# Without slots, which have no room for what is found when it is asked for.
@dataclass(frozen=True)
class _Graph:
    """Pending tasks of a process that are the same in all looks, and what each node needs, all of it. `computed` is
    the task that computes the future at an address; `now` are all pending tasks of the last look.
    """

    tasks: Mapping[_Node, TaskSample]
    edges: Mapping[_Node, tuple[_Node, ...]]
    computed: Mapping[int, _Node]
    now: _Tasks

    @cached_property
    def by_loop(self) -> Mapping[int | None, _Tasks]:
        """Those of the last look by the thread that runs their loop."""
        found: dict[int | None, dict[_Node, TaskSample]] = {}
        for node, task in self.now.items():
            found.setdefault(task.tid, {})[node] = task
        return found

    @cached_property
    def timed(self) -> frozenset[Key | None]:
        """Threads in whose loop a task is due at some time."""
        return frozenset(
            self.thread(node) for node, task in self.tasks.items() if task.wakes_in_s is not None
        )

    def thread(self, node: _Node) -> Key | None:
        """The thread itself, or the one that runs the loop of a task."""
        task = self.tasks.get(node)
        if task is None:
            return node
        return (task.pid, task.tid) if task.tid is not None else None


def settle_tasks(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits, with those of event loops, and of threads that wait for tasks, told by their tasks.

    A task can be cancelled from outside, and who has a lock of asyncio is known by frames, so none of it is a proof.
    """
    settled = dict(waits)
    looks = [_by_process(look) for look in scene.evidence.looks]
    for pid in sorted({task.pid for task in scene.evidence.looks[-1].tasks}):
        graph = _graph(scene, waits, pid, looks)
        tried = crossed([look[pid] for look in looks if pid in look])
        tied: set[Key] = set()
        for ring in _rings(graph):
            for knotted, wait in _knot(waits, graph, ring).items():
                if knotted not in tied:
                    settled[knotted] = wait
            tied.update(key for node in ring if (key := graph.thread(node)) is not None)
        for key in scene.threads_of(pid):
            if (
                key in waits
                and key not in tied
                and (left_s := _sleeps_for(scene, graph, waits[key])) is not None
            ):
                settled[key] = _by_the_clock(waits[key], left_s)
        for loop in scene.threads_of(pid):
            if loop in waits and loop not in tied and _is_loop(waits[loop]):
                settled[loop] = _settle_loop(scene, waits, graph, waits[loop])
                if loop[1] in tried and settled[loop].standing is Standing.IDLE:
                    settled[loop] = trying(settled[loop], tried[loop[1]])
    return {key: wait if wait is waits[key] else _its_own(wait) for key, wait in settled.items()}


def _its_own(wait: Blocked) -> Blocked:
    """A launcher that waits for its tasks, or for those who work for them, does more than look after children."""
    firm = wait.standing is Standing.FIRM and wait.service == LAUNCHER
    return changed(wait, service=None) if firm else wait


def _is_loop(wait: Blocked) -> bool:
    return (
        wait.call is not None
        and wait.call.meaning is Meaning.EVENT_LOOP
        and wait.standing is Standing.IDLE
        and wait.kind is WaitKind.POLL
    )


# -- the graph -------------------------------------------------------------------------------------------------


def _graph(
    scene: Scene, waits: Mapping[Key, Blocked], pid: int, looks: Sequence[Mapping[int, _Tasks]]
) -> _Graph:
    tasks = _pending([look[pid] for look in looks if pid in look])
    holding: dict[int, list[_Node]] = {}
    computed: dict[int, _Node] = {}
    for node, task in tasks.items():
        for lock in task.holds:
            holding.setdefault(lock, []).append(node)
        if task.computes is not None:
            computed[task.computes] = node
    edges: dict[_Node, tuple[_Node, ...]] = {}
    for node, task in tasks.items():
        wanted = lock_wanted(task)
        needed = [each for address in needs_of(task) for each in _doing(scene, waits, tasks, pid, address)]
        had_by = holding.get(wanted, []) if wanted is not None else []
        if len(had_by) == 1:
            needed.append(had_by[0])
        loop = (pid, task.tid) if task.tid is not None else None
        if loop is not None and loop in waits and not _is_loop(waits[loop]):
            needed.append(loop)  # no task goes on while its thread is held up in one of them
        edges[node] = tuple(dict.fromkeys(needed))
    for key in scene.threads_of(pid):
        wait = waits.get(key)
        if wait is None or _is_loop(wait) or wait.progress in GOES_ON:
            continue
        if wait.standing is Standing.FIRM and (wait.edge is Edge.ALL or len(wait.targets) == 1):
            edges[key] = wait.targets
        else:
            edges[key] = tuple(
                computed[address] for address in python_objects.awaited(scene, wait) if address in computed
            )
    let_go = {node for node, task in tasks.items() if _times_out(task)}
    let_go |= _needed_by(let_go, edges)
    return _Graph(
        tasks=tasks,
        edges={node: () if node in let_go else needed for node, needed in edges.items()},
        computed=computed,
        now=looks[-1].get(pid, {}),
    )


def _pending(looks: Sequence[_Tasks]) -> _Tasks:
    """Tasks that waited for the same in all looks that show any of their process."""
    return {
        node: task
        for node, task in (looks[-1] if looks else {}).items()
        if all(node in found and _wants(found[node]) == _wants(task) for found in looks)
    }


def _by_process(look: Look) -> dict[int, dict[_Node, TaskSample]]:
    found: dict[int, dict[_Node, TaskSample]] = {}
    for task in look.tasks:
        if task.kind is TaskKind.ASYNCIO and not task.done and not task.moved:
            found.setdefault(task.pid, {})[(task.pid, -task.address)] = task
    return found


def _wants(task: TaskSample) -> tuple[object, ...]:
    return task.awaits_address, task.needs, lock_wanted(task), task.holds


def _doing(
    scene: Scene, waits: Mapping[Key, Blocked], tasks: _Tasks, pid: int, address: int
) -> tuple[_Node, ...]:
    """The task of that address, or the thread that works on the future of that address, also in another process."""
    if (pid, -address) in tasks:
        return ((pid, -address),)
    processes = python_objects.processes_working_on(scene, pid, address)
    fronts = tuple(key for process in processes if (key := front(scene, waits, process))[1] > 0)
    return scene.values.working_on(pid, address) or fronts


def _times_out(task: TaskSample) -> bool:
    return task.wakes_in_s is not None and not _is_long(task.wakes_in_s)


def _is_long(left_s: float | None) -> bool:
    return left_s is not None and left_s > LONG_TIMER_S


def _needed_by(start: Iterable[_Node], edges: Mapping[_Node, tuple[_Node, ...]]) -> set[_Node]:
    """All tasks that these need, directly or not: whoever gives up cancels what it waits for."""
    found: set[_Node] = set()
    todo = list(start)
    while todo:
        for node in edges.get(todo.pop(), ()):
            if node[1] < 0 and node not in found:
                found.add(node)
                todo.append(node)
    return found


# -- tasks that wait for each other ------------------------------------------------------------------------------


def _rings(graph: _Graph) -> list[tuple[_Node, ...]]:
    """One circle of each knot that a task has a part in, from its lowest member on."""

    def edges(node: _Node) -> tuple[_Node, ...]:
        return graph.edges.get(node, ())

    rings = []
    for knot in components(sorted(graph.edges), edges):
        members = set(knot)
        if members.isdisjoint(graph.tasks) or (len(knot) == 1 and knot[0] not in edges(knot[0])):
            continue
        path: dict[_Node, int] = {}
        at = next(node for node in knot if node in graph.tasks)
        while at not in path:
            path[at] = len(path)
            at = next(node for node in edges(at) if node in members)
        ring = list(path)[path[at] :]
        first = ring.index(min(ring))
        ring = ring[first:] + ring[:first]
        if any(node in graph.tasks for node in ring):
            rings.append(tuple(ring))
    return sorted(rings)


def _knot(waits: Mapping[Key, Blocked], graph: _Graph, ring: tuple[_Node, ...]) -> dict[Key, Blocked]:
    """What the threads that a circle passes wait for: each for the next one, a loop of which all are for itself."""
    names = ", ".join(graph.tasks[node].name for node in sorted(ring, reverse=True) if node in graph.tasks)
    word = "tasks" if "," in names else "task"
    threads = [key for node in ring if (key := graph.thread(node)) is not None and key in waits]
    if len(threads) < len(ring):
        return {}
    told: dict[Key, list[str]] = {}
    for node, key in zip(ring, threads, strict=True):
        if node in graph.tasks:
            told.setdefault(key, []).append(f"task {graph.tasks[node].name} {_awaits(graph, node)}")
    of_one = len(set(threads)) == 1
    by = _may_cancel(graph, ring)
    doubt = f"task {by.name} may come to its `{by.lets_go}`" if by is not None else None
    of_another = (f"{doubt}: when, and of what, is not known",) if doubt is not None else ()
    found: dict[Key, Blocked] = {}
    for index, (node, key) in enumerate(zip(ring, threads, strict=True)):
        after, following = ring[(index + 1) % len(ring)], threads[(index + 1) % len(ring)]
        own = node not in graph.tasks
        if own and after not in graph.tasks:
            continue  # a thread that waits for another one: as it was
        if key == following and not of_one:
            continue  # the circle leaves the loop at another task
        wait = waits[key]
        if not own and not _is_loop(wait):
            continue  # it is held up itself: what it waits for is known better
        among_tasks = key == following
        found[key] = changed(
            wait,
            kind=WaitKind.POLL if among_tasks and not own else WaitKind.CONDITION,
            standing=Standing.FIRM,
            # The loop goes on for its other tasks; these do not.
            progress=in_place(wait.progress),
            cause=Kind.LOCK_CYCLE if among_tasks else Kind.UNKNOWN,
            # Whoever has a timer in the loop may yet cancel one.
            basis=Confidence.POSSIBLE if wait.ends_by_itself or key in graph.timed else Confidence.LIKELY,
            object=WaitObject(name=f"{word} {names}" if among_tasks else python_objects.FUTURE),
            targets=(following,),
            candidates=(following,),
            holder=None if among_tasks else holders.thread_holder(following),
            edge=Edge.ALL,
            # Of a thread that waits for a while at a time the clock may free it: that is for the graph to judge.
            ends_by_itself=own and wait.ends_by_itself,
            helped=by is not None or wait.helped,
            doubt=doubt or wait.doubt,
            evidence=(
                *wait.evidence,
                *(told.get(key) or (f"the future is that of task {graph.tasks[after].name}",)),
                *of_another,
            ),
        )
    return found


def _may_cancel(graph: _Graph, ring: tuple[_Node, ...]) -> TaskSample | None:
    """A task of these loops that does not wait for the circle itself, and whose code lets somebody go on."""
    loops = {graph.tasks[node].tid for node in ring if node in graph.tasks}
    held_up = leading_to(ring, graph.edges)
    return next(
        (
            task
            for node, task in sorted(graph.now.items())
            if task.lets_go is not None and task.tid in loops and node not in held_up
        ),
        None,
    )


def _sleeps_for(scene: Scene, graph: _Graph, wait: Blocked) -> float | None:
    """What is left of the sleep of the task for whose end a thread waits, directly or over others; None if none is."""
    wanted = python_objects.awaited(scene, wait) if wait.standing is Standing.IDLE else ()
    if len(wanted) != 1:
        return None
    node = graph.computed.get(wanted[0])
    passed: set[_Node] = set()
    while node is not None and node not in passed and node in graph.tasks:
        passed.add(node)
        task = graph.tasks[node]
        if task.wakes_in_s is not None:
            return task.wakes_in_s
        needs = graph.edges.get(node, ())
        node = needs[0] if len(needs) == 1 else None
    return None


def _by_the_clock(wait: Blocked, left_s: float) -> Blocked:
    return changed(
        wait,
        standing=Standing.TIMER,
        cause=Kind.TIMER,
        object=changed(wait.object, remaining_s=left_s),
        ends_by_itself=True,
        lasts_s=left_s,
        evidence=(*wait.evidence, f"the task that computes it sleeps for another {left_s:.1f} s"),
    )


# -- tasks that wait for threads ---------------------------------------------------------------------------------


def _settle_loop(scene: Scene, waits: Mapping[Key, Blocked], graph: _Graph, wait: Blocked) -> Blocked:
    """The wait of a loop, told by its tasks."""
    mine = graph.by_loop.get(wait.key[1], {})
    shut = is_closed(scene, wait) and _all_at_rest(graph, mine)
    found = _awaiting_threads(scene, graph, wait, mine) if shut else None
    if found is None and _all_at_rest(graph, mine):
        found = settle_peers(scene, waits, wait, mine)
    told = _told(graph, found or wait)
    if told.standing is not Standing.IDLE:
        return told
    if shut and is_deserted(scene, waits, told):
        return settle_deserted(told, mine.values())
    asking = _asking(mine)
    if asking is not None and is_sealed(scene, told) and is_deserted(scene, waits, told):
        return task_asks(scene, told, asking)
    return told


def _asking(tasks: _Tasks) -> TaskSample | None:
    """The first task that naps and asks for something again and again, where no other in its loop has a timer."""
    timed = [task for task in tasks.values() if task.wakes_in_s is not None or task.polls_for is not None]
    return timed[0] if timed and all(task.polls_for is not None for task in timed) else None


def _awaiting_threads(scene: Scene, graph: _Graph, wait: Blocked, mine: _Tasks) -> Blocked | None:
    """A loop that nothing can wake but other threads of its process, or those of its pools, as all its tasks wait for
    them, or that has a lock which nobody is known to have. None: something else may wake it.
    """
    threads: set[Key] = set()
    lock: TaskSample | None = None
    for node, task in mine.items():
        needed = graph.edges.get(node, ())
        if not (task.needs_known or task.lock is not None) or task.wakes_in_s is not None:
            return None
        if len(needed) < len(task.needs) or any(each[1] < 0 and each not in mine for each in needed):
            return None  # who works on one of them is not known
        threads.update(each for each in needed if each[1] > 0)
        if task.lock is not None and not needed:
            lock = lock or task
    evidence = (*wait.evidence, *_lines(graph, mine))
    if threads:
        ordered = tuple(sorted(threads))
        elsewhere = all(pid != wait.key[0] for pid, _ in ordered)
        return changed(
            wait,
            kind=WaitKind.QUEUE if elsewhere else WaitKind.CONDITION,
            standing=Standing.FIRM,
            cause=Kind.WORKER_STUCK if elsewhere else Kind.UNKNOWN,
            basis=Confidence.LIKELY,
            object=WaitObject(name=python_objects.FUTURE),
            targets=ordered,
            candidates=ordered,
            holder=holders.thread_holder(ordered[0]) if len(ordered) == 1 else None,
            edge=Edge.ANY,
            evidence=evidence,
        )
    if lock is None or lock.lock is None:
        return None
    return changed(
        wait,
        kind=WaitKind.PYTHON_LOCK,
        standing=Standing.FIRM,
        cause=Kind.LOCK_HELD,
        basis=Confidence.LIKELY,
        object=WaitObject(address=hex(lock.lock), name="asyncio.Lock"),
        candidates=holders.siblings(scene, wait.key),
        evidence=(
            *evidence,
            "asyncio records no owner of a Lock, and no task stands in an `async with` of it",
        ),
    )


def _all_at_rest(graph: _Graph, tasks: _Tasks) -> bool:
    """Whether these are all tasks of a loop, and each has waited for the same all the time."""
    if not tasks or len(graph.now) >= _MOST_TASKS or not tasks.keys() <= graph.tasks.keys():
        return False
    return not any(task.awaits in (None, _READY) for task in tasks.values())


# -- words -------------------------------------------------------------------------------------------------------


def _told(graph: _Graph, wait: Blocked) -> Blocked:
    """With what pending tasks of the loop await, as evidence."""
    if wait.standing is not Standing.IDLE:
        return wait
    mine = graph.by_loop.get(wait.key[1], {})
    working = tuple(sorted({each for node in mine for each in graph.edges.get(node, ()) if each[1] > 0}))
    return changed(
        wait, evidence=(*wait.evidence, *_lines(graph, mine)), candidates=working or wait.candidates
    )


def _lines(graph: _Graph, tasks: Mapping[_Node, TaskSample]) -> tuple[str, ...]:
    waiting = [node for node, task in tasks.items() if task.awaits is not None]
    lines = [f"task {tasks[node].name} {_awaits(graph, node, tasks[node])}" for node in waiting[:_MOST_TOLD]]
    more = len(waiting) - _MOST_TOLD
    return (*lines, f"{more} more tasks") if more > 0 else tuple(lines)


def _awaits(graph: _Graph, node: _Node, task: TaskSample | None = None) -> str:
    task = graph.tasks.get(node, task)
    if task is None:
        return ""
    needed = graph.edges.get(node, ())
    threads = [f"thread {tid}" for pid, tid in needed if tid > 0 and pid == node[0]]
    threads += [f"pid {pid}" for pid, tid in needed if tid > 0 and pid != node[0]]
    wanted = lock_wanted(task)
    if wanted is not None and needed and needed[-1] in graph.tasks:
        what = "lock" if wanted == task.lock else "semaphore"
        return (
            f"awaits {task.awaits} of the {what} at {wanted:#x} that task {graph.tasks[needed[-1]].name} has"
        )
    if threads and task.needs:
        return f"awaits {task.awaits}, run by {', '.join(threads)}"
    if task.current:
        return "is where its thread is held up"
    return f"awaits {task.awaits}{_of_object(graph, task)}"


def _of_object(graph: _Graph, task: TaskSample) -> str:
    """Of which object, what is in it, and who is known to have a permit of it."""
    found = task.object
    if found is None:
        return ""
    inside = filling(found)
    words = f" of the {found.kind.value} at {found.address:#x}{f', {inside}' if inside else ''}"
    names = [
        other.name
        for other in graph.now.values()
        if found.kind is TaskObjectKind.SEMAPHORE and found.address in other.holds
    ]
    if not names:
        return words
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return f"{words}; in an `async with` of it: task {', '.join(names[:_MOST_TOLD])}{more}"
