"""Objects of multiprocessing; members are processes."""

import concurrent.futures
import functools
import multiprocessing
import multiprocessing.managers
import os
import signal
import socket
import threading
import time

import announce
from stage import KEEP, LONG_S, alone, holding, is_at, thread

fork = multiprocessing.get_context("fork")


def process(target, *args):
    """A forked child that ends with us."""

    def run():
        announce.die_with_parent()
        target(*args)

    it = fork.Process(target=run)
    it.start()
    return it


def two_processes(hold, want, locate=None):
    """`hold(inside)` in one child, then `want()` in another."""
    if locate is not None:
        is_at(locate)
    ready, done = os.pipe()

    def first():
        hold(lambda: (os.write(done, b"x"), holding()))

    process(first)
    os.read(ready, 1)

    def second():
        announce.member("waiter")
        want()

    process(second)
    signal.pause()


def _with(lock, inside):
    with lock:
        inside()


def _acquired(lock, inside):
    lock.acquire()
    inside()


@alone("multiprocessing.Lock")
def shared_lock():
    lock = fork.Lock()
    two_processes(functools.partial(_with, lock), lambda: _with(lock, int), lock)


@alone("multiprocessing.Lock by acquire")
def shared_lock_by_acquire():
    lock = fork.Lock()
    two_processes(functools.partial(_acquired, lock), lock.acquire, lock)


@alone("multiprocessing.RLock")
def shared_rlock():
    lock = fork.RLock()
    two_processes(functools.partial(_with, lock), lambda: _with(lock, int), lock)


@alone("multiprocessing.RLock of a thread")
def shared_rlock_of_a_thread():
    """Both in one process."""
    lock, held = fork.RLock(), threading.Event()
    is_at(lock)

    def hold():
        with lock:
            held.set()
            holding()

    thread(hold)
    held.wait()

    def want():
        announce.member("waiter")
        with lock:
            pass

    thread(want)
    signal.pause()


def shared_ring(make):
    locks, ready, done = [make(), make()], os.pipe(), os.pipe()

    def member(i):
        with locks[i]:
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            announce.member(f"member{i}")
            with locks[1 - i]:
                pass

    for i in range(2):
        process(member, i)
    for _ in range(2):
        os.read(ready[0], 1)
    os.write(done[1], b"xx")
    signal.pause()


@alone("multiprocessing.Lock ring")
def shared_lock_ring():
    shared_ring(fork.Lock)


@alone("multiprocessing.RLock ring")
def shared_rlock_ring():
    shared_ring(fork.RLock)


def spawned_holder(lock):
    announce.die_with_parent()
    with lock:
        holding()


def spawned_waiter(lock):
    announce.die_with_parent()
    announce.member("waiter")
    with lock:
        pass


@alone("multiprocessing.Lock spawned")
def spawned_lock():
    spawn = multiprocessing.get_context("spawn")
    lock = spawn.Lock()
    first = spawn.Process(target=spawned_holder, args=(lock,))
    first.start()
    while lock.acquire(False):
        lock.release()
        time.sleep(0.01)
    spawn.Process(target=spawned_waiter, args=(lock,)).start()
    signal.pause()


@alone("multiprocessing.Semaphore")
def shared_semaphore():
    it = fork.Semaphore(0)
    two_processes(lambda inside: inside(), it.acquire, it)


@alone("multiprocessing.Event")
def shared_event():
    it = fork.Event()
    two_processes(lambda inside: inside(), it.wait, it)


@alone("multiprocessing.Condition")
def shared_condition():
    it = fork.Condition()

    def want():
        with it:
            it.wait()

    two_processes(lambda inside: inside(), want, it)


@alone("multiprocessing.Barrier")
def shared_barrier():
    it = fork.Barrier(2)
    two_processes(lambda inside: inside(), it.wait, it)


@alone("multiprocessing.Queue.get")
def shared_queue():
    it = fork.Queue()
    two_processes(lambda inside: inside(), it.get, it)


