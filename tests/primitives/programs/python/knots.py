"""Cycles, and holds of a thread on itself."""

import concurrent.futures
import ctypes
import os
import signal
import sys
import threading

import announce
from stage import LONG_S, alone, is_at, sleep_long, thread
from threads import Loader


@alone("future of an own pool")
def future_of_an_own_pool():
    """The only worker waits for a task that stands behind it in the queue."""
    pool = concurrent.futures.ThreadPoolExecutor(1)

    def outer():
        inner = pool.submit(int)
        announce.member("member0")
        return inner.result()

    pool.submit(outer)
    signal.pause()


@alone("future that nobody completes")
def future_of_nobody():
    it = concurrent.futures.Future()
    is_at(it)

    def want():
        announce.member("waiter")
        it.result()

    thread(want)
    signal.pause()


@alone("finaliser")
def finaliser():
    """An object's end comes while its lock is held, in the same thread."""
    lock = threading.Lock()
    is_at(lock)

    class Finalised:
        def __del__(self):
            with lock:
                pass

    def run():
        announce.member("member0")
        it = Finalised()
        with lock:
            del it

    thread(run)
    signal.pause()


@alone("finaliser by acquire")
def finaliser_by_acquire():
    lock = threading.Lock()
    is_at(lock)

    class Finalised:
        def __del__(self):
            lock.acquire()

    def run():
        announce.member("waiter")
        it = Finalised()
        lock.acquire()
        del it

    thread(run)
    signal.pause()


@alone("signal handler")
def signal_handler():
    lock = threading.Lock()
    is_at(lock)

    def handler(*_):
        with lock:
            pass

    signal.signal(signal.SIGUSR1, handler)
    announce.member("member0")
    with lock:
        os.kill(os.getpid(), signal.SIGUSR1)
        sleep_long()


@alone("GIL")
def gil():
    libc, locked_libc = ctypes.CDLL(None), ctypes.PyDLL(None)
    held = threading.Event()

    def want():
        announce.member("waiter")
        held.set()
        while True:
            libc.usleep(1000)

    def hold():
        held.wait()
        announce.member("holder")
        locked_libc.sleep(LONG_S)

    thread(want)
    thread(hold)
    signal.pause()


@alone("GIL and mutex")
def gil_and_mutex():
    libc, locked_libc = ctypes.CDLL(None), ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    held = threading.Event()

    def first():
        libc.pthread_mutex_lock(mutex)
        announce.member("member0")
        held.set()
        while True:
            libc.usleep(1000)

    def second():
        held.wait()
        announce.member("member1")
        locked_libc.pthread_mutex_lock(mutex)

    thread(first)
    thread(second)
    signal.pause()


@alone("import and RLock")
def import_and_lock():
    lock, both = threading.RLock(), threading.Barrier(2)

    def inside():
        both.wait()
        announce.member("member0")
        with lock:
            pass

    sys.meta_path.insert(0, Loader("module", inside))

    def first():
        __import__("module")

    def second():
        with lock:
            both.wait()
            announce.member("member1")
            __import__("module")

    thread(first)
    thread(second)
    signal.pause()


@alone("join and Lock")
def join_and_lock():
    """Joins a thread that wants what the joiner holds."""
    lock = threading.Lock()

    def second():
        announce.member("member1")
        with lock:
            pass

    def first():
        with lock:
            other = thread(second)
            announce.member("member0")
            other.join()

    thread(first)
    signal.pause()


@alone("future and RLock")
def future_and_lock():
    lock, pool = threading.RLock(), concurrent.futures.ThreadPoolExecutor(2)

    def second():
        announce.member("member1")
        with lock:
            pass

    def first():
        with lock:
            it = pool.submit(second)
            announce.member("member0")
            it.result()

    thread(first)
    signal.pause()
