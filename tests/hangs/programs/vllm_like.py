"""Processes of the shape of a vLLM server with two ranks. usage: vllm_like.py HOW FOLDER PORT

The API server (asyncio, HTTP) talks with the engine core over ZeroMQ; that one sends commands to the workers over a
queue in shared memory, and rank 0 answers over another one. A step is an all_reduce of the workers. HOW: `idle`,
`stuck` (rank 1 does not come to the second step), `lost` (rank 0 forgets to answer the second step), `full` (the API
server writes its log to a pipe whose reader does not read), `killed` (rank 1, while nobody asks).
"""

import asyncio
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import announce
import setproctitle
import zmq
import zmq.asyncio
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

SIZE = 2


class WorkerProc:
    def __init__(self, rank, how, folder, port, pipe, handle):
        import torch
        import torch.distributed as dist

        announce.die_with_parent()
        torch.set_num_threads(1)
        self.rank, self.how, self.steps, self.dist, self.torch = rank, how, 0, dist, torch
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=SIZE)
        dist.barrier()
        parallel_state.initialize_model_parallel(rank, SIZE)
        setproctitle.setproctitle(f"VLLM::Worker_TP{rank}")
        self.commands = MessageQueue(handle=handle, reader=rank)
        self.answers = MessageQueue(address=f"ipc://{folder}/answer{rank}") if rank == 0 else None
        pipe.send(self.answers.handle if self.answers else None)
        self.worker_busy_loop()

    def worker_busy_loop(self):
        while True:
            self.commands.dequeue()
            self.steps += 1
            self.execute_model()
            if self.answers is not None and not (self.how == "lost" and self.steps == 2):
                self.answers.enqueue(self.steps)
            if self.how in ("idle", "full", "lost", "killed") and self.steps == (
                2 if self.how == "lost" else 1
            ):
                # Of a worker that has ended nothing tells its rank any more.
                announce.member(f"{'worker' if self.how == 'killed' else 'rank'}{self.rank}")

    def execute_model(self):
        if self.how == "stuck" and self.steps == 2:
            announce.member(f"rank{self.rank}")
            if self.rank == 1:
                time.sleep(3600)
        self.dist.all_reduce(self.torch.ones(4))


class EngineCore:
    def __init__(self, how, folder, port):
        announce.die_with_parent()
        setproctitle.setproctitle("VLLM::EngineCore")
        self.how, self.folder = how, folder
        self.commands = MessageQueue(readers=SIZE, address=f"ipc://{folder}/commands")
        pipes = []
        for rank in range(SIZE):
            mine, theirs = multiprocessing.Pipe()
            child = multiprocessing.get_context("spawn").Process(
                target=WorkerProc, args=(rank, how, folder, port, theirs, self.commands.handle)
            )
            child.start()
            self.last_worker = child.pid
            pipes.append(mine)
        self.answers = MessageQueue(handle=pipes[0].recv())
        pipes[1].recv()
        self.input_queue, self.output_queue = queue.Queue(), queue.Queue()
        threading.Thread(target=self.process_input_sockets, daemon=True).start()
        threading.Thread(target=self.process_output_sockets, daemon=True).start()
        self.run_busy_loop()

    def process_input_sockets(self):
        socket = zmq.Context().socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"0")
        socket.connect(f"ipc://{self.folder}/input")
        socket.send(b"ready")
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        while True:
            for each, _ in poller.poll():
                self.input_queue.put(each.recv())

    def process_output_sockets(self):
        socket = zmq.Context().socket(zmq.PUSH)
        socket.connect(f"ipc://{self.folder}/output")
        while True:
            socket.send(self.output_queue.get())

    def run_busy_loop(self):
        steps = 0
        while True:
            kills = self.how == "killed" and steps == 2  # by when rank 1 is through the first one
            if steps == 0 or self.how in ("idle", "full") or kills:
                if steps:
                    if kills:
                        os.kill(self.last_worker, signal.SIGKILL)
                    announce.member("engine")
                self.input_queue.get()
            steps += 1
            if steps == 2:
                announce.member("engine")
            self.step()

    def step(self):
        self.commands.enqueue("execute_model")
        self.output_queue.put(b"%d" % self.get_response())

    def get_response(self):
        return self.answers.dequeue()


async def answer(reader, writer):
    await reader.read()


async def serve(how, folder, port):
    context = zmq.asyncio.Context()
    requests, answers = context.socket(zmq.ROUTER), context.socket(zmq.PULL)
    requests.bind(f"ipc://{folder}/input")
    answers.bind(f"ipc://{folder}/output")
    engine = multiprocessing.get_context("spawn").Process(target=EngineCore, args=(how, folder, port))
    engine.start()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    await requests.recv_multipart()
    await requests.send_multipart([b"0", b"hello"])
    await answers.recv()
    if how == "full":
        reader, log = os.pipe()
        logger = subprocess.Popen(["sleep", "3600"], stdin=reader, preexec_fn=announce.die_with_parent)
        os.close(reader)
        announce.member("logger", logger.pid)
        announce.member("api")
        while True:
            os.write(log, bytes(1 << 16))
    announce.member("api")
    async with server:
        await answers.recv()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
