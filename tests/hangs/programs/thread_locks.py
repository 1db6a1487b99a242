"""Threads of one process that do not come past each other.

usage: thread_locks.py mutex-cycle|lock-cycle|rlock-cycle|gil-mutex|gil-sleep
"""

import ctypes
import os
import sys
import threading

import announce

libc = ctypes.CDLL(None)
libc_with_gil = ctypes.PyDLL(None)


class Mutex:
    def __init__(self):
        self.storage = ctypes.create_string_buffer(64)

    def acquire(self):
        libc.pthread_mutex_lock(self.storage)


def run(**threads):
    started = [threading.Thread(target=work, name=name) for name, work in threads.items()]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def cycle(make):
    first, second = make(), make()
    both_hold_one = threading.Barrier(2)

    def transfer(role, mine, other):
        mine.acquire()
        both_hold_one.wait()
        announce.member(role)
        other.acquire()

    run(
        debit=lambda: transfer("debit", first, second),
        credit=lambda: transfer("credit", second, first),
    )


def gil_mutex():
    """One holds the mutex and wants the GIL, the other one the GIL and wants the mutex."""
    mutex = Mutex()
    locked = threading.Event()

    def call_back():
        mutex.acquire()
        announce.member("callback")
        locked.set()
        while True:
            os.sched_yield()

    def flush():
        locked.wait()
        announce.member("flush")
        libc_with_gil.pthread_mutex_lock(mutex.storage)

    run(callback=call_back, flush=flush)


def gil_sleep():
    """An extension sleeps and keeps the GIL."""
    started = threading.Event()

    def serve():
        announce.member("server")
        started.set()
        while True:
            os.sched_yield()

    def poll_device():
        started.wait()
        announce.member("extension")
        libc_with_gil.sleep(3600)

    run(server=serve, extension=poll_device)


WHAT = {
    "mutex-cycle": lambda: cycle(Mutex),
    "lock-cycle": lambda: cycle(threading.Lock),
    "rlock-cycle": lambda: cycle(threading.RLock),
    "gil-mutex": gil_mutex,
    "gil-sleep": gil_sleep,
}

WHAT[sys.argv[1]]()
