"""Event loops of asyncio."""

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import threading
import time

import announce
from shared import fork, pool_task
from stage import KEEP, LONG_S, alone, holding, is_at, thread


def in_loop(main):
    announce.member("waiter")
    asyncio.run(main())


@alone("asyncio.Lock")
def asyncio_lock():
    async def main():
        lock = asyncio.Lock()

        async def hold():
            async with lock:
                await asyncio.sleep(LONG_S)

        KEEP.append(asyncio.ensure_future(hold()))
        await asyncio.sleep(0)
        async with lock:
            pass

    in_loop(main)


@alone("asyncio.Event")
def asyncio_event():
    async def main():
        await asyncio.Event().wait()

    in_loop(main)


@alone("asyncio.Queue")
def asyncio_queue():
    async def main():
        await asyncio.Queue().get()

    in_loop(main)


async def takes_all(permits):
    await permits.acquire()
    await permits.acquire()


async def fills(queue):
    await queue.put(1)
    await queue.put(2)


async def joins(queue):
    """Its only worker has taken the only item and waits for what nobody does."""
    queue.put_nowait(1)

    async def work():
        await queue.get()
        await asyncio.Event().wait()

    KEEP.append(asyncio.ensure_future(work()))
    await queue.join()


async def meets(barrier):
    await asyncio.gather(barrier.wait(), barrier.wait())


async def waits_for(condition):
    async with condition:
        await condition.wait()


# What tasks of a loop may wait for for ever, how it is made, and what they do.
FOR_EVER = {
    "Semaphore": (lambda: asyncio.Semaphore(1), takes_all),
    "Queue.put": (lambda: asyncio.Queue(1), fills),
    "Queue.join": (asyncio.Queue, joins),
    "Barrier": (lambda: asyncio.Barrier(3), meets),  # since 3.11
    "Condition": (asyncio.Condition, waits_for),
}


def for_ever(name):
    make, waits = FOR_EVER[name]

    async def main():
        it = make()
        is_at(it)
        announce.member("waiter")
        await waits(it)

    return main


@alone("asyncio.Semaphore")
def asyncio_semaphore():
    asyncio.run(for_ever("Semaphore")())


@alone("asyncio.Queue.put")
def asyncio_queue_put():
    asyncio.run(for_ever("Queue.put")())


@alone("asyncio.Queue.join")
def asyncio_queue_join():
    asyncio.run(for_ever("Queue.join")())


@alone("asyncio.Barrier")
def asyncio_barrier():
    asyncio.run(for_ever("Barrier")())


@alone("asyncio.Condition")
def asyncio_condition():
    asyncio.run(for_ever("Condition")())


@alone("asyncio.BoundedSemaphore ring")
def asyncio_semaphore_ring():
    async def main():
        await want_each_other(asyncio.BoundedSemaphore(1), asyncio.BoundedSemaphore(1), [])

    in_loop(main)


@alone("asyncio.gather")
def asyncio_gather():
    async def main():
        await asyncio.gather(asyncio.Event().wait(), asyncio.sleep(LONG_S))

    in_loop(main)


@alone("asyncio.wait_for")
def asyncio_wait_for():
    async def main():
        await asyncio.wait_for(asyncio.Event().wait(), LONG_S)

    in_loop(main)


@alone("asyncio cycle")
def asyncio_cycle():
    """Two tasks that wait for each other."""

    async def main():
        tasks = []

        async def member(i):
            await asyncio.sleep(0)
            await tasks[1 - i]

        tasks.extend(asyncio.ensure_future(member(i)) for i in range(2))
        await asyncio.wait(tasks)

    in_loop(main)


@alone("asyncio.to_thread")
def asyncio_to_thread():
    async def main():
        await asyncio.get_running_loop().run_in_executor(None, holding)

    in_loop(main)


@alone("asyncio and a process pool")
def asyncio_and_a_process_pool():
    async def main():
        # Two pools number their work alike.
        pools = [concurrent.futures.ProcessPoolExecutor(1, mp_context=fork) for _ in range(2)]
        KEEP.append(pools[0].submit(time.sleep, LONG_S))
        await asyncio.get_running_loop().run_in_executor(pools[1], pool_task, 1)

    in_loop(main)


@alone("asyncio.to_thread and RLock")
def asyncio_to_thread_and_lock():
    """The loop's thread joins the pool's worker by a blocking call: it wants a lock that the loop's thread holds."""
    lock = threading.RLock()

    def want():
        announce.member("member1")
        with lock:
            pass

    async def main():
        pool = concurrent.futures.ThreadPoolExecutor(1)
        with lock:
            it = pool.submit(want)
            announce.member("member0")
            it.result()

    asyncio.run(main())


