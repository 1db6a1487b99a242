"""One rank of a training that goes on: DistributedDataParallel over gloo, with data workers' threads.

Arguments: rank, world size, path of the gloo store. Prints "ready" after the first steps.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed
import torch.utils.data

RANK, WORLD, STORE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
WARM_STEPS = 5

torch.set_num_threads(2)
torch.manual_seed(RANK)
torch.distributed.init_process_group("gloo", init_method=f"file://{STORE}", rank=RANK, world_size=WORLD)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 64)
    )
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
while True:
    loss = model(torch.randn(4, 3, 32, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step == WARM_STEPS:
        print("ready", flush=True)
