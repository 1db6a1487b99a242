"""Ranks that no launcher started and no variable names. usage: told_ranks.py --rank RANK --world-size N PORT,
told_ranks.py RANK N PORT, or told_ranks.py both (two such jobs in one session, told by RANK and WORLD_SIZE alone).

Rank 1 sleeps, the others wait for it in all_reduce.
"""

import argparse
import os
import socket
import subprocess
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


def start_both():
    ranks = []
    for prefix in ("", "other."):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        for rank in range(2):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "PORT": port, "HANGS_PREFIX": prefix}
            ranks.append(subprocess.Popen([sys.executable, __file__], env=env))
    for rank in ranks:
        rank.wait()


def main():
    if sys.argv[1:] == ["both"]:
        start_both()
    elif "RANK" in os.environ:
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["PORT"])
    elif "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", type=int)
        parser.add_argument("--world-size", type=int)
        parser.add_argument("port")
        options = parser.parse_args()
        run(options.rank, options.world_size, options.port)
    else:
        run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    main()
