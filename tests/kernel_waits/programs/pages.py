"""Pages and files that another process has to provide. usage: pages.py SCENE [PATH]"""

import ctypes
import os
import struct
import time

from parts import LIBC, LONG_S, checked, child, main, syscall, wait_in

USERFAULTFD = 323
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
UFFD_API, MODE_MISSING = 0xAA, 1
PROT_READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22
CLONE_NEWNS, MS_PRIVATE_RECURSIVE = 0x00020000, 0x44000

FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN, FUSE_READ, FUSE_INIT, FUSE_OPENDIR = 1, 3, 14, 15, 26, 27
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


def _mounted(path, silent_at):
    os.mkdir(path)
    checked(LIBC.unshare(CLONE_NEWNS))
    checked(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE_RECURSIVE), None))
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    checked(LIBC.mount(b"pages", path.encode(), b"fuse", ctypes.c_ulong(0), options))
    child("other", lambda: _serve(fd, silent_at))
    os.close(fd)


def fuse_open(path):
    """`other` does not answer when a file is looked up, either."""
    _mounted(path, FUSE_LOOKUP)
    wait_in("waiter", lambda: os.open(f"{path}/file", os.O_RDONLY))


def _attributes(inode, mode, size):
    return struct.pack("=6Q10I", inode, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(fd, silent_at):
    """<linux/fuse.h>, as little of it as one file needs."""
    folder = _attributes(1, 0o40755, 0)
    file = _attributes(2, 0o100644, 1 << 20)
    while True:
        request = os.read(fd, 1 << 20)
        _, operation, unique, node, *_ = _IN_HEADER.unpack_from(request)
        if operation == silent_at:
            time.sleep(LONG_S)
        if operation == FUSE_INIT:
            answer = struct.pack("=4I2H2I2H2I6I", 7, 31, 65536, 0, 12, 9, 65536, 1, 1, 0, *[0] * 8)
        elif operation == FUSE_LOOKUP:
            answer = struct.pack("=4Q2I", 2, 0, 1000, 1000, 0, 0) + file
        elif operation == FUSE_GETATTR:
            answer = struct.pack("=Q2I", 1000, 0, 0) + (folder if node == 1 else file)
        elif operation in (FUSE_OPEN, FUSE_OPENDIR):
            answer = struct.pack("=Q2I", 0, 0, 0)
        else:
            os.write(fd, _OUT_HEADER.pack(16, -38, unique))
            continue
        os.write(fd, _OUT_HEADER.pack(16 + len(answer), 0, unique) + answer)


main({"userfaultfd": user_fault, "fuse": fuse, "fuse-open": fuse_open})
