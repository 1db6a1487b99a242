"""Threads that wait for locks whose owners are known. Prints "ready" once all are on their way into their waits.

With the argument "spin" another one never rests. Ends when its standard input does.
"""

import os
import sys
import threading

in_with = threading.Lock()
reentrant = threading.RLock()
taken = threading.Lock()
never = threading.Lock()
holder_ready = threading.Event()


def hold():
    with in_with:
        reentrant.acquire()
        holder_ready.set()
        never.acquire()


def wait_with():
    with in_with:
        pass


def wait_reentrant():
    with reentrant:
        pass


def wait_taken():
    taken.acquire()


def wait_path():
    lock_path = "/tmp/some lock ✓"
    attempts = 3
    never.acquire()
    return lock_path, attempts


def spin():
    while True:
        pass


os.environ["HT_SET_BY_PROGRAM"] = "value ✓"
never.acquire()
taken.acquire()
threading.Thread(target=hold, name="holder", daemon=True).start()
holder_ready.wait()
for target in (wait_with, wait_reentrant, wait_taken, wait_path):
    threading.Thread(target=target, name=target.__name__, daemon=True).start()
if "spin" in sys.argv:
    threading.Thread(target=spin, name="spin", daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
