"""A rank of the shape of SGLang's: it looks for requests without waiting, and all ranks learn what there is."""

import pickle
import time

import announce
import setproctitle
import zmq


class Scheduler:
    def __init__(self, rank, size, how, folder, port, pipe):
        import torch
        import torch.distributed as dist

        announce.die_with_parent()
        torch.set_num_threads(1)
        self.rank, self.how, self.dist, self.torch = rank, how, dist, torch
        setproctitle.setproctitle(f"sglang::scheduler_TP{rank}")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        self.group = dist.new_group(list(range(size)), backend="gloo", group_desc="tp:cpu")
        if rank == 0:
            context = zmq.Context()
            self.requests, self.results = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            self.requests.connect(f"ipc://{folder}/scheduler")
            self.results.connect(f"ipc://{folder}/detokenizer")
        pipe.send("ready")
        self.event_loop_normal()

    def event_loop_normal(self):
        batches = 0
        while True:
            for request in self.recv_requests():
                batches += 1
                self.run_batch()
                if self.rank == 0:
                    self.results.send(pickle.dumps(request))
            if batches == 1:
                announce.member(f"rank{self.rank}")
                batches += 1

    def recv_requests(self):
        found = []
        while self.rank == 0:
            try:
                found.append(self.requests.recv(zmq.NOBLOCK))
            except zmq.ZMQError:
                break
        return self.broadcast_pyobj(found)

    def broadcast_pyobj(self, data):
        content = pickle.dumps(data)
        size = self.torch.tensor([len(content) if data else 0])
        self.dist.broadcast(size, src=0, group=self.group)
        if not size.item():
            return []
        place = self.torch.zeros(int(size), dtype=self.torch.uint8)
        if self.rank == 0:
            place[:] = self.torch.frombuffer(bytearray(content), dtype=self.torch.uint8)
        self.dist.broadcast(place, src=0, group=self.group)
        return pickle.loads(place.numpy().tobytes())

    def run_batch(self):
        if self.how == "stuck":
            announce.member(f"rank{self.rank}")
            if self.rank == 1:
                time.sleep(3600)
        self.dist.all_reduce(self.torch.ones(4))
