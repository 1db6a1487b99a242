"""Plays a plan, as lockplay.cpp does, with what Python has to wait on. usage: lockplay.py PLAN"""

import faulthandler
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from concurrent.futures import Future

import announce

DAY_S = 24 * 3600
OFD_SETLKW = 38  # <bits/fcntl-linux.h>; the module has it from 3.9 on
FOLDER = os.path.dirname(sys.argv[1])


class Lock:
    """Anything with acquire() and release()."""

    def __init__(self, it):
        self.it = it

    def take(self):
        self.it.acquire()

    def give(self):
        self.it.release()

    def timed(self, milliseconds):
        self.it.acquire(timeout=milliseconds / 1000)

    wait = take
    signal = give


class WithLock(Lock):
    """The same, and whoever takes it does so for the length of a `with` block."""


class Condition:
    def __init__(self):
        self.it = threading.Condition()
        self.items = 0

    def wait(self):
        with self.it:
            while not self.items:
                self.it.wait()
            self.items -= 1

    def timed(self, milliseconds):
        with self.it:
            self.it.wait(milliseconds / 1000)

    def signal(self):
        with self.it:
            self.items += 1
            self.it.notify()


class Event:
    def __init__(self):
        self.it = threading.Event()

    def wait(self):
        self.it.wait()

    def timed(self, milliseconds):
        self.it.wait(milliseconds / 1000)


class Queue:
    def __init__(self):
        self.it = queue.Queue()

    def wait(self):
        self.it.get()

    def timed(self, milliseconds):
        try:
            self.it.get(timeout=milliseconds / 1000)
        except queue.Empty:
            pass  # as it should be

    def signal(self):
        self.it.put(1)


class Barrier:
    def __init__(self, count):
        self.it = threading.Barrier(count)

    def wait(self):
        self.it.wait()


class Result:
    def __init__(self):
        self.it = Future()

    def wait(self):
        self.it.result()


class FileLock:
    def __init__(self, kind, name):
        self.kind = kind
        self.path = os.path.join(FOLDER, name)

    def take(self):
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        if self.kind == "flock":
            fcntl.flock(file, fcntl.LOCK_EX)
        elif self.kind == "fcntl":
            fcntl.lockf(file, fcntl.LOCK_EX)
        else:
            fcntl.fcntl(file, OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


class Pipe:
    def __init__(self, reader, writer):
        self.of = (reader, writer)
        self.ends = os.pipe()

    def start(self, process):
        for end, whose in zip(self.ends, self.of):  # noqa: B905 -- Python 3.8 plays, too
            if whose != process:
                os.close(end)

    def wait(self):
        os.read(self.ends[0], 1)

    def signal(self):
        os.write(self.ends[1], b"x")


def make(name, kind, _shared, reader, writer, amount):
    makers = {
        "lock": lambda: Lock(threading.Lock()),
        "with_lock": lambda: WithLock(threading.Lock()),
        "rlock": lambda: Lock(threading.RLock()),
        "with_rlock": lambda: WithLock(threading.RLock()),
        "semaphore": lambda: Lock(threading.Semaphore(int(amount))),
        "mp_lock": lambda: Lock(multiprocessing.get_context("fork").Lock()),
        "condition": Condition,
        "event": Event,
        "queue": Queue,
        "barrier": lambda: Barrier(int(amount)),
        "future": Result,
        "pipe": lambda: Pipe(int(reader), int(writer)),
    }
    return makers[kind]() if kind in makers else FileLock(kind, name)


class Player:
    def __init__(self, name, process, last, on, amount, *takes):
        self.name, self.process, self.last, self.on = name, int(process), last, on
        self.amount = int(amount)
        self.takes = [THINGS[take.partition(":")[2]] for take in takes]
        self.thread = None


THINGS = {}
PROCESSES = []  # (parent, late)
PLAYERS = []


def hold(player, takes):
    """Takes what is left to take, and goes on."""
    if not takes:
        meet(player)
    elif isinstance(takes[0], WithLock):
        with takes[0].it:
            hold(player, takes[1:])
    else:
        takes[0].take()
        hold(player, takes[1:])


def meet(player):
    announce.member(player.name)
    if player is next(one for one in PLAYERS if one.process == player.process):
        for number, (parent, late) in enumerate(PROCESSES):
            if parent == player.process and late:
                os.read(GATES[0], 1)
                start_child(number)
    os.read(GATES[1], 1)
    if player.last != "exit":
        act(player, THINGS.get(player.on))
        raise SystemExit(f"{player.name}: the wait ended")


def act(player, on):
    last, amount = player.last, player.amount
    if last == "want":
        if isinstance(on, WithLock):
            with on.it:
                pass
        else:
            on.take()
    elif last == "timed":
        on.timed(amount)
        time.sleep(DAY_S)
    elif last == "await":
        on.wait()
    elif last == "join":
        next(one for one in PLAYERS if one.name == player.on).thread.join()
    elif last == "child":
        os.waitpid(-1, 0)
    elif last == "sleep":
        time.sleep(amount / 1000)
        time.sleep(DAY_S)
    elif last == "pause":
        signal.pause()
    elif last == "accept":
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()
    else:
        LOOPS[last](on, amount)


def compute(_on, _amount):
    total = 0
    while True:
        total += 1


def naps(_on, amount):
    while True:
        time.sleep(amount / 1000)


def watched(_on, amount):
    faulthandler.dump_traceback_later(DAY_S)
    naps(None, amount)


def rearm(on, amount):
    while True:
        on.timed(amount)


def eat(on, _amount):
    while True:
        on.wait()


def feed(on, amount):
    while True:
        time.sleep(amount / 1000)
        on.signal()


def turns(on, amount):
    while True:
        if isinstance(on, WithLock):
            with on.it:
                sum(range(300))
        else:
            on.take()
            sum(range(300))
            on.give()
        time.sleep(amount / 1000)


LOOPS = {
    "watched": watched,
    "compute": compute,
    "naps": naps,
    "rearm": rearm,
    "eat": eat,
    "feed": feed,
    "turns": turns,
}


def start_child(number):
    if os.fork() == 0:
        try:
            announce.die_with_parent()
            run(number)
        finally:
            os._exit(1)


def run(process):
    for number, (parent, late) in enumerate(PROCESSES):
        if parent == process and not late:
            start_child(number)
    for thing in THINGS.values():
        if isinstance(thing, Pipe):
            thing.start(process)
    first, *others = (one for one in PLAYERS if one.process == process)
    first.thread = threading.current_thread()
    for other in others:
        other.thread = threading.Thread(target=hold, args=(other, other.takes), name=other.name, daemon=True)
    for other in others:
        other.thread.start()
    hold(first, first.takes)


def main():
    with open(sys.argv[1]) as file:
        for line in file:
            what, *words = line.split()
            if what == "object":
                THINGS[words[0]] = make(*words)
            elif what == "process":
                PROCESSES.append((int(words[0]), words[1] == "1"))
            elif what == "player":
                PLAYERS.append(Player(*words))
    run(0)


GATES = [os.open(os.path.join(FOLDER, name), os.O_RDONLY) for name in ("fork", "go")]
if __name__ == "__main__":
    main()