@alone("multiprocessing.Queue.put")
def shared_queue_put():
    it = fork.Queue(1)
    it.put(1)
    two_processes(lambda inside: inside(), lambda: it.put(2), it)


@alone("multiprocessing.SimpleQueue.get")
def shared_simple_queue():
    it = fork.SimpleQueue()
    two_processes(lambda inside: inside(), it.get, it)


@alone("multiprocessing.Pipe")
def shared_pipe():
    here, there = fork.Pipe()

    def hold():
        here.close()
        holding()

    process(hold)
    there.close()
    announce.member("waiter")
    here.recv()


class Teller:
    """Tells in the manager's thread for a client that it is there."""

    def member(self, role):
        announce.member(role)


class Manager(multiprocessing.managers.SyncManager):
    pass


Manager.register("Teller", Teller)


def managing(role=None):
    announce.die_with_parent()
    if role is not None:
        announce.member(role)


def manager(role=None):
    it = Manager(ctx=fork)
    it.start(managing, (role,))
    return it


def of_manager(make, hold):
    """The process of the manager is what the waiter waits for; `keeper` has what it wants."""
    it = make(manager("holder"))
    ready, done = os.pipe()

    def keep():
        hold(it)
        announce.member("keeper")
        os.write(done, b"x")
        time.sleep(LONG_S)

    process(keep)
    os.read(ready, 1)
    return it


@alone("Manager.RLock")
def manager_rlock():
    it = of_manager(Manager.RLock, lambda it: it.acquire())
    announce.member("waiter")
    it.acquire()


@alone("Manager.Lock")
def manager_lock():
    it = of_manager(Manager.Lock, lambda it: it.acquire())
    announce.member("waiter")
    it.acquire()


@alone("Manager.RLock of who computes")
def manager_rlock_busy():
    it = manager("holder").RLock()
    ready, done = os.pipe()

    def keep():
        it.acquire()
        announce.member("keeper")
        os.write(done, b"x")
        while True:
            pass

    process(keep)
    os.read(ready, 1)
    announce.member("waiter")
    it.acquire()


@alone("Manager.RLock ring")
def manager_ring():
    it = manager()
    locks, teller, all_hold = (it.RLock(), it.RLock()), it.Teller(), fork.Barrier(2)

    def client(number):
        locks[number].acquire()
        all_hold.wait()
        teller.member(f"member{number}")
        locks[1 - number].acquire()

    process(client, 0)
    process(client, 1)
    signal.pause()


@alone("idle clients of a manager")
def manager_queue():
    it = manager().Queue()

    def client():
        announce.member("client")
        it.get()

    process(client)
    process(client)
    listener = socket.create_server(("127.0.0.1", 0))
    announce.member("waiter")
    listener.accept()


@alone("Process.join")
def process_join():
    child = process(holding)
    announce.member("waiter")
    child.join()


def pool_task(_):
    holding()


@alone("Pool.map")
def pool_map():
    pool = fork.Pool(2)
    announce.member("waiter")
    pool.map(pool_task, [1])


@alone("Pool.apply_async")
def pool_apply():
    pool = fork.Pool(2)
    it = pool.apply_async(pool_task, (1,))
    announce.member("waiter")
    it.get()


@alone("Pool.join")
def pool_end():
    pool = fork.Pool(2)
    pool.apply_async(pool_task, (1,))
    pool.close()
    announce.member("waiter")
    pool.join()


@alone("ProcessPoolExecutor.shutdown")
def process_pool_shutdown():
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=fork)
    pool.submit(pool_task, 1)
    announce.member("waiter")
    pool.shutdown()


@alone("end of a pool of processes")
def process_pool_at_exit():
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=fork)
    pool.submit(pool_task, 1)
    KEEP.append(pool)
    announce.member("waiter")


@alone("ProcessPoolExecutor")
def process_pool():
    pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=fork)
    it = pool.submit(pool_task, 1)
    announce.member("waiter")
    it.result()
