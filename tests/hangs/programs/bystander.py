"""Two that wait for each other, and a third one that naps beside them. When it wakes up it lets them go on, or it only
beats, again and again; or it waits for a child that naps. usage: bystander.py HOW: lock, lock-counts, lock-beats,
lock-child, shared-lock, shared-lock-beats, task, task-child, or interrupt, which sends SIGINT: that ends the wait of
the main thread for an RLock.
"""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import announce

NAP_S = 45
BEAT_S = 1
# select, nanosleep and wait4; Python before 3.11 sleeps in select()
SLEEPS = ("23", "35", "61", "230", "270") if os.uname().machine == "x86_64" else ("72", "101", "115", "260")


def await_nap(tid):
    """Until a thread naps: one that has run since the others wait for each other has let them be."""
    while True:
        with open(f"/proc/{tid}/syscall") as file:
            if file.read().split()[0] in SLEEPS:
                return
        time.sleep(0.01)


def transfer(role, mine, other, meeting):
    with mine:
        meeting.wait()
        announce.member(role)
        with other:
            pass


def beat():
    announce.member("third")
    while True:
        time.sleep(BEAT_S)


def nap_and_release(lock):
    announce.member("third")
    time.sleep(NAP_S)
    lock.release()


def count_and_release(lock):
    announce.member("third")
    for _ in range(NAP_S):
        time.sleep(BEAT_S)
    lock.release()


def wait_and_release(lock):
    child = subprocess.Popen(["sleep", str(NAP_S)])
    announce.member("child", pid=child.pid)
    announce.member("third")
    child.wait()
    lock.release()


def run(worker, lock, barrier, third):
    first, second, meeting = lock(), lock(), barrier(2)
    works = [
        worker(target=beat) if third is beat else worker(target=third, args=(first,)),
        worker(target=transfer, args=("debit", first, second, meeting)),
        worker(target=transfer, args=("credit", second, first, meeting)),
    ]
    works[0].start()
    await_nap(getattr(works[0], "native_id", None) or works[0].pid)
    for work in works[1:]:
        work.start()
    for work in works:
        work.join()


def with_process(target, args=()):
    def work():
        announce.die_with_parent()
        target(*args)

    return multiprocessing.get_context("fork").Process(target=work)


def nap_and_interrupt():
    announce.member("third")
    time.sleep(NAP_S)
    os.kill(os.getpid(), signal.SIGINT)


def run_interrupted():
    # Jobs in the background of a script ignore it, and so does what they start: then nothing ends this wait.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, second, meeting = threading.RLock(), threading.RLock(), threading.Barrier(2)
    third = threading.Thread(target=nap_and_interrupt)
    third.start()
    await_nap(third.native_id)
    threading.Thread(target=transfer, args=("credit", second, first, meeting)).start()
    transfer("debit", first, second, meeting)


async def cancelled_task(by_child):
    first, second = asyncio.Lock(), asyncio.Lock()

    async def take(mine, other):
        async with mine:
            await asyncio.sleep(0.1)
            async with other:
                pass

    tasks = [asyncio.create_task(take(first, second)), asyncio.create_task(take(second, first))]
    loop = asyncio.get_running_loop()

    def cancel():
        announce.member("third")
        time.sleep(NAP_S)
        loop.call_soon_threadsafe(tasks[0].cancel)

    async def cancel_after_child():
        child = await asyncio.create_subprocess_exec("sleep", str(NAP_S))
        announce.member("child", pid=child.pid)
        await child.wait()
        tasks[0].cancel()

    if by_child:
        tasks.append(asyncio.create_task(cancel_after_child()))
    else:
        threading.Thread(target=cancel).start()
    await asyncio.sleep(0.5)
    announce.member("main")
    await asyncio.gather(*tasks, return_exceptions=True)


third = nap_and_release
if sys.argv[1].endswith("-beats"):
    third = beat
elif sys.argv[1].endswith("-counts"):
    third = count_and_release
elif sys.argv[1] == "lock-child":
    third = wait_and_release
if sys.argv[1].startswith("lock"):
    run(threading.Thread, threading.Lock, threading.Barrier, third)
elif sys.argv[1].startswith("shared-lock"):
    run(with_process, multiprocessing.Lock, multiprocessing.Barrier, third)
elif sys.argv[1] == "interrupt":
    run_interrupted()
else:
    asyncio.run(cancelled_task(sys.argv[1] == "task-child"))
