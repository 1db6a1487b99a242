"""A training loop with a data loader. usage: ddp.py even|uneven|pause SCRATCH, with RANK and so on in the environment

uneven: rank 1 sleeps 20 ms a step, and rank 0 writes a checkpoint every few steps while the others wait for it.
pause: rank 0 evaluates for half a second now and then.
"""

import os
import sys
import time

import announce
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KIND, SCRATCH = sys.argv[1:3]


class Squares(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        point = torch.full((16,), index / 512)
        return point, (point * point).sum()[None]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Squares()
    loader = DataLoader(
        data,
        batch_size=16,
        sampler=DistributedSampler(data),
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
        worker_init_fn=lambda _: announce.die_with_parent(),
    )
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)), bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while True:
        for points, squares in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(points), squares).backward()
            optimizer.step()
            step += 1
            if step == 4:
                announce.member(f"rank{rank}")
            if KIND == "uneven":
                if rank == 1:
                    time.sleep(0.02)
                if step % 10 == 0:
                    if rank == 0:
                        torch.save(model.state_dict(), os.path.join(SCRATCH, "checkpoint"))
                    dist.barrier()
            if KIND == "pause" and rank == 0 and step % 20 == 0:
                until = time.monotonic() + 0.5
                while time.monotonic() < until:
                    model.module(points)


main()