async def nothing():
    pass


def ask_own_loop(ask):
    """Hand a coroutine to the loop that this thread runs, and block the thread until it is done."""

    async def main():
        future = asyncio.run_coroutine_threadsafe(nothing(), asyncio.get_running_loop())
        announce.member("waiter")
        ask(future)

    asyncio.run(main())


@alone("result of its own loop")
def result_of_its_own_loop():
    ask_own_loop(lambda future: future.result())


@alone("result of its own loop, retried")
def result_of_its_own_loop_retried():
    def ask(future):
        while not future.done():
            with contextlib.suppress(concurrent.futures.TimeoutError):
                future.result(0.3)

    ask_own_loop(ask)


async def want_each_other(first, second, both):
    async def member(mine, other):
        async with mine:
            both.append(mine)
            while len(both) < 2:
                await asyncio.sleep(0)
            async with other:
                pass

    await asyncio.gather(member(first, second), member(second, first))


@alone("asyncio.Lock ring")
def asyncio_lock_ring():
    async def main():
        await want_each_other(asyncio.Lock(), asyncio.Lock(), [])

    in_loop(main)


@alone("asyncio.Lock ring behind a server")
def asyncio_lock_ring_behind_a_server():
    async def main():
        server = await asyncio.start_server(print, "127.0.0.1", 0)
        KEEP.append(asyncio.ensure_future(want_each_other(asyncio.Lock(), asyncio.Lock(), [])))
        async with server:
            await server.serve_forever()

    in_loop(main)


@alone("asyncio.Condition and Lock")
def asyncio_condition_ring():
    async def main():
        await want_each_other(asyncio.Lock(), asyncio.Condition(), [])

    in_loop(main)


@alone("asyncio.Lock in itself")
def asyncio_lock_in_itself():
    async def main():
        lock = asyncio.Lock()
        async with lock, lock:
            pass

    in_loop(main)


@alone("asyncio task asking for its own end")
def asyncio_done():
    async def main():
        me = asyncio.current_task()
        announce.member("waiter")
        while not me.done():
            await asyncio.sleep(0.2)

    asyncio.run(main())


@alone("asyncio task asking beside a server")
def asyncio_done_server():
    async def main():
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        announce.member("waiter")
        while not asyncio.current_task().done():
            await asyncio.sleep(0.2)
        server.close()

    asyncio.run(main())


@alone("asyncio stream")
def asyncio_stream():
    here, there = socket.socketpair()
    if os.fork() == 0:
        announce.die_with_parent()
        here.close()
        holding()
    there.close()

    async def main():
        reader, _ = await asyncio.open_connection(sock=here)
        announce.member("waiter")
        await reader.readexactly(1)

    asyncio.run(main())


@alone("asyncio.Lock by acquire")
def asyncio_lock_by_acquire():
    async def main():
        lock = asyncio.Lock()
        is_at(lock)
        announce.member("waiter")
        await lock.acquire()
        await lock.acquire()

    asyncio.run(main())


@alone("task, worker and thread")
def task_worker_and_thread():
    """A task has a lock of asyncio and awaits a worker, which wants the lock of a thread that waits for a task."""
    lock = threading.RLock()

    def worker():
        announce.member("member1")
        with lock:
            pass

    async def want(wanted):
        async with wanted:
            pass

    def holder(wanted, loop, held):
        with lock:
            loop.call_soon_threadsafe(held.set)
            announce.member("member2")
            asyncio.run_coroutine_threadsafe(want(wanted), loop).result()

    async def main():
        loop, wanted, held = asyncio.get_running_loop(), asyncio.Lock(), asyncio.Event()
        async with wanted:
            thread(holder, wanted, loop, held, daemon=True)
            await held.wait()
            announce.member("member0")
            await loop.run_in_executor(None, worker)

    asyncio.run(main())


@alone("run_coroutine_threadsafe and RLock")
def handed_over_and_lock():
    """A worker waits for a coroutine that it has handed to a loop, whose thread wants the lock of the worker."""
    lock, held = threading.RLock(), threading.Event()

    async def nothing():
        pass

    def worker(loop):
        with lock:
            held.set()
            announce.member("member1")
            asyncio.run_coroutine_threadsafe(nothing(), loop).result()

    async def main():
        loop = asyncio.get_running_loop()
        KEEP.append(loop.run_in_executor(None, worker, loop))
        held.wait()
        announce.member("member0")
        with lock:
            pass

    asyncio.run(main())
