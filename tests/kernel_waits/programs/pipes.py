"""Waits for pipes. usage: pipes.py SCENE [PATH]"""

import os
import socket
import subprocess
import sys
import time

import announce
from parts import LONG_S, child, main, syscall, wait_in

TEE = 276


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


def tee():
    reader, writer = os.pipe()
    child("other")
    os.close(writer)
    _, copy = os.pipe()
    wait_in("waiter", lambda: syscall(TEE, reader, copy, 4096, 0))


def drain():
    """A task writes more into a pipe than its reader takes."""
    import asyncio

    reader, writer = os.pipe()
    child("other")
    os.close(reader)

    async def write_on():
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(writer, "wb")
        )
        stream = asyncio.StreamWriter(transport, protocol, None, loop)
        announce.member("waiter")
        while True:
            stream.write(b"x" * (1 << 16))
            await stream.drain()

    asyncio.run(write_on())


def fifo(path, flags):
    os.mkfifo(path)
    wait_in("waiter", lambda: os.open(path, flags))


def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.accept()


def write_every(seconds):
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        os.write(1, b"line\n")
        time.sleep(seconds)


WORK = {
    "sleeps": lambda: time.sleep(LONG_S),
    "serves": serve,
    "writes": lambda: write_every(0.2),
    "writes-slowly": lambda: write_every(20.0),
}


def leave(what):
    """Start `other`, which keeps our output, and end."""
    ready, done = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        # Its output is that of whoever started it, and nothing else of it is kept.
        announce.member("other")
        os.close(done)
        WORK[what]()
        os._exit(0)
    os.close(done)
    os.read(ready, 1)


def _leaving(what):
    return [sys.executable, __file__, "leave", what]


def left_open(what):
    wait_in("waiter", lambda: subprocess.run(_leaving(what), stdout=subprocess.PIPE))


def left_open_in_shell():
    announce.member("waiter")
    os.execvp("sh", ["sh", "-c", f"x=$({sys.executable} {__file__} leave sleeps); echo $x"])


def lines(what):
    with subprocess.Popen(_leaving(what), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        wait_in("waiter", process.stdout.readline)


main(
    {
        "leave": leave,
        "left-open": left_open,
        "left-open-in-shell": left_open_in_shell,
        "lines": lines,
        "read": read,
        "drain": drain,
        "tee": tee,
        "write": write,
        "fifo-read": lambda path: fifo(path, os.O_RDONLY),
        "fifo-write": lambda path: fifo(path, os.O_WRONLY),
    }
)
