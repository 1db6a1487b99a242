"""Waits that end by the clock and are taken up again, and naps. usage: timed_waits.py WHAT [FOLDER]"""

import asyncio
import ctypes
import fcntl
import itertools
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import announce

TRY_S = 0.4
ASK_S = 0.05
TRIES = 50
NAP_S = 50
TAKE_FILE_LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"

ASK_FOR_FILE_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1])
while True:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        time.sleep(0.05)
"""


def start(work, name="worker"):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread


def both(transfer):
    """Two threads that begin with one of two locks each."""
    first, second = threading.RLock(), threading.RLock()
    meeting = threading.Barrier(2)
    debit = start(lambda: transfer("debit", first, second, meeting), "debit")
    transfer("credit", second, first, meeting)
    debit.join()


def keep():
    """Each keeps its own lock. One waits for the other one's, one asks for it again and again."""

    def transfer(role, mine, other, meeting):
        with mine:
            meeting.wait()
            announce.member(role)
            while not other.acquire(timeout=TRY_S if role == "debit" else -1):
                pass

    both(transfer)


def give_up():
    """Each gives its own lock up before it tries again."""

    def transfer(role, mine, other, meeting):
        meeting.wait()
        announce.member(role)
        while True:
            with mine:
                if other.acquire(timeout=TRY_S):
                    other.release()

    both(transfer)


def ask():
    """Each keeps its own lock, and asks for the other one's between naps."""

    def transfer(role, mine, other, meeting):
        with mine:
            meeting.wait()
            announce.member(role)
            while not other.acquire(blocking=False):
                time.sleep(ASK_S)

    both(transfer)


def ask_and_give_up():
    """The same, but each gives its own lock up before it asks again."""

    def transfer(role, mine, other, meeting):
        meeting.wait()
        announce.member(role)
        while True:
            with mine:
                if other.acquire(blocking=False):
                    other.release()
            time.sleep(ASK_S)

    both(transfer)


def retry():
    """One keeps a lock while it tries so many times for the other one's, then gives up, and both begin anew."""
    first, second = threading.Lock(), threading.Lock()
    meeting = threading.Barrier(2)

    def tries():
        for turn in itertools.count():
            with first:
                meeting.wait()
                if turn == 0:
                    announce.member("debit")
                for _ in range(TRIES):
                    if second.acquire(timeout=TRY_S):
                        second.release()
                        break

    def waits():
        for turn in itertools.count():
            with second:
                meeting.wait()
                if turn == 0:
                    announce.member("credit")
                with first:
                    pass

    start(tries, "debit")
    waits()


def holds_what_it_needs(finish, look):
    """The main thread looks now and then whether a thread is done that wants a lock of its."""
    lock = threading.RLock()

    def work():
        announce.member("worker")
        with lock:
            finish()

    with lock:
        worker = start(work)
        announce.member("main")
        look(worker)


def works(finish, look):
    """The same with a thread that does its work, at times with the lock."""
    lock = threading.RLock()

    def work():
        announce.member("worker")
        for _ in range(10**9):
            with lock:
                sum(range(2_000_000))
        finish()

    worker = start(work)
    announce.member("main")
    look(worker)


def join(run):
    def look(worker):
        while worker.is_alive():
            worker.join(TRY_S)

    run(lambda: None, look)


def ask_join(run):
    def look(worker):
        while worker.is_alive():
            time.sleep(ASK_S)

    run(lambda: None, look)


def event(run):
    done = threading.Event()

    def look(_):
        while not done.wait(TRY_S):
            pass

    run(done.set, look)


def signal(run):
    done = threading.Event()
    run(done.set, lambda _: done.wait())


def trylock():
    """Naps until a lock is free that another thread has, which waits for the first one's."""
    first, second = threading.RLock(), threading.RLock()
    taken = threading.Event()

    def work():
        with second:
            taken.set()
            announce.member("worker")
            with first:
                pass

    with first:
        start(work)
        taken.wait()
        announce.member("main")
        while not second.acquire(blocking=False):
            time.sleep(0.05)


def items(run):
    results = queue.Queue()

    def look(_):
        while True:
            try:
                return results.get(timeout=TRY_S)
            except queue.Empty:
                continue

    run(lambda: results.put(1), look)


def condition(run):
    ready = threading.Condition()

    def finish():
        with ready:
            ready.notify()

    def look(_):
        with ready:
            while not ready.wait(TRY_S):
                pass

    run(finish, look)


