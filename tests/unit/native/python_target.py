"""A program that stands still in many ways, for test_python_reader.py. Runs on Python 3.8 and later.

Prints one line of JSON: for each thread what it is and what the interpreter itself says about its frames,
taken after every thread has come to rest. Then it waits until its standard input closes.
"""

import asyncio
import json
import os
import queue
import sys
import threading
import time

KEEP = []
ROLES = {}  # ident -> role
READY = threading.Semaphore(0)
FOREVER = threading.Event()


def announce(role):
    ROLES[threading.get_ident()] = role
    READY.release()


def block(role, wait=FOREVER.wait):
    """Sleeps for good, as `role`."""
    announce(role)
    wait()


def nested(depth, role):
    if depth:
        return nested(depth - 1, role)
    local_text, local_number, local_none, local_list = "hällo ✓ 𝄞", -(2**40), None, [1]
    local_real, local_bytes, local_flag, local_huge = 0.5, b"raw", True, 2**80
    block(role)
    return local_text, local_number, local_none, local_list, local_real, local_bytes, local_flag, local_huge


def recursion():
    nested(400, "recursion")


class Worker:
    limit = 3

    def __init__(self):
        self.answer = 42
        self.label = "worker-label"

    def method(self):
        def closure():
            block(f"method {self.label}")

        closure()

    @classmethod
    def on_class(cls):
        block("classmethod")

    def __call__(self):
        self.on_class()


def generator():
    yield 1
    block("generator")
    yield 2


def consume_generator():
    for value in generator():
        KEEP.append(value)


def λ_äöü():
    block("unicode")


async def inner():
    await asyncio.sleep(0)
    block("asyncio")


async def outer():
    await inner()


def run_asyncio():
    loop = asyncio.new_event_loop()
    loop.run_until_complete(outer())


def compare(left, right):
    block("callback")
    return left > right


class Compared:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return compare(self.value, other.value)


def through_c():
    sorted([Compared(1), Compared(2)])


# fmt: off
def many_lines(first, second=None, *rest, **named):
    try:
        for item in [first]:  # noqa: B007
            with open(os.devnull) as null:
                KEEP.append(

                    null,

                )
                block(
                    "lines",


                )
    finally:
        KEEP.append(item)
# fmt: on


# Locks. "x holder" threads own what "x waiter" threads wait for.
WITH_LOCK = threading.Lock()
PLAIN_LOCK = threading.Lock()
RLOCK = threading.RLock()
LEFT_LOCK = threading.Lock()
QUEUE = queue.Queue(1)
CONDITION = threading.Condition(threading.Lock())
NOTIFIED = threading.Condition()
GIVEN_UP = threading.Lock()
HANDED = threading.Lock()
HANDED_OVER = threading.Event()
GIVEN_UP_CONDITION = threading.Condition(GIVEN_UP)
CYCLE = threading.Lock(), threading.Lock()
CYCLE_READY = threading.Barrier(2)
SELF_LOCK = threading.Lock()


def with_holder():
    with WITH_LOCK:
        block("with holder")


def with_waiter():
    block("with waiter", WITH_LOCK.acquire)


def with_waiter_by_with():
    announce("with waiter by with")
    with WITH_LOCK:
        pass


def plain_holder():
    PLAIN_LOCK.acquire()
    block("plain holder")


def plain_waiter():
    block("plain waiter", PLAIN_LOCK.acquire)


def left_holder():
    with LEFT_LOCK:
        KEEP.append(1)
    LEFT_LOCK.acquire()
    # The `with` is over: its leavings on the value stack must not count.
    block("left holder")


def left_waiter():
    block("left waiter", LEFT_LOCK.acquire)


def rlock_holder():
    with RLOCK, RLOCK:
        block("rlock holder")


def rlock_waiter():
    block("rlock waiter", RLOCK.acquire)


def condition_holder():
    with CONDITION:
        block("condition holder")


def condition_waiter():
    announce("condition waiter")
    with CONDITION:
        pass


def notified_waiter():
    announce("notified waiter")
    with NOTIFIED:
        NOTIFIED.wait()


def gives_up():
    with GIVEN_UP:
        announce("gives up")
        GIVEN_UP_CONDITION.wait()


