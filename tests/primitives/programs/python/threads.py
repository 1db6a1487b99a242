"""Objects of threading, queue, logging and importlib."""

import ctypes
import importlib.abc
import importlib.util
import logging
import queue
import sys
import threading

import announce
from stage import LONG_S, Primitive, is_at, primitive


@primitive("Lock")
class Lock(Primitive):
    make = staticmethod(threading.Lock)

    def __init__(self):
        self.it = self.make()

    def locate(self):
        is_at(self.it)

    def hold(self, inside):
        with self.it:
            inside()

    def want(self):
        with self.it:
            pass


@primitive("Lock timed")
class TimedLock(Lock):
    def want(self):
        self.it.acquire(timeout=LONG_S)


@primitive("Lock by acquire")
class LockByAcquire(Lock):
    def hold(self, inside):
        self.it.acquire()
        inside()

    def want(self):
        self.it.acquire()


@primitive("PyMutex")
class PyMutex(Primitive):
    """A byte of C code, which no Python object knows."""

    def __init__(self):
        self.byte = ctypes.c_uint8(0)

    def locate(self):
        announce.member(f"object {ctypes.addressof(self.byte):#x}")

    def want(self):
        ctypes.pythonapi.PyMutex_Lock(ctypes.byref(self.byte))

    def hold(self, inside):
        self.want()
        inside()


@primitive("RLock")
class RLock(Lock):
    make = staticmethod(threading.RLock)


@primitive("RLock by acquire")
class RLockByAcquire(LockByAcquire):
    make = staticmethod(threading.RLock)


@primitive("RLock timed")
class TimedRLock(TimedLock):
    make = staticmethod(threading.RLock)


@primitive("Condition")
class Condition(Lock):
    make = staticmethod(threading.Condition)

    def hold(self, inside):
        inside()

    def want(self):
        with self.it:
            self.it.wait()


@primitive("Condition wait_for timed")
class ConditionTimed(Condition):
    def want(self):
        with self.it:
            self.it.wait_for(lambda: False, timeout=LONG_S)


@primitive("Condition entered")
class ConditionEntered(Lock):
    make = staticmethod(threading.Condition)

    def locate(self):
        is_at(self.it._lock)


@primitive("Condition of a Lock entered")
class ConditionOfLock(ConditionEntered):
    make = staticmethod(lambda: threading.Condition(threading.Lock()))


@primitive("Condition notified")
class ConditionNotified(ConditionEntered):
    """The waiter has been woken and wants the lock back, which the one who woke it keeps."""

    def hold(self, inside):
        with self.it:
            while not self.it._waiters:
                self.it.wait(0.01)
            self.it.notify_all()
            inside()

    def want(self):
        with self.it:
            self.it.wait()

    together = True


@primitive("Event")
class Event(Condition):
    make = staticmethod(threading.Event)

    def want(self):
        self.it.wait()


@primitive("Semaphore")
class Semaphore(Condition):
    make = staticmethod(lambda: threading.Semaphore(0))

    def want(self):
        self.it.acquire()


@primitive("BoundedSemaphore")
class BoundedSemaphore(Semaphore):
    def __init__(self):
        self.it = threading.BoundedSemaphore(1)
        self.it.acquire()


@primitive("Barrier")
class Barrier(Event):
    make = staticmethod(lambda: threading.Barrier(3))


@primitive("Thread.join")
class Join(Primitive):
    """The thread that holds is the object."""

    def hold(self, inside):
        self.it = threading.current_thread()
        inside()

    def want(self):
        self.it.join()


@primitive("Thread.join timed")
class JoinTimed(Join):
    def want(self):
        self.it.join(LONG_S)


@primitive("Queue.get")
class QueueGet(Condition):
    make = staticmethod(queue.Queue)

    def want(self):
        self.it.get()


@primitive("Queue.put")
class QueuePut(QueueGet):
    def __init__(self):
        self.it = queue.Queue(1)
        self.it.put(1)

    def want(self):
        self.it.put(2)


@primitive("Queue.join")
class QueueJoin(QueuePut):
    def want(self):
        self.it.join()


@primitive("PriorityQueue.get")
class PriorityQueueGet(QueueGet):
    make = staticmethod(queue.PriorityQueue)


@primitive("SimpleQueue.get")
class SimpleQueueGet(QueueGet):
    make = staticmethod(queue.SimpleQueue)


@primitive("logging handler")
class LoggingHandler(Lock):
    make = staticmethod(logging.StreamHandler)

    def locate(self):
        is_at(self.it.lock)

    def hold(self, inside):
        class Slow:
            def write(self, _):
                inside()

        self.it.setStream(Slow())
        self.it.handle(logging.makeLogRecord({"msg": "x"}))

    def want(self):
        self.it.handle(logging.makeLogRecord({"msg": "y"}))


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, name, inside):
        self.name, self.inside = name, inside

    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.inside()


@primitive("import")
class Import(Primitive):
    count = 0

    def __init__(self):
        self.name = f"module{Import.count}"
        Import.count += 1

    def hold(self, inside):
        sys.meta_path.insert(0, Loader(self.name, inside))
        __import__(self.name)

    def want(self):
        __import__(self.name)
