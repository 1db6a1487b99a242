"""Pages and files that another process has to provide. usage: pages.py SCENE [PATH]"""

import ctypes
import os
import struct
import threading
import time

import announce
from parts import LIBC, LONG_S, checked, child, main, syscall, wait_in

USERFAULTFD = 323
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
UFFD_API, MODE_MISSING = 0xAA, 1
PROT_READ, PROT_READ_WRITE, SHARED, PRIVATE, PRIVATE_ANONYMOUS = 1, 3, 1, 2, 0x22
CLONE_NEWNS, MS_PRIVATE_RECURSIVE = 0x00020000, 0x44000

FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN, FUSE_READ, FUSE_INIT, FUSE_OPENDIR = 1, 3, 14, 15, 26, 27
FOPEN_DIRECT_IO = 1
_IN_HEADER = struct.Struct("=IIQQIIII")
_OUT_HEADER = struct.Struct("=IiQ")


def user_fault():
    """`other` has the userfaultfd open and does not answer."""
    fd = syscall(USERFAULTFD, 0)
    checked(LIBC.ioctl(fd, ctypes.c_ulong(UFFDIO_API), ctypes.byref((ctypes.c_uint64 * 3)(UFFD_API, 0, 0))))
    LIBC.mmap.restype = ctypes.c_void_p
    page = LIBC.mmap(None, 4096, PROT_READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    register = (ctypes.c_uint64 * 4)(page, 4096, MODE_MISSING, 0)
    checked(LIBC.ioctl(fd, ctypes.c_ulong(UFFDIO_REGISTER), ctypes.byref(register)))
    child("other")
    os.close(fd)
    wait_in("waiter", lambda: ctypes.string_at(page, 1))


def fuse(path):
    """`other` serves a file system, and does not answer reads."""
    _mounted(path, FUSE_READ)
    file = os.open(f"{path}/file", os.O_RDONLY)
    wait_in("waiter", lambda: os.read(file, 1))


def fuse_map(path):
    """`other` serves a file system, and does not answer when a page of a mapped file is asked for."""
    _mounted(path, FUSE_READ)
    file = os.open(f"{path}/file", os.O_RDONLY)
    page = _map(file, SHARED)
    wait_in("waiter", lambda: ctypes.string_at(page, 1))


def map_lock(path):
    """`keeper` is in mmap() with the lock of the memory map, which `waiter` wants as well.

    Mapping a file without a cache throws out what is cached of it: a page that `reader` reads, and `other` serves.
    Meanwhile whoever asks for our command line, such as ps, is stuck as well: so `other` ends soon, and all with it.
    """
    asked, asks = os.pipe()
    _mounted(path, FUSE_READ, silent_s=HELD_S, asks=asks)
    cached = os.open(f"{path}/file", os.O_RDONLY)
    direct = os.open(f"{path}/direct", os.O_RDONLY)
    _thread("reader", lambda: os.pread(cached, 1, 0))
    os.read(asked, 1)  # from then on the page is in the cache, and locked
    told, tells = os.pipe()
    ourselves = os.getpid()
    _once_asleep(SYS_PREAD, 1, lambda: os.write(tells, b"!"))
    os.read(told, 1)
    _once_asleep(SYS_MMAP, 1, lambda: os.write(tells, b"!"))
    _once_asleep(SYS_MMAP, 2, lambda: announce.member("waiter", ourselves))
    LIBC.mmap(None, 4096, PROT_READ, PRIVATE_ANONYMOUS, -1, 0)  # what it needs is in memory from now on
    _write_to_own_page()
    _thread("keeper", lambda: _map(direct, PRIVATE))
    os.read(told, 1)
    LIBC.mmap(None, 4096, PROT_READ, PRIVATE_ANONYMOUS, -1, 0)


SYS_MMAP, SYS_PREAD = 9, 17
HELD_S = 20.0


def _thread(role, work):
    def run():
        announce.member(role)
        work()

    threading.Thread(target=run, daemon=True).start()


def _write_to_own_page():
    """The kernel writes the number of the CPU into the thread's memory (rseq), where it comes to another one. After a
    fork that needs a page of its own, and for that the lock of the memory map: so it is done before somebody has that.
    """
    cpus = os.sched_getaffinity(0)
    for cpu in cpus:
        os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, cpus)


