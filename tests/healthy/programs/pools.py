"""Pools and queues. usage: pools.py pool|executor|joblib|threads|queue|process_queue|asyncio [idle]"""

import asyncio
import concurrent.futures
import hashlib
import itertools
import multiprocessing
import queue
import sys
import threading

import announce

FORK = multiprocessing.get_context("fork")
IDLE = sys.argv[2:] == ["idle"]
FIRST = 8  # tasks done before we say that the work is under way


def task(number):
    digest = b"%d" % number
    for _ in range(20 + number % 7 * 3000):
        digest = hashlib.sha256(digest).digest()
    return digest


def report(results):
    """Announce when the first results are there, and take the others; idle: wait for a command on stdin."""
    for _ in itertools.islice(results, FIRST):
        pass
    announce.member("main")
    if IDLE:
        sys.stdin.readline()
    for _ in results:
        pass


def work():
    return range(FIRST) if IDLE else itertools.count()


def pool():
    with FORK.Pool(3, initializer=announce.die_with_parent) as workers:
        if IDLE:
            report(iter(workers.map(task, work())))
        else:
            report(result for _ in work() for result in workers.map(task, range(64), chunksize=4))


def executor():
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=FORK) as workers:
        batches = range(1) if IDLE else work()
        report(result for _ in batches for result in workers.map(task, range(64)))


def joblib():
    from joblib import Parallel, delayed

    with Parallel(n_jobs=2) as run:
        batches = range(1) if IDLE else work()
        report(result for _ in batches for result in run(delayed(task)(number) for number in range(64)))


def threads():
    with concurrent.futures.ThreadPoolExecutor(4) as workers:
        batches = range(1) if IDLE else work()
        report(result for _ in batches for result in workers.map(task, range(64)))


def between(tasks, results, start):
    """Producers fill one bounded queue, consumers take from it and give the results to another one."""

    def produce():
        for number in range(FIRST) if IDLE else itertools.count():
            tasks.put(number)

    def consume():
        while True:
            results.put(task(tasks.get()))

    for target in (produce, produce, consume, consume, consume):
        start(target)
    report(results.get() for _ in work())


def thread_queue():
    between(
        queue.Queue(4), queue.Queue(4), lambda target: threading.Thread(target=target, daemon=True).start()
    )


def process_queue():
    def start(target):
        def run():
            announce.die_with_parent()
            target()

        FORK.Process(target=run, daemon=True).start()

    between(FORK.Queue(4), FORK.Queue(4), start)


def asyncio_executors():
    async def main():
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(3) as workers:
            limit, done, begun = asyncio.Semaphore(6), itertools.count(1), asyncio.Event()

            async def one(number):
                async with limit:
                    await loop.run_in_executor(workers, task, number)
                if next(done) == FIRST:
                    begun.set()

            async def batches():
                for _ in itertools.count():
                    await asyncio.gather(*(one(number) for number in range(24)))
                    if IDLE:
                        return

            running = asyncio.create_task(batches())
            await begun.wait()
            announce.member("main")
            await (asyncio.Event().wait() if IDLE else running)

    asyncio.run(main())


WHAT = {
    "pool": pool,
    "executor": executor,
    "joblib": joblib,
    "threads": threads,
    "queue": thread_queue,
    "process_queue": process_queue,
    "asyncio": asyncio_executors,
}

WHAT[sys.argv[1]]()
