"""Queues and semaphores of System V and POSIX. usage: queues.py SCENE [NAME]"""

import ctypes
import os
import struct
import time

from parts import LIBC, LONG_S, checked, child, main, wait_in

CLONE_NEWIPC = 0x08000000
SETVAL = 16
IPC_CREAT = 0o1000
SEMTIMEDOP = 220
LIBRT = ctypes.CDLL("librt.so.1", use_errno=True)


class Operation(ctypes.Structure):
    """struct sembuf"""

    _fields_ = (("number", ctypes.c_ushort), ("change", ctypes.c_short), ("flags", ctypes.c_short))


def take(semaphore):
    checked(LIBC.semop(semaphore, ctypes.byref(Operation(1, -1, 0)), 1))


def _semaphore():
    """A set of two, of which the second was taken by `other`."""
    semaphore = checked(LIBC.semget(0, 2, 0o600 | IPC_CREAT))
    checked(LIBC.semctl(semaphore, 1, SETVAL, 1))
    ready, done = os.pipe()

    def hold():
        take(semaphore)
        os.write(done, b"x")

    child("other", ready=hold)
    os.read(ready, 1)
    return semaphore


def semop():
    semaphore = _semaphore()
    wait_in("waiter", lambda: take(semaphore))


def semop_to_zero():
    """Number 1 of the set is raised to 2, and waited for until it is 0."""
    semaphore = _semaphore()
    checked(LIBC.semop(semaphore, ctypes.byref(Operation(1, 2, 0)), 1))
    wait_in("waiter", lambda: checked(LIBC.semop(semaphore, ctypes.byref(Operation(1, 0, 0)), 1)))


def semtimedop():
    semaphore = _semaphore()
    limit = ctypes.create_string_buffer(struct.pack("=qq", 500, 0))
    operation = Operation(1, -1, 0)
    wait_in("waiter", lambda: checked(LIBC.syscall(SEMTIMEDOP, semaphore, ctypes.byref(operation), 1, limit)))


def _message_queue():
    return checked(LIBC.msgget(0, 0o600 | IPC_CREAT))


def _message(size):
    return ctypes.create_string_buffer(struct.pack("=q", 1) + b"x" * size)


def msgrcv():
    """`other` has sent one message, which was taken."""
    queue = _message_queue()
    message = _message(64)
    child("other", ready=lambda: checked(LIBC.msgsnd(queue, message, 64, 0)))
    checked(LIBC.msgrcv(queue, message, ctypes.c_size_t(64), ctypes.c_long(0), 0))
    wait_in("waiter", lambda: LIBC.msgrcv(queue, message, ctypes.c_size_t(64), ctypes.c_long(0), 0))


def msgsnd():
    """`other` has taken one message, and takes no more."""
    queue = _message_queue()
    message = _message(4096)
    checked(LIBC.msgsnd(queue, message, 4096, 0))
    ready, done = os.pipe()

    def receive():
        checked(LIBC.msgrcv(queue, _message(4096), ctypes.c_size_t(4096), ctypes.c_long(0), 0))
        os.write(done, b"x")

    child("other", ready=receive)
    os.read(ready, 1)

    def fill():
        while True:
            checked(LIBC.msgsnd(queue, message, 4096, 0))

    wait_in("waiter", fill)


class Attributes(ctypes.Structure):
    """struct mq_attr"""

    _fields_ = (
        ("flags", ctypes.c_long),
        ("most", ctypes.c_long),
        ("size", ctypes.c_long),
        ("now", ctypes.c_long),
        ("reserved", ctypes.c_long * 4),
    )


def _posix_queue(name):
    attributes = Attributes(0, 2, 64, 0)
    return checked(LIBRT.mq_open(name.encode(), os.O_RDWR | os.O_CREAT, 0o600, ctypes.byref(attributes)))


def mq_receive(name):
    queue = _posix_queue(name)
    child("other")
    wait_in("waiter", lambda: LIBRT.mq_receive(queue, ctypes.create_string_buffer(64), 64, None))


def mq_send(name):
    queue = _posix_queue(name)
    child("other")

    def fill():
        while True:
            checked(LIBRT.mq_send(queue, b"x" * 64, 64, 0))

    wait_in("waiter", fill)


def named_semaphore(name):
    LIBC.sem_open.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(LIBC.sem_open(name.encode(), os.O_CREAT, 0o600, 1))

    def hold():
        checked(LIBC.sem_wait(semaphore))
        time.sleep(LONG_S)

    child("other", hold)
    value = ctypes.c_int(1)
    while value.value:
        LIBC.sem_getvalue(semaphore, ctypes.byref(value))
        time.sleep(0.01)
    wait_in("waiter", lambda: checked(LIBC.sem_wait(semaphore)))


# A namespace of our own, which ends with us and with all that is in it.
checked(LIBC.unshare(CLONE_NEWIPC))
main(
    {
        "semop": semop,
        "semop-zero": semop_to_zero,
        "semtimedop": semtimedop,
        "msgrcv": msgrcv,
        "msgsnd": msgsnd,
        "mq-receive": mq_receive,
        "mq-send": mq_send,
        "named-semaphore": named_semaphore,
    }
)
