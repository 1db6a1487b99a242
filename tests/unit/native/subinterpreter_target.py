"""Blocks in functions that run in other interpreters, until its standard input closes.

The main thread runs code in a second interpreter, a second thread in a third one; each of them starts a thread of
its own there. Prints one line of JSON when all four have come to rest.
"""

import json
import os
import sys
import threading

try:
    import _interpreters as interpreters  # since 3.13
except ImportError:
    import _xxsubinterpreters as interpreters

CODE = r"""
import os, threading

def report(role):
    with open("/proc/thread-self/stat") as file:
        tid = int(file.read().split()[0])
    os.write({write_end}, b"%d %s\n" % (tid, role.encode()))

def in_thread():
    report("thread of {name}")
    os.read({block_end}, 1)

def in_sub():
    thread = threading.Thread(target=in_thread, name="thread of {name}")
    thread.start()
    report("caller of {name}")
    os.read({block_end}, 1)
    thread.join()

in_sub()
"""

READ_END, WRITE_END = os.pipe()
BLOCK_END, HELD_END = os.pipe()


def create():
    if sys.version_info >= (3, 13):
        return interpreters.create()
    try:
        return interpreters.create(isolated=False)  # an isolated one may not start threads
    except TypeError:
        return interpreters.create()


def enter(name):
    code = CODE.format(name=name, write_end=WRITE_END, block_end=BLOCK_END)
    interpreters.run_string(create(), code)


def tell_and_wait():
    tids = {}
    data = b""
    while data.count(b"\n") < 4:
        data += os.read(READ_END, 4096)
    for line in data.decode().splitlines():
        tid, _, role = line.partition(" ")
        tids[role] = int(tid)
    print(json.dumps(tids), flush=True)
    os.read(0, 1)
    os.close(HELD_END)  # all readers of BLOCK_END go on


threading.Thread(target=tell_and_wait, name="teller").start()
threading.Thread(target=enter, args=("third",), name="enterer").start()
enter("second")
