"""Locks on files, and files that are locks. usage: files.py SCENE PATH"""

import fcntl
import os
import struct
import sys
import threading
import time

import announce
from parts import LONG_S, child, main, wait_in

F_OFD_SETLKW, F_SETLEASE = 38, 1024


def _two(path, take):
    """`other` holds what `waiter` asks for; each has opened the file itself."""
    ready, done = os.pipe()

    def hold():
        take(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.write(done, b"x")

    child("other", ready=hold)
    os.read(ready, 1)
    fd = os.open(path, os.O_RDWR)
    wait_in("waiter", lambda: take(fd))


def _of_threads(path, work):
    """`other`, a process of several threads, holds a lock that `waiter` asks for; `waiter` holds one of its own."""
    ready, done = os.pipe()
    mine = os.open(f"{path}.mine", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(mine, fcntl.LOCK_EX)

    def hold():
        os.close(mine)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(done, b"x")

    child("other", lambda: work(f"{path}.mine"), ready=hold)
    os.read(ready, 1)
    fd = os.open(path, os.O_RDWR)
    wait_in("waiter", lambda: fcntl.flock(fd, fcntl.LOCK_EX))


def _want(path):
    fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)


def _nap():
    while True:
        time.sleep(0.05)


def stuck(path):
    """One thread wants the waiter's lock, and the other one waits for its end."""
    thread = threading.Thread(target=_want, args=(path,))
    thread.start()
    thread.join()


def moving(path):
    """One thread wants the waiter's lock, and another one may have the process' own, and give it back."""
    threading.Thread(target=_nap).start()
    _want(path)


def working(path):
    threading.Thread(target=_nap).start()
    _nap()


def span(kind, start, length):
    return struct.pack("=hhxxxxqqixxxx", kind, os.SEEK_SET, start, length, 0)


def whole(kind):
    return span(kind, 0, 0)


def _of_parts(path, *, call, innocent, other, wanted, both=False):
    """`other` has some of the bytes that `waiter` asks for, `innocent` has others. Each is a kind, start and length.

    With `both` the two have been opened together: `innocent` has the open file of `other`.
    """
    ready, done = os.pipe()
    if both:
        shared = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def hold(what):
        def take():
            fd = shared if both else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if what is not None:
                fcntl.fcntl(fd, call, span(*what))
            os.write(done, b"x")

        return take

    for role, what in (("innocent", innocent), ("other", other)):
        child(role, ready=hold(what))
        os.read(ready, 1)
    if both:
        os.close(shared)
    fd = os.open(path, os.O_RDWR)
    wait_in("waiter", lambda: fcntl.fcntl(fd, call, span(*wanted)))


READ, WRITE = fcntl.F_RDLCK, fcntl.F_WRLCK


def parts(call):
    """Bytes beside the ones that are asked for, on both sides of them, are of no concern."""
    kept = {"innocent": (WRITE, 30, 0), "other": (WRITE, 5, 10), "wanted": (WRITE, 10, 20)}
    return lambda path: _of_parts(path, call=call, **kept)


def reads(call):
    """Who reads keeps nobody else from that."""
    kept = {"innocent": (READ, 0, 20), "other": (WRITE, 20, 5), "wanted": (READ, 0, 0)}
    return lambda path: _of_parts(path, call=call, **kept)


def inherited(path):
    """Two have one open file, and so both have its lock."""
    kept = {"innocent": None, "other": (WRITE, 0, 0), "wanted": (WRITE, 3, 1)}
    _of_parts(path, call=F_OFD_SETLKW, both=True, **kept)


def upgrade(path):
    """Two read, each by an open file of its own, and both ask to write: once both read, or the first would get it."""
    ready, done = os.pipe()
    mine = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, F_OFD_SETLKW, whole(READ))

    def hold():
        os.close(fd)
        fcntl.fcntl(mine, F_OFD_SETLKW, whole(READ))
        os.write(done, b"x")

    child("other", lambda: fcntl.fcntl(mine, F_OFD_SETLKW, whole(WRITE)), ready=hold)
    os.close(mine)
    os.read(ready, 1)
    wait_in("waiter", lambda: fcntl.fcntl(fd, F_OFD_SETLKW, whole(WRITE)))


def lease(path, breaks):
    """`other` has a lease that it does not give back when asked to."""
    ready, done = os.pipe()

    def hold():
        with open(path, "w") as file:
            file.write("x")
        fd = os.open(path, os.O_RDONLY)
        # SIGIO, the request to give it back, would end the process.
        import signal

        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(fd, F_SETLEASE, fcntl.F_RDLCK)
        os.write(done, b"x")

    def work():
        until = time.monotonic() + LONG_S
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)

    child("other", work, ready=hold)
    os.read(ready, 1)
    wait_in("waiter", lambda: breaks(path))


def soft_lock(path):
    from filelock import SoftFileLock

    ready, done = os.pipe()

    def hold():
        lock = SoftFileLock(path)
        lock.acquire()
        globals()["kept"] = lock
        os.write(done, b"x")

    child("other", ready=hold)
    os.read(ready, 1)
    wait_in("waiter", lambda: SoftFileLock(path).acquire())


def folder_lock(path):
    """A folder that is a lock by existing, polled for."""
    os.mkdir(path)
    announce.member("waiter")
    while True:
        try:
            os.mkdir(path)
        except FileExistsError:
            time.sleep(0.05)
        else:
            sys.exit("the wait has ended")


def nap_loop():
    """A healthy loop that does something, now and then."""
    announce.member("waiter")
    while True:
        try:
            os.getpid()
        except OSError:
            return
        time.sleep(0.05)


def shell_lock(path):
    os.mkdir(path)
    announce.member("waiter")
    os.execvp("sh", ["sh", "-c", f"until mkdir {path} 2>/dev/null; do sleep 0.1; done"])


main(
    {
        "nap-loop": nap_loop,
        "shell-lock": shell_lock,
        "flock": lambda path: _two(path, lambda fd: fcntl.flock(fd, fcntl.LOCK_EX)),
        "posix": lambda path: _two(path, lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX)),
        "ofd": lambda path: _two(path, lambda fd: fcntl.fcntl(fd, F_OFD_SETLKW, whole(fcntl.F_WRLCK))),
        "posix-parts": parts(fcntl.F_SETLKW),
        "ofd-parts": parts(F_OFD_SETLKW),
        "posix-reads": reads(fcntl.F_SETLKW),
        "ofd-reads": reads(F_OFD_SETLKW),
        "ofd-inherited": inherited,
        "ofd-upgrade": upgrade,
        "threads-stuck": lambda path: _of_threads(path, stuck),
        "threads-move": lambda path: _of_threads(path, moving),
        "threads-work": lambda path: _of_threads(path, working),
        "lease": lambda path: lease(path, lambda path: os.open(path, os.O_WRONLY)),
        "lease-truncate": lambda path: lease(path, lambda path: os.truncate(path, 0)),
        "soft-lock": soft_lock,
        "folder-lock": folder_lock,
    }
)
