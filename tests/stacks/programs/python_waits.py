"""Python threads that wait for ever, below Python and C frames of many kinds; runs from Python 3.8 on."""

import ctypes
import functools
import json
import queue
import re
import select
import socket
import subprocess
import sys
import threading
import time

lock = threading.Lock()
reentrant = threading.RLock()
lock.acquire()
held = threading.Event()


def hold():
    with reentrant:
        held.set()
        wait()


def wait():
    while True:
        time.sleep(100000)


def take_with():
    with lock:
        pass


def take_reentrant():
    with reentrant:
        pass


def take_timed():
    lock.acquire(timeout=1000000)


def wait_queue():
    queue.Queue().get()


def wait_condition():
    condition = threading.Condition()
    with condition:
        condition.wait()


def wait_barrier():
    threading.Barrier(2).wait()


def receive():
    ends = socket.socketpair()
    ends[0].recv(1)


def accept():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        listening.accept()


def select_one():
    ends = socket.socketpair()
    select.select([ends[0]], [], [])


def poll_one():
    ends = socket.socketpair()
    poll = select.poll()
    poll.register(ends[0], select.POLLIN)
    poll.poll()


def read_line():
    ends = socket.socketpair()
    ends[0].makefile().readline()


def child():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        process.wait()


def deep(left):
    if left:
        deep(left - 1)
    else:
        take_with()


def below_sorted():
    sorted([2, 1], key=lambda _: take_with())


def below_reduce():
    functools.reduce(lambda a, b: take_with(), [1, 2, 3])


def below_map():
    list(map(lambda _: take_with(), [1]))  # noqa: C417 (the C function is what it is about)


def below_comprehension():
    [take_with() for _ in range(2)]


def below_substitution():
    re.sub("a", lambda _: take_with(), "a")


def below_json():
    json.dumps({"a": object()}, default=lambda _: take_with())


def values():
    yield take_with()


def below_generator():
    for _ in values():
        pass


def delegates():
    yield from values()


def below_delegation():
    next(delegates())


class Waiting:
    def __init__(self):
        take_with()

    def __del__(self):
        pass


class Compared:
    def __eq__(self, other):
        take_with()

    __hash__ = None


class Meta(type):
    def __call__(cls):
        return super().__call__()


class Made(metaclass=Meta):
    def __init__(self):
        take_with()


def below_init():
    Waiting()


def below_compare():
    return Compared() in [Compared()]


def below_meta():
    Made()


def below_exec():
    exec(compile("take_with()", "<made>", "exec"), globals())


def below_except():
    try:
        raise ValueError
    except ValueError:
        take_with()


def below_callback():
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    items = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(items, 2, 4, compare(lambda a, b: take_with() or 0))


def below_arguments():
    def function(*args, **kwargs):
        take_with()

    function(*[1, 2], a=1)


@functools.lru_cache(maxsize=1)
def cached():
    take_with()


async def awaited():
    take_with()


async def awaits():
    await awaited()


def below_coroutine():
    awaits().send(None)


threads = [
    hold,
    wait,
    take_with,
    take_reentrant,
    take_timed,
    wait_queue,
    wait_condition,
    wait_barrier,
    receive,
    accept,
    select_one,
    poll_one,
    read_line,
    child,
    functools.partial(deep, 60),
    below_sorted,
    below_reduce,
    below_map,
    below_comprehension,
    below_substitution,
    below_json,
    below_generator,
    below_delegation,
    below_init,
    below_compare,
    below_meta,
    below_exec,
    below_except,
    below_callback,
    below_arguments,
    cached,
    below_coroutine,
]
threading.Thread(target=threads[0], daemon=True).start()
held.wait()
for function in threads[1:]:
    threading.Thread(target=function, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
