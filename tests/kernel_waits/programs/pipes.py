"""Waits for pipes. usage: pipes.py SCENE [PATH]"""

import os

from parts import child, main, wait_in


def read():
    reader, writer = os.pipe()
    child("other")
    os.close(writer)
    wait_in("waiter", lambda: os.read(reader, 1))


def write():
    reader, writer = os.pipe()
    child("other")
    os.close(reader)
    wait_in("waiter", lambda: os.write(writer, b"x" * (1 << 20)))


def fifo(path, flags):
    os.mkfifo(path)
    wait_in("waiter", lambda: os.open(path, flags))


main(
    {
        "read": read,
        "write": write,
        "fifo-read": lambda path: fifo(path, os.O_RDONLY),
        "fifo-write": lambda path: fifo(path, os.O_WRONLY),
    }
)
