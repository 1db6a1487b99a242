"""One rank of a job that hangs in all_reduce, with threads that wait in many ways.

Arguments: rank, world size, path of the gloo store, library made from waits.cpp, number of further threads, path of
the ticker's file or "". Prints "ready" when all threads are started and all that is left is to hang.
"""

from __future__ import annotations

import ctypes
import datetime
import queue
import select
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed
import torch.utils.data

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
STORE, LIBRARY = sys.argv[3], sys.argv[4]
FURTHER, TICKS = int(sys.argv[5]), sys.argv[6]
PYTHON_SHARE = 4  # one in so many of the further threads runs Python

#: The rank that does not come; it waits for a lock.
LATE_RANK = 1

lock = threading.Lock()
reentrant = threading.RLock()
first, second = threading.Lock(), threading.Lock()
both = threading.Barrier(2)
held = threading.Event()


def sleep_for_ever() -> None:
    while True:
        time.sleep(100_000)


def own() -> None:
    lock.acquire()
    reentrant.acquire()
    held.set()
    sleep_for_ever()


def take_lock() -> None:
    with lock:
        raise AssertionError


def take_reentrant() -> None:
    with reentrant:
        raise AssertionError


def take_both(mine: threading.Lock, other: threading.Lock) -> None:
    with mine:
        both.wait()
        with other:
            raise AssertionError


def wait_condition() -> None:
    condition = threading.Condition()
    with condition:
        condition.wait()


def receive() -> None:
    ends = socket.socketpair()
    ends[0].recv(1)


def select_one() -> None:
    ends = socket.socketpair()
    select.select([ends[0]], [], [])


def wait_for_child() -> None:
    # Ends with us: its input closes.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        child.wait()


def work(depth: int) -> None:
    if depth:
        work(depth - 1)
    else:
        queue.Queue().get()


def start(function: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(
        target=function,
        args=arguments,
        name=f"p_{function.__name__}",
        daemon=True,  # type: ignore[attr-defined]
    )
    thread.start()
    return thread


def start_threads(waits: ctypes.CDLL) -> None:
    start(own)
    held.wait()
    for function in (take_lock, take_reentrant, wait_condition, receive, select_one, wait_for_child):
        start(function)
    start(threading.Event().wait)
    start(threading.Event().wait, 1_000_000)
    start(queue.Queue().get)
    start(threading.Semaphore(0).acquire)
    start(take_both, first, second)
    start(take_both, second, first)
    start(start(sleep_for_ever).join)
    waits.start_waits()
    waits.start_workers(FURTHER - FURTHER // PYTHON_SHARE)
    for i in range(FURTHER // PYTHON_SHARE):
        start(work, i % 9)
    if TICKS and waits.start_ticker(TICKS.encode(), 50) != 0:
        raise OSError(f"cannot map {TICKS}")


class Model:
    def __init__(self, tensor: object) -> None:
        self.tensor = tensor

    def layer(self, left: int) -> None:
        if left:
            self.layer(left - 1)
        else:
            self.reduce()

    def reduce(self) -> None:
        if RANK == LATE_RANK:
            lock.acquire()
        else:
            torch.distributed.all_reduce(self.tensor)


torch.set_num_threads(2)
weights = torch.randn(64, 64, requires_grad=True)
(weights @ weights).sum().backward()
torch.nn.functional.conv2d(torch.randn(1, 3, 32, 32), torch.randn(4, 3, 3, 3))
torch.distributed.init_process_group(
    "gloo",
    init_method=f"file://{STORE}",
    rank=RANK,
    world_size=WORLD,
    timeout=datetime.timedelta(hours=20),
)
ones = torch.ones(1024)
torch.distributed.all_reduce(ones)
start_threads(ctypes.CDLL(LIBRARY))
print("ready", flush=True)
Model(ones).layer(20)
