"""Programs that are well.

usage: healthy.py serve|client|asyncio|accept|threads|pool|compute|pool_naps|pool_computes|steps|orders|
       orders_of_clients|threads_in_turn|fed_queue [PATH]
"""

import asyncio
import hashlib
import multiprocessing
import os
import socket
import socketserver
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import announce

path = sys.argv[2] if len(sys.argv) > 2 else ""


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(hashlib.sha256(line).hexdigest().encode() + b"\n")


def serve():
    with socketserver.ThreadingUnixStreamServer(path, Answer) as server:
        announce.member("server")
        server.serve_forever()


def client():
    """A request every 400 ms: the pause is the load we want to show, not a synchronisation."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        answers = connection.makefile("rb")
        for number in range(10**9):
            connection.sendall(b"%d\n" % number)
            answers.readline()
            if number == 0:
                announce.member("client")
            time.sleep(0.4)


def asyncio_idle():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    async def main():
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(4, thread_name_prefix="inference")
        await asyncio.gather(*(loop.run_in_executor(pool, time.sleep, 0.01) for _ in range(4)))
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        announce.member("server")
        await server.serve_forever()

    asyncio.run(main())


def accept_idle():
    listener = socket.create_server(("127.0.0.1", 0))
    announce.member("server")
    listener.accept()


def threads_idle():
    """A thread pool with nothing to do; the main thread reads commands from standard input."""
    with ThreadPoolExecutor(4) as pool:
        meeting = threading.Barrier(4)
        list(pool.map(lambda _: meeting.wait(), range(4)))
        announce.member("main")
        for line in sys.stdin:
            pool.submit(len, line)


def pool_idle():
    listener = socket.create_server(("127.0.0.1", 0))
    with multiprocessing.get_context("fork").Pool(2, initializer=announce.die_with_parent) as pool:
        for number, pid in enumerate(sorted(set(pool.map(_pid, range(20), chunksize=1)))):
            announce.member(f"worker{number}", pid)
        announce.member("main")
        listener.accept()


def _pid(_):
    time.sleep(0.01)  # so that both workers get some
    return os.getpid()


def pool_at_work(task):
    """Pieces of work without end, of which each takes some milliseconds."""
    with multiprocessing.get_context("fork").Pool(2, initializer=announce.die_with_parent) as pool:
        for number, pid in enumerate(sorted(set(pool.map(_pid, range(20), chunksize=1)))):
            announce.member(f"worker{number}", pid)
        announce.member("main")
        pool.map(task, range(10**6), chunksize=1)


def _nap(_):
    time.sleep(0.03)


def _digest(_):
    digest = b""
    for _ in range(2000):
        digest = hashlib.sha256(digest * 64).digest()


def _started(role, work, *given):
    announce.die_with_parent()
    announce.member(role)
    work(*given)


def steps():
    """A worker that takes an order, naps, and answers; whoever asks it asks again at once."""

    def serve(end):
        while True:
            end.recv()
            time.sleep(0.03)
            end.send("done")

    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    context.Process(target=_started, args=("worker", serve, there)).start()
    announce.member("main")
    while True:
        here.send("go")
        here.recv()


def fed_queue():
    """A queue with room for two, whose consumer naps."""

    def consume(queue):
        while True:
            queue.get()
            time.sleep(0.03)

    context = multiprocessing.get_context("fork")
    queue = context.Queue(2)
    context.Process(target=_started, args=("worker", consume, queue)).start()
    announce.member("main")
    while True:
        queue.put("go")


def threads_in_turn():
    """Two threads that take turns: each naps, and wakes the other one."""
    condition, turn = threading.Condition(), [0]

    def play(mine):
        while True:
            with condition:
                while turn[0] != mine:
                    condition.wait()
                time.sleep(0.03)
                turn[0] = 1 - mine
                condition.notify()

    threading.Thread(target=play, args=(1,), daemon=True).start()
    announce.member("main")
    play(0)


def orders():
    """Two workers take orders from one queue: one computes for long, and the answer to that is awaited."""

    def take(wanted, answers):
        announce.die_with_parent()
        wanted.get()
        answers.put("begun")
        announce.member("worker")
        compute_on()

    context = multiprocessing.get_context("fork")
    wanted, answers = context.Queue(), context.Queue()
    for _ in range(2):
        context.Process(target=take, args=(wanted, answers)).start()
    wanted.put("go")
    answers.get()
    announce.member("main")
    answers.get()


def orders_of_clients():
    """The main thread hands on what workers have done, another one listens for what they are to do."""

    def take(wanted, answers):
        announce.die_with_parent()
        while True:
            answers.put(wanted.get())

    context = multiprocessing.get_context("fork")
    wanted, answers = context.Queue(), context.Queue()
    workers = [context.Process(target=take, args=(wanted, answers)) for _ in range(2)]
    for number, worker in enumerate(workers):
        worker.start()
        announce.member(f"worker{number}", worker.pid)
    listener = socket.create_server(("127.0.0.1", 0))

    def listen():
        announce.member("listener")
        while True:
            listener.accept()[0].close()
            wanted.put("go")

    threading.Thread(target=listen, daemon=True).start()
    announce.member("main")
    while True:
        answers.get()


def compute():
    announce.member("main")
    compute_on()


def compute_on():
    digest = b""
    while True:
        digest = hashlib.sha256(digest * 64).digest()


WHAT = {
    "serve": serve,
    "client": client,
    "asyncio": asyncio_idle,
    "accept": accept_idle,
    "threads": threads_idle,
    "pool": pool_idle,
    "compute": compute,
    "pool_naps": lambda: pool_at_work(_nap),
    "pool_computes": lambda: pool_at_work(_digest),
    "steps": steps,
    "fed_queue": fed_queue,
    "threads_in_turn": threads_in_turn,
    "orders": orders,
    "orders_of_clients": orders_of_clients,
}

WHAT[sys.argv[1]]()
