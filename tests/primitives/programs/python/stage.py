"""How members come to hold a Python object or to want one, for CPython 3.8 and newer. See `stage.h` for C."""

import functools
import signal
import threading
import time

import announce

LONG_S = 3600
PRIMITIVES = {}
KEEP = []


def primitive(name):
    def add(cls):
        PRIMITIVES[name] = cls
        return cls

    return add


def sleep_long():
    time.sleep(LONG_S)


def is_at(thing):
    """Say where the object is that will be waited for."""
    announce.member(f"object {id(thing):#x}")


class Primitive:
    """What holds nothing by itself; members are threads."""

    shared = False

    def hold(self, inside):
        inside()

    def locate(self):
        pass


def alone(name):
    def add(function):
        PRIMITIVES[name] = function
        return function

    return add


def thread(target, *args, **kwargs):
    it = threading.Thread(target=target, args=args, **kwargs)
    it.start()
    return it


def holding(role="holder"):
    announce.member(role)
    sleep_long()


def start_member(it, inside):
    """Start whoever holds it: a worker of its own pool, or a thread."""
    if hasattr(it, "start"):
        it.start(inside)
    else:
        thread(it.hold, inside)


def held(make):
    it, held_now = make(), threading.Event()
    it.locate()

    def inside():
        announce.member("holder")
        held_now.set()
        sleep_long()

    def want():
        announce.member("waiter")
        it.want()

    if not getattr(it, "together", False):
        start_member(it, inside)
        held_now.wait()
        if hasattr(it, "locate_now"):
            it.locate_now()
        thread(want)
    else:
        thread(want)
        start_member(it, inside)
    signal.pause()


def ring(make, count):
    objects, all_hold = [make() for _ in range(count)], threading.Barrier(count)

    def inside(i):
        all_hold.wait()
        announce.member(f"member{i}")
        objects[(i + 1) % count].want()

    for i in range(count):
        start_member(objects[i], functools.partial(inside, i))
    signal.pause()
