"""A queue in shared memory with one writer and several readers, of the shape of vLLM's: flags say what is written and
what is read; a reader that has waited for a while sleeps until the writer pings it by ZeroMQ.
"""

import os
import pickle
import time
from contextlib import contextmanager
from multiprocessing import shared_memory

import zmq

CHUNKS, CHUNK = 4, 4096


class ShmRingBuffer:
    """`name` None: a new one. Of each chunk the flags are: written, and one a reader."""

    def __init__(self, readers, name=None):
        self.readers = readers
        size = CHUNKS * (CHUNK + 1 + readers)
        self.shared_memory = shared_memory.SharedMemory(name=name, create=name is None, size=size)

    def flags(self, chunk):
        begin = CHUNKS * CHUNK + chunk * (1 + self.readers)
        return self.shared_memory.buf[begin : begin + 1 + self.readers]

    def data(self, chunk):
        return self.shared_memory.buf[chunk * CHUNK : (chunk + 1) * CHUNK]


class SpinCondition:
    """Where a reader waits: by looking again for `busy_s`, then in a poll."""

    def __init__(self, context, address, *, reads, busy_s=0.2):
        self.busy_s = busy_s
        self.last_read = time.monotonic()
        self.socket = context.socket(zmq.SUB if reads else zmq.PUB)
        if reads:
            self.socket.setsockopt(zmq.CONFLATE, 1)
            self.socket.setsockopt(zmq.SUBSCRIBE, b"")
            self.socket.connect(address)
            self.poller = zmq.Poller()
            self.poller.register(self.socket, zmq.POLLIN)
        else:
            self.socket.bind(address)

    def wait(self, timeout_ms=None):
        if time.monotonic() <= self.last_read + self.busy_s:
            os.sched_yield()
        elif self.poller.poll(timeout=timeout_ms):
            self.socket.recv(flags=zmq.NOBLOCK)


class MessageQueue:
    """`handle` None: a new one, to be written to."""

    def __init__(self, readers=1, handle=None, reader=0, address=None):
        self._is_writer = handle is None
        self.local_reader_rank = reader
        self.current_idx = 0
        if handle is None:
            self.buffer = ShmRingBuffer(readers)
            self.handle = (readers, self.buffer.shared_memory.name, address)
        else:
            self.buffer = ShmRingBuffer(*handle[:2])
            self.handle = handle
        context = zmq.Context()
        self._spin_condition = SpinCondition(context, self.handle[2], reads=handle is not None)

    @contextmanager
    def acquire_write(self):
        while True:
            flags = self.buffer.flags(self.current_idx)
            if flags[0] and not all(flags[1:]):
                os.sched_yield()
                continue
            yield self.buffer.data(self.current_idx)
            for reader in range(self.buffer.readers):
                flags[1 + reader] = 0
            flags[0] = 1
            break
        self.current_idx = (self.current_idx + 1) % CHUNKS

    @contextmanager
    def acquire_read(self, timeout_ms=None):
        while True:
            flags = self.buffer.flags(self.current_idx)
            if not flags[0] or flags[1 + self.local_reader_rank]:
                self._spin_condition.wait(timeout_ms)
                continue
            yield self.buffer.data(self.current_idx)
            flags[1 + self.local_reader_rank] = 1
            self._spin_condition.last_read = time.monotonic()
            break
        self.current_idx = (self.current_idx + 1) % CHUNKS

    def enqueue(self, thing):
        content = pickle.dumps(thing)
        with self.acquire_write() as place:
            place[: len(content)] = content
        self._spin_condition.socket.send(b"\0")

    def dequeue(self, timeout_ms=None):
        with self.acquire_read(timeout_ms) as place:
            return pickle.loads(bytes(place))