def _once_asleep(number, threads, then):
    """Another process calls `then` once so many threads of ours sleep in a system call where nothing interrupts them.

    One whose memory map is locked cannot do it itself: it might want more memory for that.
    """
    parent = os.getpid()
    if os.fork() == 0:
        announce.die_with_parent()
        while sum(_sleeps_in(parent, tid, number) for tid in os.listdir(f"/proc/{parent}/task")) < threads:
            time.sleep(0.01)
        then()
        os._exit(0)


def _sleeps_in(pid, tid, number):
    with open(f"/proc/{pid}/task/{tid}/syscall") as call, open(f"/proc/{pid}/task/{tid}/stat") as stat:
        return stat.read().rpartition(") ")[2][0] in "SD" and call.read().startswith(f"{number} ")


def _map(file, how):
    LIBC.mmap.restype = ctypes.c_void_p
    return LIBC.mmap(None, 4096, PROT_READ, how, file, ctypes.c_long(0))


def _mounted(path, silent_at, *, silent_s=LONG_S, asks=None):
    os.mkdir(path)
    checked(LIBC.unshare(CLONE_NEWNS))
    checked(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE_RECURSIVE), None))
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    checked(LIBC.mount(b"pages", path.encode(), b"fuse", ctypes.c_ulong(0), options))
    child("other", lambda: _serve(fd, silent_at, silent_s, asks))
    os.close(fd)


def fuse_open(path):
    """`other` does not answer when a file is looked up, either."""
    _mounted(path, FUSE_LOOKUP)
    wait_in("waiter", lambda: os.open(f"{path}/file", os.O_RDONLY))


def _attributes(inode, mode, size):
    return struct.pack("=6Q10I", inode, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(fd, silent_at, silent_s, asks):
    """<linux/fuse.h>, as little of it as one file needs. `asks` is told of the request that is not answered."""
    folder = _attributes(1, 0o40755, 0)
    file = _attributes(2, 0o100644, 1 << 20)
    direct = False
    while True:
        request = os.read(fd, 1 << 20)
        _, operation, unique, node, *_ = _IN_HEADER.unpack_from(request)
        if operation == silent_at:
            if asks is not None:
                os.write(asks, b".")
            time.sleep(silent_s)
            os._exit(0)
        if operation == FUSE_INIT:
            answer = struct.pack("=4I2H2I2H2I6I", 7, 31, 65536, 0, 12, 9, 65536, 1, 1, 0, *[0] * 8)
        elif operation == FUSE_LOOKUP:
            # Two names of one file, and only the second one is opened without a cache.
            direct = request[_IN_HEADER.size :].startswith(b"direct")
            answer = struct.pack("=4Q2I", 2, 0, 1000, 1000, 0, 0) + file
        elif operation == FUSE_GETATTR:
            answer = struct.pack("=Q2I", 1000, 0, 0) + (folder if node == 1 else file)
        elif operation in (FUSE_OPEN, FUSE_OPENDIR):
            answer = struct.pack("=Q2I", 0, FOPEN_DIRECT_IO if direct else 0, 0)
        else:
            os.write(fd, _OUT_HEADER.pack(16, -38, unique))
            continue
        os.write(fd, _OUT_HEADER.pack(16 + len(answer), 0, unique) + answer)


main(
    {
        "userfaultfd": user_fault,
        "fuse": fuse,
        "fuse-open": fuse_open,
        "fuse-map": fuse_map,
        "map-lock": map_lock,
    }
)
