"""Groups made with multiprocessing, without PyTorch.

usage: workers.py [--method fork|spawn] barrier-sleep|barrier-exit|queue|lock|event|pool|
                  pool-dead|pool-fed-slowly
"""

import argparse
import multiprocessing
import os
import signal
import time

import announce


def at_barrier(number, barrier, instead):
    announce.die_with_parent()
    announce.member(f"worker{number}")
    if number == 1 and instead == "sleep":
        time.sleep(3600)
    if number == 1 and instead == "exit":
        # Not before the others have been started: starting one, multiprocessing reaps what has ended.
        while barrier.n_waiting < barrier.parties - 1:
            time.sleep(0.01)
        os._exit(0)
    barrier.wait()


def produce(queue):
    announce.die_with_parent()
    announce.member("producer")
    time.sleep(3600)
    queue.put("item")


def consume(queue):
    announce.die_with_parent()
    announce.member("consumer")
    queue.get()


def hold(lock, taken):
    announce.die_with_parent()
    with lock:
        taken.set()
        announce.member("holder")
        time.sleep(3600)


def take(number, lock):
    announce.die_with_parent()
    announce.member(f"waiter{number}")
    with lock:
        pass


def await_event(number, event):
    announce.die_with_parent()
    announce.member(f"waiter{number}")
    event.wait()


def task(number):
    if number == 1:
        announce.member("worker")
        time.sleep(3600)
    return number


def die_once(number):
    """The worker with the second piece of work is killed; who does the last one says so."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        announce.member("worker")
    return number


def slowly():
    """Work that comes an hour after the first."""
    yield 5
    time.sleep(3600)
    yield 2


def start(context, function, *args):
    process = context.Process(target=function, args=args)
    process.start()
    return process


def barrier(context, instead):
    meeting = context.Barrier(3)
    return meeting, [start(context, at_barrier, number, meeting, instead) for number in range(3)]


def queue(context):
    items = context.Queue()
    return items, [start(context, consume, items), start(context, produce, items)]


def lock(context):
    shared, taken = context.Lock(), context.Event()
    holder = start(context, hold, shared, taken)
    taken.wait()
    return shared, [holder, *(start(context, take, number, shared) for number in range(2))]


def event(context):
    never = context.Event()
    return never, [start(context, await_event, number, never) for number in range(2)]


def pool(context):
    with context.Pool(2, initializer=announce.die_with_parent) as workers:
        announce.member("launcher")
        workers.map(task, range(4), chunksize=1)
    return None, []


def pool_dead(context):
    with context.Pool(2, initializer=announce.die_with_parent) as workers:
        announce.member("launcher")
        workers.map(die_once, range(6), chunksize=1)
    return None, []


def pool_fed_slowly(context):
    with context.Pool(2, initializer=announce.die_with_parent) as workers:
        announce.member("launcher")
        list(workers.imap(die_once, slowly()))
    return None, []


WHAT = {
    "pool-dead": pool_dead,
    "pool-fed-slowly": pool_fed_slowly,
    "barrier-sleep": lambda context: barrier(context, "sleep"),
    "barrier-exit": lambda context: barrier(context, "exit"),
    "queue": queue,
    "lock": lock,
    "event": event,
    "pool": pool,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="fork")
    parser.add_argument("what", choices=WHAT)
    options = parser.parse_args()
    # What they share must live on here: a spawned process finds it by its name.
    _shared, processes = WHAT[options.what](multiprocessing.get_context(options.method))
    announce.member("launcher")
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
