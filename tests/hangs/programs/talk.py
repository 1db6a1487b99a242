"""Processes that wait for each other's data. usage: talk.py filter|tcp|no-eof|stopped-child"""

import os
import signal
import socket
import subprocess
import sys

import announce


def filter_both_write():
    """We write to a filter and do not read what it writes back, until both pipes are full."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    announce.member("filter", child.pid)
    announce.member("parent")
    child.stdin.write(b"x" * (1 << 20))


def tcp_both_receive():
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        announce.die_with_parent()
        with socket.create_connection(listener.getsockname()) as connection:
            listener.close()
            announce.member("child")
            connection.recv(1)
        return
    connection, _address = listener.accept()
    listener.close()
    announce.member("parent")
    connection.recv(1)


def no_eof():
    """The child is gone, but we forgot to close our own write end: the end of the file never comes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"result")
        os._exit(0)
    os.waitpid(child, 0)
    os.read(reader, 100)
    announce.member("reader")
    os.read(reader, 100)


def stopped_child():
    child = os.fork()
    if child == 0:
        announce.die_with_parent()
        announce.member("child")
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    announce.member("parent")
    os.waitpid(child, 0)


WHAT = {
    "filter": filter_both_write,
    "tcp": tcp_both_receive,
    "no-eof": no_eof,
    "stopped-child": stopped_child,
}

WHAT[sys.argv[1]]()
