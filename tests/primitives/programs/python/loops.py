"""Event loops of asyncio."""

import asyncio
import concurrent.futures
import threading

import announce
from stage import KEEP, LONG_S, alone, holding


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
