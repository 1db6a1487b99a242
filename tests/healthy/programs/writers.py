"""Several processes that write to one SQLite file. usage: writers.py PATH busy|idle"""

import multiprocessing
import sqlite3
import sys
import time

import announce

PATH, IDLE = sys.argv[1], sys.argv[2] == "idle"


def write(number, ready, orders):
    announce.die_with_parent()
    connection = sqlite3.connect(PATH, timeout=60, isolation_level=None)
    ready.release()
    while not IDLE:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO notes VALUES (?, ?)", (number, time.time()))
        connection.execute("COMMIT")
    orders.recv()


def main():
    with sqlite3.connect(PATH) as connection:
        connection.execute("CREATE TABLE notes (writer, at)")
    context = multiprocessing.get_context("fork")
    ready = context.Semaphore(0)
    # A child of multiprocessing has another standard input.
    orders, give = context.Pipe(duplex=False)
    writers = [context.Process(target=write, args=(number, ready, orders)) for number in range(3)]
    for writer in writers:
        writer.start()
    for _ in writers:
        ready.acquire(timeout=60)
    announce.member("main")
    for _ in sys.stdin if IDLE else ():
        give.send("go on")
    for writer in writers:
        writer.join()


main()
