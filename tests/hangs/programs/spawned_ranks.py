"""Ranks that only their own arguments tell who they are. usage: spawned_ranks.py PORT

Rank 1 sleeps, the others wait for it in all_reduce.
"""

import sys
import time

import announce


def run(rank, size, port):
    import torch
    import torch.distributed as dist

    announce.die_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    dist.barrier()
    announce.member(f"rank{rank}")
    if rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(4))


if __name__ == "__main__":
    import torch.multiprocessing

    announce.member("launcher")
    torch.multiprocessing.spawn(run, args=(3, sys.argv[1]), nprocs=3)
