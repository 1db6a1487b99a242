"""Ends of the interpreter, children, and what fork leaves behind."""

import concurrent.futures
import os
import signal
import subprocess
import threading

import announce
from stage import KEEP, LONG_S, alone, holding, is_at, sleep_long, thread


@alone("shutdown of threads")
def shutdown_of_threads():
    """The main thread waits at exit for a thread that is no daemon."""
    there = threading.Event()

    def stay():
        there.set()
        holding()

    thread(stay)
    there.wait()
    announce.member("waiter")


@alone("shutdown of a pool")
def shutdown_of_a_pool():
    there = threading.Event()

    def stay():
        there.set()
        holding()

    KEEP.append(concurrent.futures.ThreadPoolExecutor(3))
    KEEP[0].submit(stay)
    there.wait()
    announce.member("waiter")


def held_in_the_parent(lock):
    held = threading.Event()

    def hold():
        with lock:
            announce.member("holder")
            held.set()
            sleep_long()

    thread(hold)
    held.wait()
    if os.fork() == 0:
        announce.die_with_parent()
        announce.member("waiter")
        with lock:
            pass
    signal.pause()


@alone("after fork")
def after_fork():
    lock = threading.Lock()
    is_at(lock)
    held_in_the_parent(lock)


@alone("RLock after fork")
def rlock_after_fork():
    lock = threading.RLock()
    is_at(lock)
    held_in_the_parent(lock)


@alone("subprocess.wait")
def subprocess_wait():
    child = subprocess.Popen(["sleep", str(LONG_S)])
    announce.member("holder", child.pid)
    announce.member("waiter")
    child.wait()


@alone("subprocess.communicate")
def subprocess_communicate():
    child = subprocess.Popen(["sleep", str(LONG_S)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    announce.member("holder", child.pid)
    announce.member("waiter")
    child.communicate()
