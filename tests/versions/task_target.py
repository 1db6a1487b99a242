"""A program with asyncio tasks in every kind of wait. It prints how it sees them itself, one JSON object, then
stays: its event loop sleeps with nothing to do."""

import asyncio
import json
import os
import sys
import threading

#: Of a thread whose task must come into the loop.
DEADLINE_S = 30

SINCE_311 = sys.version_info >= (3, 11)
SINCE_312 = sys.version_info >= (3, 12)


def awaited_by(coroutine):
    """The chain of frames below a coroutine, outermost first, as the interpreter tells it."""
    frames = []
    while coroutine is not None:
        frame = None
        for prefix in ("cr", "gi", "ag"):
            if hasattr(coroutine, prefix + "_frame"):
                frame = getattr(coroutine, prefix + "_frame")
                following = getattr(coroutine, prefix + ("_yieldfrom" if prefix == "gi" else "_await"))
                break
        if frame is None:
            # Between two coroutines may stand an iterator that keeps the inner one to itself.
            inner = HIDDEN.get(type(coroutine).__name__)
            coroutine = inner(coroutine) if inner else None
            continue
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        coroutine = following
    return frames


def first_referent(wrapper):
    """What a wrapper iterator keeps: the only coroutine or generator it refers to."""
    import gc

    for one in gc.get_referents(wrapper):
        if any(hasattr(one, prefix + "_frame") for prefix in ("cr", "gi", "ag")):
            return one
    return None


HIDDEN = {
    "coroutine_wrapper": first_referent,
    "async_generator_asend": first_referent,
    "async_generator_athrow": first_referent,
    "anext_awaitable": first_referent,
}


async def nested(depth, awaitable):
    if depth == 0:
        return await awaitable
    return await nested(depth - 1, awaitable)


async def forever(awaitable):
    await awaitable


async def numbers(event):
    yield 1
    await event.wait()
    yield 2


async def over_generator(event):
    async for _ in numbers(event):
        pass


async def by_asend(event):
    generator = numbers(event)
    await generator.asend(None)
    await generator.asend(None)


async def nested_timeout(event):
    async with asyncio.timeout(6000):
        async with asyncio.timeout(None):
            await event.wait()


class Custom:
    def __init__(self, event):
        self.event = event

    def __await__(self):
        return self.event.wait().__await__()


class Manager:
    def __init__(self, event):
        self.event = event

    async def __aenter__(self):
        await self.event.wait()

    async def __aexit__(self, *_):
        pass


async def inside_with(event):
    async with Manager(event):
        pass


async def holding(lock, event):
    async with lock:
        await event.wait()


async def locked(lock):
    async with lock:
        pass


async def unlocked(lock, event):
    """Gives its lock up for the body of the block."""
    async with lock:
        lock.release()
        try:
            await event.wait()
        finally:
            await lock.acquire()


async def for_a_thread(arrived, event):
    asyncio.current_task().set_name("for-a-thread")
    arrived.set()
    await event.wait()


async def gathered(event):
    await asyncio.gather(event.wait(), asyncio.sleep(0), event.wait())


async def timed(queue):
    await asyncio.wait_for(queue.get(), 5000)


async def waited(event):
    await asyncio.wait([asyncio.ensure_future(event.wait())])


async def in_group(event):
    async with asyncio.TaskGroup() as group:
        group.create_task(event.wait(), name="in-the-group")


async def shielded(event):
    await asyncio.shield(event.wait())


async def in_executor(loop, fd):
    await loop.run_in_executor(None, os.read, fd, 1)


async def conditional(condition):
    async with condition:
        await condition.wait()


async def fails():
    raise KeyError("x")


async def awaits_task(task):
    await task


async def reads(reader):
    await reader.readline()


