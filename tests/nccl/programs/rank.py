"""One process of a job on NCCL: carries out its part of a plan. usage: rank.py PLAN

The plan is JSON: {"parts": {rank: [step, ...]}}, a step is a list of a name and arguments, as in the functions below.
The last step is where the process stays; before it, it says that it is there. Without RANK, part 0.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import announce

POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
DTYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
SUM = 0
BUFFER = 1 << 20


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


SIGNATURES = {
    "ncclGetUniqueId": [POINTER],
    "ncclCommInitRank": [POINTER, INT, UniqueId, INT],
    "ncclCommInitAll": [POINTER, INT, POINTER],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclAllReduce": [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    "ncclAllGather": [POINTER, POINTER, SIZE, INT, POINTER, POINTER],
    "ncclSend": [POINTER, SIZE, INT, INT, POINTER, POINTER],
    "ncclRecv": [POINTER, SIZE, INT, INT, POINTER, POINTER],
}


class Job:
    """The communicators of this process and the streams their operations go to."""

    def __init__(self, rank, size, scratch):
        self.rank, self.size, self.scratch = rank, size, scratch
        self.cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        self.cuda.cuStreamSynchronize.argtypes = [POINTER]
        library = os.environ["NCCL_BENCH_LIBRARY"]
        symbols = os.environ["NCCL_BENCH_SYMBOLS"]
        if self.cuda.stand_in_load_nccl(library.encode(), symbols.encode()) <= 0:
            raise SystemExit("the stand-in runtime has no place in this library")
        self.nccl = ctypes.CDLL(library)
        for name, arguments in SIGNATURES.items():
            getattr(self.nccl, name).argtypes = arguments
        self.comms, self.streams, self.pipes = {}, {}, []
        self.cuda.stand_in_set_device(rank)
        self.buffers = [self.allocate(), self.allocate()]

    def allocate(self):
        pages = POINTER()
        check(self.cuda.stand_in_allocate(ctypes.byref(pages), SIZE(BUFFER)))
        return pages

    def stream(self, comm):
        if comm not in self.streams:
            self.streams[comm] = POINTER()
            check(self.cuda.stand_in_create_stream(ctypes.byref(self.streams[comm])))
        return self.streams[comm]

    def id_pipe(self, comm, rank):
        path = self.scratch / f"unique_id.{comm}.{rank}"
        try:
            os.mkfifo(path)
        except FileExistsError:
            pass  # the other side was first
        self.pipes.append(os.open(path, os.O_RDWR))  # stays open: what is in it must not get lost
        return self.pipes[-1]

    def unique_id(self, comm):
        """Made by rank 0 and given to each of the others through a pipe of its own."""
        identity = UniqueId()
        if self.rank == 0:
            check(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
            for rank in range(1, self.size):
                os.write(self.id_pipe(comm, rank), bytes(identity))
        else:
            content = os.read(self.id_pipe(comm, self.rank), ctypes.sizeof(identity))
            identity = UniqueId.from_buffer_copy(content)
        return identity

    # -- steps

    def join(self, comm):
        self.comms[comm] = POINTER()
        identity = self.unique_id(comm)
        check(self.nccl.ncclCommInitRank(ctypes.byref(self.comms[comm]), self.size, identity, self.rank))

    def join_all(self, devices):
        """All ranks of one communicator in this process; `comm` of later steps is the rank."""
        comms = (POINTER * devices)()
        check(self.nccl.ncclCommInitAll(comms, devices, None))
        self.comms = {rank: POINTER(comms[rank]) for rank in range(devices)}

    def group(self, *steps):
        check(self.nccl.ncclGroupStart())
        for step in steps:
            self.run(step)
        check(self.nccl.ncclGroupEnd())

    def all_reduce(self, comm, count, dtype):
        where = (self.comms[comm], self.stream(comm))
        check(self.nccl.ncclAllReduce(*self.buffers, count, DTYPES[dtype], SUM, *where))

    def all_gather(self, comm, count, dtype):
        where = (self.comms[comm], self.stream(comm))
        check(self.nccl.ncclAllGather(*self.buffers, count, DTYPES[dtype], *where))

    def send(self, comm, count, dtype, peer):
        where = (self.comms[comm], self.stream(comm))
        check(self.nccl.ncclSend(self.buffers[0], count, DTYPES[dtype], peer, *where))

    def recv(self, comm, count, dtype, peer):
        where = (self.comms[comm], self.stream(comm))
        check(self.nccl.ncclRecv(self.buffers[1], count, DTYPES[dtype], peer, *where))

    def synchronize(self, comm):
        self.cuda.cuStreamSynchronize(self.stream(comm))

    def lock(self, path):
        """Waits for a file lock that somebody else holds."""
        with open(path.replace("@scratch", str(self.scratch.parent)), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def run(self, step):
        name, *arguments = step
        getattr(self, name)(*arguments)


def check(result):
    if result != 0:
        raise SystemExit(f"NCCL or the stand-in returned {result}")


def main():
    plan = json.loads(Path(sys.argv[1]).read_text())
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    steps = plan["parts"][str(rank)]
    # By the folder of the announcements, in which each run of a case has its own files.
    scratch = Path(os.environ["HANGS_ANNOUNCE"]).parent / plan["name"]
    scratch.mkdir(exist_ok=True)
    job = Job(rank, size, scratch)
    for step in steps[:-1]:
        job.run(step)
    announce.member(f"rank{rank}")
    job.run(steps[-1])


main()
