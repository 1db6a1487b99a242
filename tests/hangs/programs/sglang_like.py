"""Processes of the shape of an SGLang server with two ranks. usage: sglang_like.py HOW FOLDER PORT

The launcher is the API server (asyncio, HTTP). Rank 0 looks for requests over ZeroMQ without waiting and hands on what
it got, mostly nothing, in a broadcast: both ranks spin while nobody asks. Results go to a detokenizer, and from there
to the API server. HOW: `idle`, `stuck` (rank 1 does not come to the first batch), `stopped_detokenizer`,
`stopped_scheduler` (rank 1), `dead_detokenizer`.
"""

import asyncio
import multiprocessing
import os
import signal
import sys

import announce
import setproctitle
import zmq
import zmq.asyncio
from sglang.srt.managers.scheduler import Scheduler

SIZE = 2


class DetokenizerManager:
    def __init__(self, folder):
        announce.die_with_parent()
        setproctitle.setproctitle("sglang::detokenizer")
        context = zmq.Context()
        self.tokens, self.texts = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self.tokens.bind(f"ipc://{folder}/detokenizer")
        self.texts.connect(f"ipc://{folder}/tokenizer")
        announce.member("detokenizer")
        self.event_loop()

    def event_loop(self):
        while True:
            self.texts.send(self.tokens.recv())


async def answer(reader, writer):
    await reader.read()


async def serve(how, folder, port):
    spawn = multiprocessing.get_context("spawn")
    schedulers = []
    for rank in range(SIZE):
        mine, theirs = multiprocessing.Pipe()
        args = (rank, SIZE, how, folder, port, theirs)
        schedulers.append((mine, spawn.Process(target=Scheduler, args=args)))
        schedulers[-1][1].start()
    detokenizer = spawn.Process(target=DetokenizerManager, args=(folder,))
    detokenizer.start()
    context = zmq.asyncio.Context()
    requests, texts = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    requests.bind(f"ipc://{folder}/scheduler")
    texts.bind(f"ipc://{folder}/tokenizer")
    for pipe, _ in schedulers:
        pipe.recv()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    await requests.send(b"hello")
    if how != "stuck":
        await texts.recv()
    if how.startswith("stopped"):
        late = detokenizer if how == "stopped_detokenizer" else schedulers[1][1]
        os.kill(late.pid, signal.SIGSTOP)
        await requests.send(b"hello")
    elif how == "dead_detokenizer":
        os.kill(detokenizer.pid, signal.SIGKILL)
        await requests.send(b"hello")
    announce.member("api")
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
