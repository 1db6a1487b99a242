"""Starts a program and waits for its end, as ordinary launchers do. usage: launch.py HOW PROGRAM [ARGUMENT...]"""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

FOREVER_S = 3600
TICK_S = 30


def become(argv):
    os.execvp(argv[0], argv)


def become_rank(_, argv):
    become(argv)


def poll(argv):
    child = subprocess.Popen(argv)
    while child.poll() is None:
        time.sleep(0.5)


def tick(argv):
    """As a supervisor that looks after its child now and then."""
    child = subprocess.Popen(argv)
    while True:
        try:
            return child.wait(timeout=TICK_S)
        except subprocess.TimeoutExpired:
            continue


def watch(argv):
    """As a supervisor that is told by signals."""
    asked = {signal.SIGCHLD, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    subprocess.Popen(argv, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
    while signal.sigtimedwait(asked, TICK_S) is None:
        pass


def limit(argv):
    """As plug-ins of test frameworks do that end a test after a while."""

    def give_up(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, FOREVER_S)
    subprocess.Popen(argv).wait()


def join(argv):
    child = multiprocessing.get_context("spawn").Process(target=become, args=(argv,))
    child.start()
    child.join()


def pool(argv):
    with ProcessPoolExecutor(1) as executor:
        executor.submit(subprocess.call, argv).result()


def spawn(argv):
    import torch.multiprocessing

    torch.multiprocessing.spawn(become_rank, args=(argv,), nprocs=1)


async def wait_in_loop(argv):
    child = await asyncio.create_subprocess_exec(*argv)
    await child.wait()


WAYS = {
    "wait": lambda argv: subprocess.Popen(argv).wait(),
    "communicate": lambda argv: subprocess.Popen(argv, stdout=subprocess.PIPE).communicate(),
    "poll": poll,
    "tick": tick,
    "watch": watch,
    "limit": limit,
    "join": join,
    "pool": pool,
    "spawn": spawn,
    "asyncio": lambda argv: asyncio.run(wait_in_loop(argv)),
}

if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2:])
