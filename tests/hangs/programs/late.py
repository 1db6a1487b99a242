"""What one rank does instead of coming to the collective. Each announces the rank, and who else plays a part."""

import atexit
import concurrent.futures
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import announce

libc = ctypes.CDLL(None, use_errno=True)

FUTEX = {"x86_64": "202", "aarch64": "98"}[os.uname().machine]


def sleep(role, path):
    announce.member(role)
    time.sleep(3600)


def be_stopped(role, path):
    announce.member(role)
    os.kill(os.getpid(), signal.SIGSTOP)


# The program is over, but the interpreter does not come to its end.


def raise_beside_a_thread(role, path):
    threading.Thread(target=threading.Event().wait, name="uploader").start()
    announce.member(role)
    raise ValueError("bad batch")


def exit_into_a_handler(role, path):
    atexit.register(threading.Event().wait)
    announce.member(role)
    sys.exit(0)


def exit_with_a_pool(role, path):
    """The pool's thread is in a piece of work that nobody ends."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(threading.Event().wait)
    announce.member(role)
    sys.exit(0)


def exit_leaving_a_child(role, path):
    """What it has forked lives on, with all of its connections."""
    if os.fork() == 0:
        sleep(f"{role}.left", path)
    os._exit(3)


# Locks that another thread of the same process holds. It sits in a read that nobody answers.


def _start_holder(role, take):
    """Start a thread that takes a lock and keeps it; returns when it has it."""
    taken = threading.Event()

    def write_cache():
        with take():
            taken.set()
            reader, _writer = os.pipe()
            announce.member(role + ".holder")
            os.read(reader, 1)

    threading.Thread(target=write_cache, name="kv-cache-writer", daemon=True).start()
    taken.wait()


def lock_with(role, path):
    lock = threading.Lock()
    _start_holder(role, lambda: lock)
    announce.member(role)
    with lock:
        pass


def lock_acquire(role, path):
    lock = threading.Lock()
    _start_holder(role, lambda: lock)
    announce.member(role)
    lock.acquire()


def rlock(role, path):
    lock = threading.RLock()
    _start_holder(role, lambda: lock)
    announce.member(role)
    with lock:
        pass


class _Mutex:
    """A pthread mutex as a context manager; the calls let go of the GIL."""

    def __init__(self):
        self._storage = ctypes.create_string_buffer(64)

    def __enter__(self):
        libc.pthread_mutex_lock(self._storage)

    def __exit__(self, *_):
        libc.pthread_mutex_unlock(self._storage)


def c_mutex(role, path):
    mutex = _Mutex()
    _start_holder(role, lambda: mutex)
    announce.member(role)
    with mutex:
        pass


def gil(role, path):
    """An extension sleeps in another thread and keeps the GIL."""
    started = threading.Event()

    def poll_device():
        started.wait()
        announce.member(role + ".holder")
        ctypes.PyDLL(None).sleep(3600)

    threading.Thread(target=poll_device, name="device-poll", daemon=True).start()
    announce.member(role)
    started.set()
    while True:
        os.sched_yield()  # lets go of the GIL and wants it back


def stopped_inside(role, path):
    """Enter the collective first, and be stopped in it before the others come."""
    import torch
    import torch.distributed as dist

    main = threading.get_native_id()

    def stop_when_inside():
        call = Path(f"/proc/self/task/{main}/syscall")
        while call.read_text().split()[:1] != [FUTEX]:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGSTOP)

    dist.distributed_c10d._get_default_store().set("first", str(os.getpid()))
    announce.member(role)
    threading.Thread(target=stop_when_inside, daemon=True).start()
    dist.all_reduce(torch.ones(16, 4))


# Files, pipes and sockets


def flock(role, path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    announce.member(role)
    fcntl.flock(fd, fcntl.LOCK_EX)


def fcntl_lock(role, path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    announce.member(role)
    fcntl.lockf(fd, fcntl.LOCK_EX)


def read_pipe(role, path):
    """The write end is with a child that does nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        announce.die_with_parent()
        os.close(reader)
        announce.member(role + ".child")
        signal.pause()
    os.close(writer)
    announce.member(role)
    os.read(reader, 1)


def read_own_pipe(role, path):
    """We hold the only write end ourselves: neither data nor the end of the file can come."""
    reader, _writer = os.pipe()
    announce.member(role)
    os.read(reader, 1)


def read_socket(role, path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"GET weights\n")
        announce.member(role)
        connection.recv(1)


def read_tcp(role, path):
    with open(path) as port, socket.create_connection(("127.0.0.1", int(port.read()))) as connection:
        connection.sendall(b"GET weights\n")
        announce.member(role)
        connection.recv(1)


def write_full_pipe(role, path):
    """A child has the read end and does not read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        announce.die_with_parent()
        os.close(writer)
        announce.member(role + ".child")
        signal.pause()
    os.close(reader)
    announce.member(role)
    os.write(writer, b"x" * (1 << 20))


# Children


def data_loader(role, path):
    import torch.utils.data

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index == 1:
                announce.member(role + ".worker")
                time.sleep(3600)
            return index

    for _ in torch.utils.data.DataLoader(Samples(), batch_size=1, num_workers=2):
        announce.member(role)  # with the first sample, after which no other one comes


def child(role, path):
    process = subprocess.Popen(["sleep", "3600"])
    announce.member(role)
    process.wait()


HEAVY = """
constexpr unsigned collatz(unsigned long long n) {
    unsigned steps = 0;
    while (n != 1) { n = n % 2 ? 3 * n + 1 : n / 2; ++steps; }
    return steps;
}
constexpr unsigned sum(unsigned from, unsigned to) {
    unsigned all = 0;
    for (unsigned n = from; n < to; ++n) all += collatz(n);
    return all;
}
template <unsigned From> struct Block { static constexpr unsigned value = sum(From, From + 1000); };
"""


def compile_kernel(role, path):
    """A just-in-time compile that takes long: the compiler evaluates a lot of constants."""
    source = os.path.join(path, "kernel.cpp")
    with open(source, "w") as file:
        file.write(HEAVY)
        for block in range(1, 4000):
            file.write(f"unsigned kernel_{block} = Block<{block * 1000}u>::value;\n")
    announce.member(role)
    command = ["g++", "-std=c++17", "-fconstexpr-ops-limit=2147483647", "-c", "-o", "/dev/null", source]
    while subprocess.run(command, check=False).returncode == 0:
        pass


# On the CPU


def spin(role, path):
    announce.member(role)
    while True:
        pass


def compute(role, path):
    import torch

    left = torch.ones(256, 256)
    announce.member(role)
    while True:
        left = (left @ left).clamp(0, 1)


def stale_baton(role, path):
    from torch.utils.file_baton import FileBaton

    with open(path, "w"):
        pass  # as a builder that was killed left it
    baton = FileBaton(path)
    assert not baton.try_acquire()
    announce.member(role)
    baton.wait()


def ddp_then_sleep(role, path):
    import ops

    _model, _loss = ops.ddp_loss()
    sleep(role, path)


WHAT = {
    function.__name__: function
    for function in (
        sleep,
        be_stopped,
        raise_beside_a_thread,
        exit_into_a_handler,
        exit_with_a_pool,
        exit_leaving_a_child,
        lock_with,
        lock_acquire,
        rlock,
        c_mutex,
        gil,
        stopped_inside,
        flock,
        fcntl_lock,
        read_pipe,
        read_own_pipe,
        read_socket,
        read_tcp,
        write_full_pipe,
        data_loader,
        child,
        compile_kernel,
        spin,
        compute,
        stale_baton,
        ddp_then_sleep,
    )
}
