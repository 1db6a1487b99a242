"""Actors of Ray that are ranks of a group of gloo; the last one sleeps instead of reducing.

usage: ray_workers.py COUNT PORT FOLDER
"""

import sys
import time

import announce
import ray

COUNT, PORT = int(sys.argv[1]), sys.argv[2]


@ray.remote(num_cpus=1)
class Trainer:
    """One rank."""

    def __init__(self, rank):
        self.rank = rank

    def train(self):
        import torch
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=self.rank, world_size=COUNT
        )
        numbers = torch.ones(4)
        for _ in range(2):
            dist.all_reduce(numbers)
        announce.member(f"rank{self.rank}")
        if self.rank == COUNT - 1:
            time.sleep(3600)
        dist.all_reduce(numbers)


def main():
    ray.init(num_cpus=COUNT, include_dashboard=False, logging_level="ERROR", _temp_dir=sys.argv[3])
    trainers = [Trainer.remote(rank) for rank in range(COUNT)]
    announce.member("driver")
    ray.get([trainer.train.remote() for trainer in trainers])


main()