def give():
    HANDED.release()


def hands_over():
    with HANDED:
        give()
        HANDED_OVER.set()
        block("hands over")


def takes_over():
    HANDED_OVER.wait()
    HANDED.acquire()
    block("takes over")


def handed_waiter():
    block("handed waiter", HANDED.acquire)


def takes():
    GIVEN_UP.acquire()
    block("takes")


def released_waiter():
    block("released waiter", GIVEN_UP.acquire)


def queue_waiter():
    block("queue waiter", QUEUE.get)


def cycle(own):
    with CYCLE[own]:
        CYCLE_READY.wait()
        announce(f"cycle {own}")
        with CYCLE[1 - own]:
            pass


def itself():
    with SELF_LOCK:
        block("itself", SELF_LOCK.acquire)


def joined():
    block("joined")


def joiner(thread):
    block("joiner", thread.join)


def spawn(name, target, *arguments):
    thread = threading.Thread(target=target, name=name, args=arguments, daemon=True)
    thread.start()
    KEEP.append(thread)
    return thread


def qualname(code):
    return getattr(code, "co_qualname", code.co_name)


def stack(frame):
    frames = []
    while frame is not None:
        frames.append([qualname(frame.f_code), frame.f_code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def sleeps(tids):
    """Address each thread sleeps on for good; None if one runs, wants to, or waits with a timeout, as for the GIL."""
    addresses = []
    for tid in tids:
        with open(f"/proc/self/task/{tid}/stat") as file:
            if file.read().rpartition(") ")[2][0] != "S":
                return None
        with open(f"/proc/self/task/{tid}/syscall") as file:
            number, *arguments = file.read().split()
        if number != "202" or arguments[3] != "0x0":
            return None
        addresses.append(arguments[0])
    return addresses


def wait_for_rest(tids):
    """Returns when no thread went on for a while in which the GIL was free."""
    deadline = time.monotonic() + 30
    before, now = None, None
    while now is None or now != before:
        assert time.monotonic() < deadline, "a thread does not come to rest"
        before = sleeps(tids)
        time.sleep(0.01)
        now = sleeps(tids)


def main():
    first = spawn("deep", recursion)
    spawn("nested", nested, 3, "nested")
    spawn("method", Worker().method)
    spawn("class-method", Worker())
    spawn("generator", consume_generator)
    spawn("näme-✓", λ_äöü)
    spawn("asyncio", run_asyncio)
    spawn("callback", through_c)
    spawn("lines", many_lines, 1)
    holders = with_holder, plain_holder, left_holder, rlock_holder, condition_holder, gives_up, takes
    holders += hands_over, takes_over
    for target in holders:
        spawn(target.__name__, target)
    for _ in range(9 + len(holders)):
        READY.acquire()
    waiters = [
        with_waiter,
        with_waiter_by_with,
        plain_waiter,
        left_waiter,
        rlock_waiter,
        condition_waiter,
        notified_waiter,
        queue_waiter,
        released_waiter,
        handed_waiter,
        itself,
    ]
    for target in waiters:
        spawn(target.__name__, target)
    spawn("cycle-0", cycle, 0)
    spawn("cycle-1", cycle, 1)
    spawn("joiner", joiner, spawn("joined", joined))
    for _ in range(len(waiters) + 4):
        READY.acquire()
    assert first.ident is not None
    tids = [thread.native_id for thread in KEEP if isinstance(thread, threading.Thread)]
    wait_for_rest(tids)
    threads = []
    frames = sys._current_frames()
    for thread in KEEP:
        if isinstance(thread, threading.Thread):
            threads.append(
                {
                    "tid": thread.native_id,
                    "ident": thread.ident,
                    "name": thread.name,
                    "role": ROLES[thread.ident],
                    "frames": stack(frames[thread.ident]),
                }
            )
    del frames
    report = {
        "version": ".".join(map(str, sys.version_info[:3])),
        "pid": os.getpid(),
        "main": {"tid": threading.main_thread().native_id, "ident": threading.get_ident()},
        "threads": threads,
        "argv": sys.argv,
    }
    os.environ["HT_SET_BY_PROGRAM"] = "set late ✓"
    print(json.dumps(report), flush=True)
    sys.stdin.read()


main()
