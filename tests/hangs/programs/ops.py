"""What the ranks of train.py wait in. Each announces its rank and then enters."""

import fcntl
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import announce
import torch
import torch.distributed as dist


@dataclass
class Job:
    rank: int
    world_size: int
    path: str | None


def all_reduce(job, role):
    announce.member(role)
    dist.all_reduce(torch.ones(16, 4))


def all_reduce_after_a_stop(job, role):
    """Come when the one who came first has been stopped (see late.stopped_inside)."""
    pid = int(dist.distributed_c10d._get_default_store().get("first"))
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(") ")[2][0] != "T":
        time.sleep(0.01)
    all_reduce(job, role)


def broadcast(job, role):
    announce.member(role)
    dist.broadcast(torch.zeros(8), src=0)


def all_gather(job, role):
    parts = [torch.zeros(8) for _ in range(job.world_size)]
    announce.member(role)
    dist.all_gather(parts, torch.ones(8))


def all_gather_object(job, role):
    objects = [None] * job.world_size
    announce.member(role)
    dist.all_gather_object(objects, {"rank": job.rank})


def barrier(job, role):
    announce.member(role)
    dist.barrier()


def monitored_barrier(job, role):
    announce.member(role)
    dist.monitored_barrier()


def async_wait(job, role):
    work = dist.all_reduce(torch.ones(7), async_op=True)
    announce.member(role)
    work.wait()


def reduce_scatter(job, role):
    announce.member(role)
    dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2 * job.world_size))


def ddp_backward(job, role):
    """All build the model; the late one does not get as far as this (see late.ddp_then_sleep)."""
    _model, loss = ddp_loss()
    announce.member(role)
    loss.backward()


def ddp_loss():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    return model, model(torch.ones(2, 4)).sum()


def side_thread(job, role):
    """The main thread joins one that is in the collective."""

    def communicate():
        announce.member(role + ".comm")
        dist.all_reduce(torch.ones(4))

    thread = threading.Thread(target=communicate, name="comm")
    thread.start()
    announce.member(role)
    thread.join()


def new_group(job, role):
    announce.member(role)
    dist.new_group(list(range(job.world_size)))


# Everybody comes, but not to the same thing.


def other_op(job, role):
    """The last rank calls another operation than the others."""
    if job.rank == job.world_size - 1:
        broadcast(job, role)
    else:
        all_reduce(job, role)


def gather_for_reduce(job, role):
    if job.rank == job.world_size - 1:
        out = torch.zeros(job.world_size * 64)
        announce.member(role)
        dist.all_gather_into_tensor(out, torch.ones(64))
    else:
        announce.member(role)
        dist.all_reduce(torch.ones(64))


def one_call_more(job, role):
    """Rank 1 does one all_reduce more than the others, who are one barrier further."""
    if job.rank == 1:
        all_reduce(job, role)
    else:
        barrier(job, role)


def opposite_groups(job, role):
    """Rank 0 uses the small group first and the world then, rank 1 the other way round."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    dist.all_reduce(torch.ones(2))
    announce.member(role)
    if job.rank == 0:
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(torch.ones(3))
    else:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4), group=group)


def both_receive(job, role):
    tensor = torch.zeros(5)
    announce.member(role)
    dist.recv(tensor, src=(job.rank + 1) % job.world_size)


def subgroup_waits(job, role):
    """Rank 1 sleeps; rank 0 waits for it in a group of two, the rest waits for rank 0 in the world."""
    import late

    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2))
    if job.rank == 1:
        late.sleep(role, None)
    if job.rank == 0:
        announce.member(role)
        dist.all_reduce(torch.ones(4), group=group)
    barrier(job, role)


def lock_then_collective(job, role):
    """Rank 0 enters the collective with a file lock that rank 1 wants before it comes."""
    import late

    if job.rank == 0:
        _lock = _take_file_lock(job.path)
    dist.barrier()
    if job.rank == 1:
        late.flock(role, job.path)
    all_reduce(job, role)


def one_holds_two_miss(job, role):
    """Rank 1 sleeps with a file lock that rank 2 wants; neither comes."""
    import late

    if job.rank == 1:
        _lock = _take_file_lock(job.path)
    dist.barrier()
    if job.rank == 1:
        late.sleep(role, None)
    if job.rank == 2:
        late.flock(role, job.path)
    all_reduce(job, role)


def _take_file_lock(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def straggle(job, role):
    """Healthy but for one rank that needs two seconds a step."""
    _step_with_pause(job, role, 2.0)


def straggle_long(job, role):
    """The same with twenty seconds: still no hang, the timer says when it ends."""
    _step_with_pause(job, role, 20.0)


def _step_with_pause(job, role, pause_s):
    announce.member(role)
    while True:
        if job.rank == 1:
            time.sleep(pause_s)
        dist.all_reduce(torch.ones(16, 4))


def idle_engine(job, role):
    """Rank 0 waits for a request, the others for what it will tell them to do."""
    listener = socket.create_server(("127.0.0.1", 0))
    announce.member(role)
    while True:
        if job.rank == 0:
            listener.accept()
        dist.broadcast(torch.ones(4), src=0)


def full_speed(job, role):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    announce.member(role)
    while True:
        optimizer.zero_grad()
        model(torch.ones(16, 64)).sum().backward()
        optimizer.step()


OPS = {
    function.__name__: function
    for function in (
        all_reduce,
        all_reduce_after_a_stop,
        broadcast,
        all_gather,
        all_gather_object,
        barrier,
        monitored_barrier,
        async_wait,
        reduce_scatter,
        ddp_backward,
        side_thread,
        new_group,
        other_op,
        gather_for_reduce,
        one_call_more,
        opposite_groups,
        both_receive,
        subgroup_waits,
        lock_then_collective,
        one_holds_two_miss,
        straggle,
        straggle_long,
        idle_engine,
        full_speed,
    )
}