def child():
    """Has a file locked that its child wants, and looks now and then whether that has ended."""
    with open(os.path.join(sys.argv[2], "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen([sys.executable, "-c", TAKE_FILE_LOCK, file.name])
        announce.member("child", process.pid)
        announce.member("main")
        while process.poll() is None:
            try:
                process.wait(TRY_S)
            except subprocess.TimeoutExpired:
                continue


def ask_child():
    """The same, asked between naps; and the child asks for the file in the same way."""
    with open(os.path.join(sys.argv[2], "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen([sys.executable, "-c", ASK_FOR_FILE_LOCK, file.name])
        announce.member("child", process.pid)
        announce.member("main")
        while process.poll() is None:
            time.sleep(ASK_S)


def poll(*, beats_after):
    """Two processes, each polls for what the other one sends after so many times in vain."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        role, mine = "parent", ours
    else:
        announce.die_with_parent()
        ours.close()
        role, mine = "child", theirs
    announce.member(role)
    in_vain = 0
    while True:
        if select.select([mine], [], [], TRY_S)[0]:
            mine.recv(1)
            in_vain = 0
        elif (in_vain := in_vain + 1) == beats_after:
            mine.send(b".")
            in_vain = 0


def nap():
    announce.member("sleeper")
    time.sleep(NAP_S)


async def tasks(*, give_up):
    """Two tasks, each keeps a lock while it tries for the other one's, or gives its own up before it tries again."""
    first, second = asyncio.Lock(), asyncio.Lock()
    meeting = [asyncio.Event(), asyncio.Event()]

    async def transfer(number, mine, other):
        async with mine:
            meeting[number].set()
            await meeting[1 - number].wait()
            while not give_up:
                await try_for(other)
        while True:
            async with mine:
                if await try_for(other):
                    leave(other)
            await asyncio.sleep(TRY_S * number)

    async def try_for(lock):
        try:
            return await asyncio.wait_for(lock.acquire(), TRY_S)
        except asyncio.TimeoutError:
            return False

    def leave(lock):
        lock.release()

    both = [
        asyncio.ensure_future(transfer(0, first, second)),
        asyncio.ensure_future(transfer(1, second, first)),
    ]
    announce.member("main")
    await asyncio.gather(*both)


async def own_loop():
    """A coroutine naps until a task of its own loop is done, which goes on only when it does not."""
    task = asyncio.ensure_future(asyncio.sleep(0))
    announce.member("main")
    while not task.done():
        time.sleep(ASK_S)


def nap_behind_join():
    worker = start(nap)
    announce.member("main")
    worker.join()


def nap_behind_child():
    process = subprocess.Popen(["sleep", str(NAP_S)])
    announce.member("sleeper", process.pid)
    announce.member("main")
    process.wait()


def nap_behind_pool():
    with ProcessPoolExecutor(2) as pool:
        task = pool.submit(nap)
        announce.member("main")
        task.result()


def nap_with_gil():
    """An extension keeps the GIL for a good while, each time."""
    started = threading.Event()

    def extend():
        started.wait()
        announce.member("sleeper")
        while True:
            ctypes.PyDLL(None).sleep(NAP_S)

    start(extend)
    announce.member("main")
    started.set()
    while True:
        os.sched_yield()


def nap_beside():
    """A worker without work and a timer, while the main thread reads commands."""
    orders = queue.Queue()
    start(orders.get)
    threading.Timer(NAP_S, print).start()
    announce.member("main")
    for line in sys.stdin:
        orders.put(line)


WHAT = {
    "keep": keep,
    "give-up": give_up,
    "child": child,
    "signal": lambda: signal(holds_what_it_needs),
    "trylock": trylock,
    "retry": retry,
    "ask": ask,
    "ask-give-up": ask_and_give_up,
    "ask-child": ask_child,
    "tasks": lambda: asyncio.run(tasks(give_up=False)),
    "tasks-give-up": lambda: asyncio.run(tasks(give_up=True)),
    "own-loop": lambda: asyncio.run(own_loop()),
    "poll": lambda: poll(beats_after=10**9),
    "poll-beats": lambda: poll(beats_after=20),
    "nap-join": nap_behind_join,
    "nap-child": nap_behind_child,
    "nap-pool": nap_behind_pool,
    "nap-gil": nap_with_gil,
    "nap-beside": nap_beside,
    **{
        f"{name}{suffix}": lambda look=look, run=run: look(run)
        for name, look in (
            ("join", join),
            ("ask-join", ask_join),
            ("event", event),
            ("items", items),
            ("condition", condition),
        )
        for suffix, run in (("", holds_what_it_needs), ("-works", works))
    },
}

WHAT[sys.argv[1]]()
