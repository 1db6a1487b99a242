"""One of several programs that wait for each other in a ring. usage: ring_member.py KIND LETTER LETTERS FOLDER

Each has what the one before it wants. Prints the pids of its tree once it has that, waits for a line, and then asks for
what the next one has.
"""

import ctypes
import fcntl
import mmap
import os
import sys
import threading

LIBC = ctypes.CDLL(None)
PLACE = 64  # of a mutex in the file
FIRST_READ, FIRST_WRITE = 100, 200  # descriptors of the ends of pipes


def next_letter(letter, letters):
    return letters[(letters.index(letter) + 1) % len(letters)]


def opened(folder, letter):
    return os.open(f"{folder}/{letter}", os.O_RDWR | os.O_CREAT, 0o600)


def go(*pids):
    print("ready", os.getpid(), *pids, flush=True)
    sys.stdin.readline()


def flock(letter, letters, folder):
    fcntl.flock(opened(folder, letter), fcntl.LOCK_EX)
    wanted = opened(folder, next_letter(letter, letters))
    go()
    fcntl.flock(wanted, fcntl.LOCK_EX)


def of_threads(letter, letters, folder):
    """A thread wants the next file, and the main thread waits for its end."""
    fcntl.flock(opened(folder, letter), fcntl.LOCK_EX)
    wanted = opened(folder, next_letter(letter, letters))
    go()
    thread = threading.Thread(target=fcntl.flock, args=(wanted, fcntl.LOCK_EX))
    thread.start()
    thread.join()


def children(letter, letters, folder):
    """A child wants the next file, and its parent, who has the own one, waits for any child of his."""
    fcntl.lockf(opened(folder, letter), fcntl.LOCK_EX)
    start, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(begin)
        os.read(start, 1)
        fcntl.lockf(opened(folder, next_letter(letter, letters)), fcntl.LOCK_EX)
        os._exit(0)
    go(pid)
    os.write(begin, b"x")
    os.wait()


def mutex(letter, letters, folder):
    """Robust mutexes in a file that all have mapped."""
    fd = opened(folder, "memory")
    os.ftruncate(fd, mmap.PAGESIZE)
    memory = mmap.mmap(fd, mmap.PAGESIZE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def at(one):
        return ctypes.c_void_p(begin + PLACE * letters.index(one))

    kind = ctypes.create_string_buffer(64)
    LIBC.pthread_mutexattr_init(kind)
    LIBC.pthread_mutexattr_setpshared(kind, 1)
    LIBC.pthread_mutexattr_setrobust(kind, 1)
    LIBC.pthread_mutex_init(at(letter), kind)
    LIBC.pthread_mutex_lock(at(letter))
    go()
    LIBC.pthread_mutex_lock(at(next_letter(letter, letters)))


def pipes(letter, letters, folder):
    """Reads what the next one is to write: each has only the end to read of the next one's pipe, and of its own that to
    write."""
    mine, wanted = letters.index(letter), letters.index(next_letter(letter, letters))
    for index in range(len(letters)):
        if index != wanted:
            os.close(FIRST_READ + index)
        if index != mine:
            os.close(FIRST_WRITE + index)
    go()
    os.read(FIRST_READ + wanted, 1)


KINDS = {
    "flock": flock,
    "threads": of_threads,
    "children": children,
    "mutex": mutex,
    "pipes": pipes,
}
KINDS[sys.argv[1]](*sys.argv[2:])
