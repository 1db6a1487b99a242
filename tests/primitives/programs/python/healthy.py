"""What waits for work, and nothing else."""

import asyncio
import concurrent.futures
import contextlib
import functools
import queue
import select
import signal
import socket

import announce
from loops import FOR_EVER, for_ever, in_loop, want_each_other
from shared import fork, process
from stage import KEEP, LONG_S, alone, thread


@alone("idle thread pool")
def idle_thread_pool():
    pool = concurrent.futures.ThreadPoolExecutor(4)
    list(pool.map(abs, range(8)))
    announce.member("waiter")
    socket.create_server(("127.0.0.1", 0)).accept()


@alone("idle queue workers")
def idle_queue_workers():
    work = queue.Queue()

    def worker():
        while True:
            work.get()

    for _ in range(3):
        thread(worker)
    announce.member("waiter")
    socket.create_server(("127.0.0.1", 0)).accept()


@alone("idle event loop")
def idle_event_loop():
    async def main():
        server = await asyncio.start_server(print, "127.0.0.1", 0)
        async with server:
            await server.serve_forever()

    in_loop(main)


@alone("idle process pool")
def idle_process_pool():
    pool = fork.Pool(2)
    pool.map(abs, range(4))
    announce.member("waiter")
    socket.create_server(("127.0.0.1", 0)).accept()


@alone("idle executor of processes")
def idle_executor():
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=fork)
    list(pool.map(abs, range(4)))
    announce.member("waiter")
    socket.create_server(("127.0.0.1", 0)).accept()


@alone("socketserver")
def socket_server():
    import socketserver

    announce.member("waiter")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.serve_forever()


@alone("select of an own pair")
def select_of_an_own_pair():
    """A thread may write any time."""
    one, other = socket.socketpair()
    KEEP.append(other)

    def other_thread():
        announce.member("holder")
        select.select([], [], [], LONG_S)

    thread(other_thread)
    announce.member("waiter")
    select.select([one], [], [])


@alone("idle consumers of a shared queue")
def idle_consumers():
    """One has the lock and reads, the others want the lock."""
    work = fork.Queue()

    def consume():
        while True:
            work.get()

    for _ in range(3):
        process(consume)
    announce.member("waiter")
    socket.create_server(("127.0.0.1", 0)).accept()


@alone("server in a pool")
def server_in_a_pool():
    """The main thread waits for the result of a task that serves."""

    def serve():
        announce.member("waiter")
        socket.create_server(("127.0.0.1", 0)).accept()

    concurrent.futures.ThreadPoolExecutor(2).submit(serve).result()


@alone("server beyond the end")
def server_beyond_the_end():
    """The main thread has ended but for the thread that serves."""

    def serve():
        announce.member("waiter")
        socket.create_server(("127.0.0.1", 0)).accept()

    thread(serve)


@alone("asyncio ring that times out")
def ring_that_times_out():
    async def main():
        await asyncio.wait_for(want_each_other(asyncio.Lock(), asyncio.Lock(), []), 50)

    in_loop(main)


def woken(what, by):
    """The same objects as those that are waited for for ever, and somebody who may yet end it."""

    async def main():
        KEEP.append(await by(asyncio.get_running_loop()))
        await for_ever(what)()

    asyncio.run(main())


async def by_timer(loop):
    return loop.call_later(50, loop.stop)


async def by_thread(loop):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        listener.accept()
        loop.call_soon_threadsafe(loop.stop)

    return thread(serve, daemon=True)


async def by_socket(loop):
    return await asyncio.start_server(lambda *_: loop.stop(), "127.0.0.1", 0)


async def by_signal(loop):
    return loop.add_signal_handler(signal.SIGUSR1, loop.stop)


WAKERS = {"timer": by_timer, "thread": by_thread, "socket": by_socket, "signal": by_signal}

for _what in FOR_EVER:
    for _name, _by in WAKERS.items():
        alone(f"asyncio.{_what} and a {_name}")(functools.partial(woken, _what, _by))


@alone("asyncio.Lock given up in its block")
def lock_given_up():
    """One stands in the block of the first lock and wants the second, one the other way round; but a server has the
    first one, which was given up for the time of the block."""

    async def main():
        first, second, given, taken = asyncio.Lock(), asyncio.Lock(), asyncio.Event(), asyncio.Event()

        async def waits():
            async with second:
                await taken.wait()
                async with first:
                    pass

        async def gives_up():
            async with first:
                first.release()
                given.set()
                try:
                    async with second:
                        pass
                finally:
                    await first.acquire()

        async def serves():
            await given.wait()
            await first.acquire()
            taken.set()
            async with await asyncio.start_server(print, "127.0.0.1", 0) as server:
                await server.serve_forever()

        await asyncio.gather(waits(), gives_up(), serves())

    in_loop(main)


@alone("server in a worker of a loop")
def server_in_a_worker():
    async def main():
        listener = socket.create_server(("127.0.0.1", 0))
        await asyncio.get_running_loop().run_in_executor(None, listener.accept)

    in_loop(main)


def serve_in_a_process():
    socket.create_server(("127.0.0.1", 0)).accept()


@alone("server in a process of a loop")
def server_in_a_process():
    async def main():
        pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=fork)
        await asyncio.get_running_loop().run_in_executor(pool, serve_in_a_process)

    in_loop(main)


@alone("result of a loop that serves")
def result_of_a_loop_that_serves():
    """The thread of one loop asks another one, again and again."""
    loop = asyncio.new_event_loop()
    thread(loop.run_forever, daemon=True)

    async def serve():
        async with await asyncio.start_server(print, "127.0.0.1", 0) as server:
            await server.serve_forever()

    async def main():
        future = asyncio.run_coroutine_threadsafe(serve(), loop)
        announce.member("waiter")
        while not future.done():
            with contextlib.suppress(concurrent.futures.TimeoutError):
                future.result(0.3)

    asyncio.run(main())


@alone("thread of a task that serves")
def thread_of_a_task_that_serves():
    async def main():
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)

        def ask():
            asyncio.run_coroutine_threadsafe(loop.sock_accept(listener), loop).result()

        await loop.run_in_executor(None, ask)

    in_loop(main)
