"""Objects of Python's own libraries, by what the frames that wait on them or work for them hold.

A worker of a pool holds the item it works on, and the item its future: who computes a result is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Call, Meaning, short
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import NamedValue, ThreadSample

# Name of a future as the object of a wait.
FUTURE = "Future"

# Where the wait of one piece of work ends and the work itself, or the thread, begins.
_OUTSIDE = frozenset({"run", "_bootstrap_inner", "_worker"})


def thing(sample: ThreadSample, call: Call | None) -> WaitObject:
    """The object whose method a thread waits in; where that is not known, the lock it sleeps on."""
    own = _self_of(sample, call)
    return holders.lock_object(sample, address=own.address if own is not None else None)


def _self_of(sample: ThreadSample, call: Call | None) -> NamedValue | None:
    if call is None:
        return None
    found = None
    for value in sample.named_values:
        if short(value.function) in _OUTSIDE:
            break
        # Before Python 3.11 a wait inside of the wait has the same name: the outer one is what was called.
        if value.name == "self" and value.function == call.frame.function:
            found = value
    return found


def filling(sample: ThreadSample, call: Call | None) -> tuple[str, ...]:
    """How many have come, or how much is in it, as evidence."""
    if call is None:
        return ()

    def first(name: str) -> NamedValue | None:
        return next((value for value in sample.named_values if value.name == name), None)

    if call.meaning is Meaning.BARRIER:
        parties, come = first("_parties"), first("_count")
        if parties is not None and come is not None:
            return (f"{come.value} of {parties.value} have come to the barrier",)
    if call.meaning in (Meaning.QUEUE_GET, Meaning.QUEUE_PUT):
        content, most = first("queue"), first("maxsize")
        unfinished = first("unfinished_tasks")
        if call.op == "join" and unfinished is not None:
            return (f"queue with {unfinished.value} unfinished tasks",)
        if content is not None and content.length is not None:
            limit = most.value if most is not None and isinstance(most.value, int) else 0
            return (f"queue with {content.length}{f' of {limit}' if limit > 0 else ''} in it",)
    return ()


def future(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """The result of a future that a thread of a pool works on, or that stands in the queue of one."""
    if draft.call is None or draft.call.meaning is not Meaning.FUTURE:
        return None
    if holders.lock_owner(scene, sample) is not None:
        return None  # it is not that far: somebody has the lock of the future
    wanted, edge = _futures(sample, draft.call)
    at_work = [scene.values.working_on(sample.pid, address) for address in wanted]
    working = [key for keys in at_work for key in keys]
    found = changed(
        draft,
        kind=WaitKind.CONDITION,
        standing=Standing.FIRM,
        cause=Kind.UNKNOWN,
        object=changed(thing(sample, draft.call), name=FUTURE),
    )
    if working and (edge is Edge.ALL or all(at_work)):
        one = working[0] if len(working) == 1 else None
        held = ", ".join(str(tid) for _, tid in working)
        return changed(
            found,
            targets=tuple(working),
            holder=holders.thread_holder(one),
            candidates=tuple(working),
            edge=edge,
            evidence=(*draft.evidence, f"work item of the future: thread {held} runs it"),
        )
    if len(wanted) == 1:
        pool = _queued_in(scene, sample.pid, wanted[0])
        if pool:
            return changed(
                found,
                basis=Confidence.LIKELY,  # a pool may yet get another worker
                targets=pool,
                holder=holders.thread_holder(pool[0]) if len(pool) == 1 else None,
                candidates=pool,
                edge=Edge.ANY,
                evidence=(*draft.evidence, "the future stands in the queue of a pool of threads"),
            )
    return None


def _futures(sample: ThreadSample, call: Call) -> tuple[tuple[int, ...], Edge]:
    """Addresses of the futures that a thread waits for, and whether all of them are needed."""
    own = _self_of(sample, call)
    if call.op in ("result", "exception"):
        return (own.address,) if own is not None and own.address else (), Edge.ALL
    name = "not_done[]" if call.op == "wait" else "pending[]"
    for value in sample.named_values:
        if value.name == name and value.length == len(value.members):
            how = holders.named(sample, ("return_when",))
            return value.members, Edge.ALL if how == "ALL_COMPLETED" else Edge.ANY
    return (), Edge.ALL


def awaited(scene: Scene, wait: Blocked) -> tuple[int, ...]:
    """Addresses of the futures that a thread waits for, all of which it needs; () for another wait."""
    sample = scene.thread(wait.key)
    if sample is None or wait.call is None or wait.call.meaning is not Meaning.FUTURE:
        return ()
    wanted, edge = _futures(sample, wait.call)
    return wanted if edge is Edge.ALL or len(wanted) == 1 else ()


def _queued_in(scene: Scene, pid: int, address: int) -> tuple[Key, ...]:
    """The workers of the pool in whose queue a future stands."""
    queued = {key for key, value in scene.values.of(pid, "work_queue[].future") if address in value.members}
    queues = {value.address for key, value in scene.values.of(pid, "work_queue") if key in queued}
    return tuple(key for key, value in scene.values.of(pid, "work_queue") if value.address in queues)


def with_the_task(scene: Scene, sample: ThreadSample, call: Call, workers: Sequence[int]) -> tuple[int, ...]:
    """Of the processes of a pool those that work on what a thread waits for; none if that is not known."""
    if call.meaning is not Meaning.POOL_RESULT:
        own = _self_of(sample, call)
        return processes_working_on(scene, sample.pid, own.address, workers) if own and own.address else ()
    job = holders.named(sample, ("_job",))
    return _busy_with(scene, workers, "job", "worker", job) if isinstance(job, int) else ()


def processes_working_on(
    scene: Scene, pid: int, future_address: int, workers: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Of `workers`, or all children, those that work on a future of a pool of processes; none if nobody has begun, or
    where another pool may be meant.
    """
    found = _work_item(scene, pid, future_address)
    if found is None:
        return ()
    manager, number = found
    among = workers if workers is not None else scene.children.get(pid, ())
    busy = _busy_with(scene, among, "call_item.work_id", "_process_worker", number)
    if len(busy) < 2:
        return busy
    # Each pool counts from the start.
    own = next((value.members[::2] for key, value in scene.values.of(pid, "processes") if key == manager), ())
    return tuple(each for each in busy if each in own)


def _busy_with(scene: Scene, workers: Sequence[int], name: str, function: str, task: int) -> tuple[int, ...]:
    return tuple(
        pid
        for pid in workers
        if any(
            value.value == task and short(value.function) == function
            for _, value in scene.values.of(pid, name)
        )
    )


def _work_item(scene: Scene, pid: int, future_address: int) -> tuple[Key, int] | None:
    """The thread that manages a pool of processes, and under which number it keeps a future; None if several do, or
    none.
    """
    found = []
    for key, futures in scene.values.of(pid, "pending_work_items[].future"):
        items = next(
            (value for other, value in scene.values.of(pid, "pending_work_items") if other == key), None
        )
        if items is None or len(items.members) != 2 * len(futures.members):
            continue
        found += [
            (key, number)
            for number, address in zip(items.members[::2], futures.members, strict=True)
            if address == future_address
        ]
    return found[0] if len(found) == 1 else None


def awaited_at_exit(scene: Scene, key: Key) -> tuple[Key, ...]:
    """Threads that the interpreter waits for before it ends: all that are no daemons."""
    return tuple(
        other
        for other, value in scene.values.of(key[0], "_daemonic")
        if other != key and value.value == 0 and short(value.function) == "_bootstrap_inner"
    )
