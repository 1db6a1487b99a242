"""Waits for events: eventfd, signalfd, timerfd, inotify, sets of descriptors. usage: events.py SCENE [PATH]"""

import ctypes
import os
import select
import signal
import socket
import struct

from parts import LIBC, LONG_S, checked, child, main, syscall, wait_in

TIMERFD_CREATE, TIMERFD_SETTIME, SIGNALFD4, INOTIFY_INIT1, EVENTFD2 = 283, 286, 289, 294, 290
PIDFD_OPEN, IO_URING_SETUP, IO_URING_ENTER = 434, 425, 426
CLOCK_MONOTONIC = 1
IORING_ENTER_GETEVENTS = 1


def eventfd():
    fd = syscall(EVENTFD2, 0, 0)
    child("other")
    wait_in("waiter", lambda: os.read(fd, 8))


def signals():
    """SIGUSR1 and SIGTERM."""
    wanted = {signal.SIGUSR1, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    mask = sum(1 << number - 1 for number in wanted)
    fd = syscall(SIGNALFD4, -1, ctypes.byref(ctypes.c_uint64(mask)), 8, 0)
    wait_in("waiter", lambda: os.read(fd, 128))


def _timer(first_s, every_s=0.0):
    fd = syscall(TIMERFD_CREATE, CLOCK_MONOTONIC, 0)
    times = [int(every_s), int(every_s % 1 * 1e9), int(first_s), int(first_s % 1 * 1e9)]
    syscall(TIMERFD_SETTIME, fd, 0, ctypes.create_string_buffer(struct.pack("=qqqq", *times)), 0)
    return fd


def timer(first_s):
    fd = _timer(first_s)
    wait_in("waiter", lambda: os.read(fd, 8))


def ticking():
    """A service that wakes up regularly, and has nothing to do."""
    fd = _timer(0.02, 0.02)

    def work():
        while True:
            os.read(fd, 8)

    wait_in("waiter", work)


def inotify(path):
    fd = syscall(INOTIFY_INIT1, 0)
    checked(LIBC.inotify_add_watch(fd, path.encode(), 0x100))
    wait_in("waiter", lambda: os.read(fd, 4096))


def _two_pipes():
    first, second = os.pipe(), os.pipe()
    child("one", ready=lambda: os.close(second[1]))
    child("two", ready=lambda: os.close(first[1]))
    os.close(first[1])
    os.close(second[1])
    return first[0], second[0]


def poll(timeout_ms):
    poller = select.poll()
    for fd in _two_pipes():
        poller.register(fd, select.POLLIN)
    wait_in("waiter", lambda: poller.poll(timeout_ms))


def select_two():
    fds = _two_pipes()
    wait_in("waiter", lambda: select.select(fds, [], []))


def epoll():
    poller = select.epoll()
    for fd in _two_pipes():
        poller.register(fd, select.EPOLLIN)
    wait_in("waiter", poller.poll)


def epoll_of_epoll():
    """A set of descriptors whose one member is a set, too."""
    reader, writer = os.pipe()
    child("other")
    os.close(writer)
    inner, outer = select.epoll(), select.epoll()
    inner.register(reader, select.EPOLLIN)
    outer.register(inner.fileno(), select.EPOLLIN)
    wait_in("waiter", outer.poll)


def _full_pipe():
    """Its end for writing; `other` has the one for reading."""
    reader, writer = os.pipe()
    child("other")
    os.close(reader)
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        return writer


def poll_for_room():
    poller = select.poll()
    poller.register(_full_pipe(), select.POLLOUT)
    wait_in("waiter", poller.poll)


def select_for_room():
    fd = _full_pipe()
    wait_in("waiter", lambda: select.select([], [fd], []))


def epoll_for_room():
    poller = select.epoll()
    poller.register(_full_pipe(), select.EPOLLOUT)
    wait_in("waiter", poller.poll)


def poll_for_room_in_socket():
    here, there = socket.socketpair()
    child("other", ready=here.close)
    there.close()
    here.setblocking(False)
    try:
        while True:
            here.send(b"x" * 4096)
    except BlockingIOError:
        pass
    poller = select.poll()
    poller.register(here, select.POLLOUT)
    wait_in("waiter", poller.poll)


def epoll_with_eventfd():
    """A loop of a service: a pipe from another process, and a channel to wake it up."""
    reader, writer = os.pipe()
    child("other")
    os.close(writer)
    poller = select.epoll()
    poller.register(reader, select.EPOLLIN)
    poller.register(syscall(EVENTFD2, 0, 0), select.EPOLLIN)
    wait_in("waiter", poller.poll)


def pidfd():
    fd = syscall(PIDFD_OPEN, child("other"), 0)
    wait_in("waiter", lambda: select.select([fd], [], []))


def io_uring():
    fd = syscall(IO_URING_SETUP, 4, ctypes.create_string_buffer(120))
    wait_in("waiter", lambda: syscall(IO_URING_ENTER, fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0))


main(
    {
        "eventfd": eventfd,
        "signalfd": signals,
        "timerfd": lambda: timer(LONG_S),
        "timerfd-disarmed": lambda: timer(0),
        "timerfd-ticking": ticking,
        "inotify": inotify,
        "poll": lambda: poll(None),
        "poll-timed": lambda: poll(500_000),
        "select": select_two,
        "epoll": epoll,
        "epoll-eventfd": epoll_with_eventfd,
        "epoll-of-epoll": epoll_of_epoll,
        "poll-room": poll_for_room,
        "select-room": select_for_room,
        "epoll-room": epoll_for_room,
        "poll-room-socket": poll_for_room_in_socket,
        "pidfd": pidfd,
        "io-uring": io_uring,
    }
)
