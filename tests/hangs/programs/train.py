"""Ranks of a gloo job: all but one enter a collective, that one does something else instead.

usage: train.py [--launch fork|spawn|none] [--ranks N] [--op OP] [--late RANK --instead WHAT [--path PATH]]
       [--world-size N]

`none` is one rank, told its number by the environment (siblings, torchrun).
"""

import argparse
import os
import signal
import sys

import announce


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launch", choices=["fork", "spawn", "none"], default="fork")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--op", default="all_reduce")
    parser.add_argument("--late", type=int, default=None)
    parser.add_argument("--instead", default="sleep")
    parser.add_argument("--path", default=None)
    return parser.parse_args()


def run_rank(rank, options):
    import group_ops
    import late
    import ops
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = ops.Job(rank, dist.get_world_size(), options.path)
    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    if rank == options.late:
        late.WHAT[options.instead](f"rank{rank}", options.path)
    else:
        (ops.OPS | group_ops.OPS)[options.op](job, f"rank{rank}")
    signal.pause()


def as_child(rank, options):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.ranks))
    announce.die_with_parent()
    run_rank(rank, options)


def launch_by_fork(options):
    import torch.distributed  # noqa: F401  once for all

    os.environ["WORLD_SIZE"] = str(options.ranks)
    children = []
    for rank in range(options.ranks):
        pid = os.fork()
        if pid == 0:
            as_child(rank, options)
            os._exit(0)
        children.append(pid)
    announce.member("launcher")
    for pid in children:
        os.waitpid(pid, 0)


def launch_by_spawn(options):
    import torch.multiprocessing

    announce.member("launcher")
    torch.multiprocessing.spawn(as_child, args=(options,), nprocs=options.ranks)


def main():
    options = parse()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if options.launch == "fork":
        launch_by_fork(options)
    elif options.launch == "spawn":
        launch_by_spawn(options)
    else:
        announce.die_with_parent()
        run_rank(int(os.environ["RANK"]), options)


if __name__ == "__main__":
    sys.exit(main())