async def main():
    loop = asyncio.get_running_loop()
    event, queue, lock, future = asyncio.Event(), asyncio.Queue(), asyncio.Lock(), loop.create_future()
    full = asyncio.Queue(1)
    full.put_nowait(0)
    taken = asyncio.Semaphore(0)
    # The other end is never written to.
    held, _ = os.pipe()
    expected = {}
    tasks = []

    def start(name, coroutine, awaits):
        task = asyncio.ensure_future(coroutine)
        task.set_name(name)
        tasks.append(task)
        expected[name] = awaits
        return task

    for number in range(10):
        start(f"queue-{number}", forever(queue.get()), "Queue.get")
    for number in range(10):
        start(f"deep-{number}", nested(number, event.wait()), "Event.wait")
    start("put", forever(full.put(1)), "Queue.put")
    start("holder", holding(lock, event), "Event.wait")
    start("locked", locked(lock), "Lock.acquire")
    free = asyncio.Lock()
    start("unlocked", unlocked(free, event), "Event.wait")
    start("taker", holding(free, event), "Event.wait")
    start("semaphore", forever(taken.acquire()), "Semaphore.acquire")
    condition, permits, unfinished = asyncio.Condition(), asyncio.BoundedSemaphore(2), asyncio.PriorityQueue()
    unfinished.put_nowait(0)
    start("condition", conditional(condition), "Condition.wait")
    for number in range(2):
        start(f"permit-{number}", holding(permits, event), "Event.wait")
    start("no permit", forever(permits.acquire()), "BoundedSemaphore.acquire")
    start("joins", forever(unfinished.join()), "PriorityQueue.join")
    # Kind, method, and how many of how many.
    objects = {
        "queue-0": ["queue", "get", id(queue), 0, 0],
        "put": ["queue", "put", id(full), 1, 1],
        "joins": ["queue", "join", id(unfinished), 1, 0],
        "locked": ["lock", "acquire", id(lock), None, None],
        "semaphore": ["semaphore", "acquire", id(taken), 0, None],
        "no permit": ["semaphore", "acquire", id(permits), 0, 2],
        "condition": ["condition", "wait", id(condition), None, None],
        "deep-9": ["event", "wait", id(event), None, None],
        "custom": ["event", "wait", id(event), None, None],
    }
    start("gather", gathered(event), "gather of 3, 2 pending")
    start("timed", timed(queue), "Queue.get" if SINCE_312 else "wait_for")
    start("wait", waited(event), "wait")
    start("sleep", forever(asyncio.sleep(5000)), "sleep")
    start("shield", shielded(event), "shield")
    start("future", forever(future), "Future")
    start("executor", in_executor(loop, held), "a call in another thread")
    start("generator", over_generator(event), "Event.wait")
    start("asend", by_asend(event), "Event.wait")
    start("custom", forever(Custom(event)), "Event.wait")
    start("manager", inside_with(event), "Event.wait")
    start("stream", reads(asyncio.StreamReader()), "StreamReader._wait_for_data")
    other = start("other", forever(event.wait()), "Event.wait")
    start("task", awaits_task(other), "task 'other'")
    start("failed", fails(), None)
    start("\u00fcml\u00e4ut \U0001f40d", forever(event.wait()), "Event.wait")
    # Nobody names this one.
    unnamed = asyncio.ensure_future(forever(event.wait()))
    tasks.append(unnamed)
    if SINCE_311:
        barrier = asyncio.Barrier(3)
        for number in range(2):
            start(f"barrier-{number}", forever(barrier.wait()), "Barrier.wait")
            objects[f"barrier-{number}"] = ["barrier", "wait", id(barrier), 2, 3]
        start("timeout", nested_timeout(event), "Event.wait")
        start("group", in_group(event), "TaskGroup.__aexit__")
    if SINCE_312:
        eager = asyncio.eager_task_factory(loop, forever(event.wait()), name="eager")
        tasks.append(eager)
        expected["eager"] = "Event.wait"

    arrived = asyncio.Event()

    def wait_for_task():
        asyncio.run_coroutine_threadsafe(for_a_thread(arrived, event), loop).result()

    expected["for-a-thread"] = "Event.wait"
    threading.Thread(target=wait_for_task, daemon=True).start()
    for _ in range(20):
        await asyncio.sleep(0)
    try:
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
    except asyncio.TimeoutError:
        print("the task that a thread asks for never came", file=sys.stderr, flush=True)
        # An exception would wait for the thread of the executor, which reads for ever.
        os._exit(1)

    def report():
        expected[unnamed.get_name()] = "Event.wait"
        answer = {
            "pid": os.getpid(),
            "objects": objects,
            "permits": id(permits),
            "tasks": {
                task.get_name(): {
                    "done": task.done(),
                    "stack": [] if task.done() else awaited_by(task.get_coro())[::-1],
                    "awaits": expected.get(task.get_name(), "?"),
                }
                for task in asyncio.all_tasks(loop) | {one for one in tasks if one.done()}
            },
        }
        print(json.dumps(answer), flush=True)

    # From the loop itself: then every task stands where it will stay.
    loop.call_soon(report)
    await event.wait()


async def churn():
    """Makes and ends tasks as fast as it can, for ever."""
    print(json.dumps({"pid": os.getpid()}), flush=True)

    async def middle(depth):
        if depth:
            return await middle(depth - 1)
        await asyncio.sleep(0)

    while True:
        await asyncio.gather(*[middle(number % 7) for number in range(50)])


async def blocks(fd):
    print(json.dumps({"pid": os.getpid()}), flush=True)
    os.read(fd, 1)


async def block():
    """One task blocks the thread of its loop, the other one never gets its turn."""
    held, _ = os.pipe()
    blocked = asyncio.ensure_future(nested(2, blocks(held)))
    blocked.set_name("blocked")
    waits = asyncio.ensure_future(asyncio.sleep(0))
    waits.set_name("waits")
    await blocked


asyncio.run({"main": main, "churn": churn, "block": block}[sys.argv[1] if len(sys.argv) > 1 else "main"]())
